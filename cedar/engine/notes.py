"""Notes for ``explain()`` and reports: row counts, the order of delivery, and the work that several ranks share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice

import numpy as np

from cedar.core.errors import CedarError
from cedar.core.stream import Stream
from cedar.datasets.base import Read
from cedar.datasets.split_table import SplitTable
from cedar.engine.binding import Binding
from cedar.engine.compiler import Compiler
from cedar.engine.metrics import Metrics
from cedar.engine.nodes import any_order_stage
from cedar.engine.runner import Runner
from cedar.engine.streams.assigned import AssignedStream
from cedar.engine.streams.ready import ReadyStream
from cedar.engine.streams.splits import SplitStream
from cedar.engine.task_context import Tasks
from cedar.operators.base import Env, RowOperator, StreamOperator
from cedar.plan.graph import Node, source_of
from cedar.plan.lower import refills
from cedar.plan.physical import Physical
from cedar.plan.splits import passes, uncountable
from cedar.store.cache import Store

_ONLY_A_RUN = "how many rows come out of it is known only after a run"
_MIN_REPORTED = 1.15  # report ratios of rows read to rows needed above this


# ---- row counts ------------------------------------------------------------------------------------------------------


def counted_if_read(binding: Binding) -> tuple[Binding, tuple[Node, str] | None]:
    """Return a binding that assumes counted filters. Also return the node that still makes counts unknown, and why."""
    asked = Binding(binding.root, binding.on_error, Env(sampling=True), counts=lambda _, splits, __: splits.rows)
    compiler = Compiler(asked.written, asked, Tasks(Runner("inline", 1), Env(), Metrics()), Store())
    return asked, None if compiler.assigned.count is not None else _culprit(compiler)


def offer(binding: Binding) -> str:
    """Describe what ``counts="exact"`` would read; "" if counts would still be unknown."""
    asked, culprit = counted_if_read(binding)
    if culprit is not None:
        return ""
    part = share(asked)
    extent = f"{percent(part)} of the bytes" if part < 1 else "the columns of filters"
    return f'loader(counts="exact"), which reads {extent} first'


def share(binding: Binding) -> float:
    """Return the fraction of the source bytes that are read to count rows."""
    part = whole = 0.0
    for node in binding.sources:
        whole += binding.splits(node).known_bytes
        if filters := binding.splits.counted(node):
            read = source_of(node).select(columns_of(node, filters))
            part += int(SplitTable.of(read.splits()).known_bytes)
    return part / whole if whole else 0.0


def columns_of(source: Node, filters: tuple[Node, ...]) -> list[str]:
    """Return the columns of a source that filters use, in the order of the source."""
    reads = frozenset[str]().union(*(each.effects.reads or () for each in filters))
    return [name for name in source.schema or () if name in reads]


def percent(part: float) -> str:
    return f"{part:.0%}" if part >= 0.095 else f"{part:.1%}"


def _culprit(compiler: Compiler) -> tuple[Node, str]:
    """Return the first node whose number of output rows is unknown, and why."""
    physical = compiler.physical
    for stage, stream in zip(physical.stages, compiler.streams, strict=False):
        if stream.count is not None:
            continue
        links = [i for segment in stage.segments for i in (segment.source, *segment.links) if isinstance(i, int)]
        for i in sorted({*links, *stage.operators}):
            node = physical.nodes[i]
            if isinstance(node.operator, Read) and not compiler.binding.splits(node).counted:
                return node, "its metadata do not include row counts"
            if not physical.works[i].preserves_slots:
                return node, _why_uncounted(node, compiler.binding)
        return physical.nodes[stage.out], _ONLY_A_RUN
    return physical.nodes[-1], _ONLY_A_RUN


def _why_uncounted(node: Node, binding: Binding) -> str:
    if refills(node, binding.on_error):
        return "with Skip(refill=True) the next row takes the place of one that fails"
    if not isinstance(node.operator, RowOperator) or not node.filters:
        return _ONLY_A_RUN
    source = node.inputs[0]
    while source.inputs and (source.filters or passes(source)):
        source = source.inputs[0]
    if not isinstance(source.operator, Read):
        return f"it comes after {source.operator.label()}, after which rows are not counted"
    return uncountable(node, source) or "other operators read the same rows"


# ---- several ranks ---------------------------------------------------------------------------------------------------


def cost_note(operator: StreamOperator, inputs: Sequence[Stream]) -> str:
    """Describe the extra work that a stream operator causes with several ranks; "" if it causes none."""
    if operator.row_use.rows == "balanced":
        return "each rank computes everything before it for all ranks, and everything after it for its own rows"
    if all(stream.count is not None for stream in inputs) or operator.row_use.lanes:
        return ""
    if operator.local:
        return "local to each rank"
    return "global: it counts rows whose number is unknown, so every rank computes its input; local=True opts out"


def describe_overlap(splits: SplitStream, assigned: AssignedStream, unit_rows: int, world: int) -> str:
    """Describe how many rows a rank reads in addition to its own, because it shares windows with other ranks.

    Args:
        splits: the pipeline's only source; its windows are read as a whole.
        assigned: the rank's units.
        unit_rows: number of rows in a unit.

    Returns:
        "" if there are few, if units are not consecutive runs of source rows, or if row counts are unknown.
    """
    layout = splits.layout(0)
    if layout.before is None or not splits.windowed or assigned.share.turns:
        return ""
    edges, total = layout.before[np.append(layout.starts, len(layout.order))], int(layout.before[-1])
    if assigned.source.count not in (total // unit_rows, -(-total // unit_rows)):
        return ""
    read = needed = 0
    for span in assigned.spans(0):
        if span is not None:
            low, high = (min(unit * unit_rows, total) for unit in span)
            first, last = np.searchsorted(edges, low, side="right") - 1, np.searchsorted(edges, high)
            read, needed = read + int(edges[last] - edges[first]), needed + high - low
    if read <= _MIN_REPORTED * needed:
        return ""
    return (
        f"this rank reads {read / needed:.2f} times the rows of its batches: a shuffle window is read as a whole, and "
        f"an epoch has {len(layout.starts)} for {world} ranks. A smaller shuffle(window=) reads fewer; {8 * world} are "
        "enough"
    )


# ---- order and places ------------------------------------------------------------------------------------------------


def describe_order(physical: Physical, ready: ReadyStream | None) -> str:
    """Describe which rows ``order="any"`` delivers as they finish, or why none, and which slow stages stay in order."""
    stages, works = physical.stages, physical.works
    number = any_order_stage(physical)
    if ready is None or number < 0:
        stage = stages[stages[physical.deal].inputs[0]]
        while stage.kind == "task" and len(stage.inputs) == 1:
            stage = stages[stage.inputs[0]]
        reported = f"rows come in order: {works[stage.out].label} needs that order"
    elif not ready.free:
        reported = "rows come in order: ranks take turns at the same rows, or have slices of the same batches"
    elif ready.stage is not None:
        work = " -> ".join(works[i].label for i in stages[number].operators)
        reported = f"rows come as they finish by {work}"
    elif stages[number].small:
        culprit = next(i for i in reversed(stages[number].operators) if not works[i].preserves_slots)
        reported = f"rows come in order: how many rows {works[culprit].label} leaves is known only after it has run"
    else:
        below = "batch()" if any(work.batched for work in works) else "the loader"
        reported = f"rows come in order: no per-row function is directly before {below}"
    slow = [works[stage.out].label for stage in stages if stage.small and works[stage.out].batched]
    return reported + "".join(f"; {label} works on batches, which stay in order" for label in slow)


def pictured(
    nodes: Sequence[Node], splits: Callable[[Node], SplitTable], physical: Physical, executor: str
) -> list[tuple[str, ...]]:
    """Return the lines that a diagram shows below each operator as written: its columns, and its rows and executor."""
    places: dict[int, str] = {}
    for stage in physical.stages:
        linked = [i for each in stage.segments for i in (each.source, *each.links) if isinstance(i, int)]
        inside = stage.kind in ("stream", "window", "deal")
        for i in (*linked, *stage.operators, stage.out):
            where = "in the loader" if inside else f"on {stage.place or executor}"
            places.setdefault(physical.works[i].ordinal, where)
    described: list[tuple[str, ...]] = []
    for ordinal, node in enumerate(nodes):
        columns = "columns are known only in a run"
        if (known := node.schema) is not None:
            columns = f"{len(known)} column(s): " + ", ".join(
                f"{name} {kind}" for name, kind in islice(known.items(), 12)
            )
        place = places.get(ordinal, "moved into the reader")
        with suppress(CedarError):  # if files cannot be listed, the run itself raises the error
            if not node.inputs and splits(node).counted:
                place = f"{splits(node).known_rows:,} rows, {place}"
        described.append((columns, place))
    return described
