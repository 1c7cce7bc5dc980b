"""Compute how many rows a rank reads in addition to its own, because it shares windows with other ranks."""

from __future__ import annotations

import numpy as np

from cedar.engine.streams.assigned import AssignedStream
from cedar.engine.streams.splits import SplitStream

_MIN_REPORTED = 1.15  # report ratios of rows read to rows needed above this


def overlap(splits: SplitStream, assigned: AssignedStream, unit_rows: int) -> tuple[float, int] | None:
    """Return the ratio of the rows that a rank reads to the rows that it needs, and the number of windows per epoch.

    Args:
        splits: the pipeline's only source; its windows are read as a whole.
        assigned: the rank's units.
        unit_rows: number of rows in a unit.

    Returns:
        None if units are not consecutive runs of ``unit_rows`` source rows, or if row counts are unknown.
    """
    layout = splits.layout(0)
    if layout.before is None or not splits.windowed or assigned.share.turns:
        return None
    edges, total = layout.before[np.append(layout.starts, len(layout.order))], int(layout.before[-1])
    if assigned.source.count not in (total // unit_rows, -(-total // unit_rows)):
        return None
    read = needed = 0
    for span in assigned.spans(0):
        if span is not None:
            low, high = (min(unit * unit_rows, total) for unit in span)
            first, last = np.searchsorted(edges, low, side="right") - 1, np.searchsorted(edges, high)
            read, needed = read + int(edges[last] - edges[first]), needed + high - low
    return (read / needed, len(layout.starts)) if needed else None


def describe_by_key(labels: str, world: int) -> str:
    """Describe that every rank reads all of the sources ``labels``; "" if there are none."""
    if not labels:
        return ""
    return f"each of the {world} ranks reads all of {labels}, which has fewer splits, and keeps its rows by key"


def describe(measured: tuple[float, int] | None, world: int) -> str:
    """Describe the extra rows that a rank reads, with a hint; "" if there are few."""
    if measured is None or measured[0] <= _MIN_REPORTED:
        return ""
    return (
        f"this rank reads {measured[0]:.2f} times the rows of its batches: a shuffle window is read as a whole, and an "
        f"epoch has {measured[1]} for {world} ranks. A smaller shuffle(window=) reads fewer; {8 * world} are enough"
    )
