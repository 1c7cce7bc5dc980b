"""Loads: measured costs of each operator per input row."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from cedar.datasets.base import Read
from cedar.operators.base import StreamOperator
from cedar.optimizer.facts import Facts
from cedar.plan import graph
from cedar.plan.graph import Node
from cedar.plan.scan import Scan
from cedar.profile import OperatorProfile, Profile

_ROWS_IF_NONE_KEPT = 0.5  # if a filter kept none of n measured rows, assume that it keeps one row in 2n


@dataclass(frozen=True)
class Load:
    """Measured figures of one operator, per input row.

    Args:
        cpu: core seconds.
        wait: seconds spent waiting for storage, a network or a sleep.
        keep: number of output rows per input row.
        gil: the share of ``cpu`` during which the operator holds the GIL.
        rows: rows per call.
        columns: decoded bytes per row of each column that the operator writes (for a source, of all columns).
        measured: False if no row reached the operator; the figures are then typical values.
        serial: whether it is a source that a single task must read from its start, in the coordinator's process.
    """

    cpu: float = 0.0
    wait: float = 0.0
    keep: float = 1.0
    gil: float = 0.0
    rows: float = 1.0
    columns: dict[str, float] = field(default_factory=dict)
    measured: bool = True
    serial: bool = False

    @property
    def busy(self) -> float:
        """Seconds per row during which the operator occupies a worker."""
        return self.cpu + self.wait


def find_loads(root: Node, facts: Facts) -> dict[int, Load]:
    """Return the load of every node, and of every filter inside a scan, by node id."""
    profile = facts.profile
    assert profile is not None, "a search follows a measurement"
    crowd = _contention(profile)
    typical = _median_cpu(facts, profile)
    loads: dict[int, Load] = {}
    for node in graph.walk(root):
        inside = node.operator.where if isinstance(node.operator, Scan) else ()
        for each in (node, *inside):
            loads[id(each)] = _load(each, facts, crowd, typical)
    return loads


def _load(node: Node, facts: Facts, crowd: float, typical: float) -> Load:
    figures = facts.figures(node)
    if facts.ordinal(node) is None:
        return Load()
    if figures is None or not figures.rows:
        if isinstance(node.operator, StreamOperator | Read):
            return Load()
        return Load(cpu=typical, gil=_gil_share(node, None), measured=False)
    return Load(
        cpu=figures.cpu,
        wait=_wait(figures, crowd) if node.effects.waits else 0.0,
        keep=max(figures.keep, _ROWS_IF_NONE_KEPT / figures.rows),
        gil=_gil_share(node, figures.gil),
        rows=max(1.0, figures.rows / max(1, figures.calls)),
        columns=figures.columns,
        serial=isinstance(node.operator, Read) and facts.streams(node),
    )


def _gil_share(node: Node, gil: float | None) -> float:
    """Return the measured GIL share; if unmeasured, 1 for operators that run Python per row, else 0."""
    return gil if gil is not None else float(node.effects.per_row)


def _wait(figures: OperatorProfile, crowd: float) -> float:
    """Return wall time minus CPU time, or 0 if contention for cores or the GIL explains the difference."""
    return max(0.0, figures.wall - figures.cpu) if figures.wall > crowd * figures.cpu else 0.0


def _contention(profile: Profile) -> float:
    """Return the factor by which contention with other tasks may make a call longer than its CPU time."""
    work = sum(f.cpu * f.rows for f in profile.operators.values())
    locked = sum(f.cpu * f.rows * (f.gil or 0.0) for f in profile.operators.values())
    share = locked / work if work and profile.executor != "processes" else 0.0
    return max(1.0, profile.workers / max(1, profile.machine.cores), profile.workers * share) * 1.2


def _median_cpu(facts: Facts, profile: Profile) -> float:
    """Return the median CPU time per row of the measured row operators."""
    stream = {
        facts.ordinals.get(id(n)) for n in graph.walk(facts.logical) if isinstance(n.operator, StreamOperator | Read)
    }
    known = [f.cpu for ordinal, f in profile.operators.items() if f.rows and ordinal not in stream]
    return statistics.median(known) if known else 0.0
