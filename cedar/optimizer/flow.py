"""Data flow: each operator's measured costs, and how many rows and bytes pass each edge of a graph."""

from __future__ import annotations

from dataclasses import dataclass, field

from cedar.datasets.base import Read
from cedar.operators.base import Effects, RowOperator, StreamOperator
from cedar.plan import graph
from cedar.plan.graph import Node, Scan, chosen_fields
from cedar.plan.steps.step import Facts, Names, live_columns
from cedar.profile import Profile

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
    unmeasured = float(node.effects.per_row)  # operators that run Python per row are assumed to hold the GIL
    if figures is None or not figures.rows:
        if isinstance(node.operator, StreamOperator | Read):
            return Load()
        return Load(cpu=typical, gil=unmeasured, measured=False)
    contended = figures.wall <= crowd * figures.cpu  # contention for cores or the GIL explains the difference
    return Load(
        cpu=figures.cpu,
        wait=max(0.0, figures.wall - figures.cpu) if node.effects.waits and not contended else 0.0,
        keep=max(figures.keep, _ROWS_IF_NONE_KEPT / figures.rows),
        gil=unmeasured if figures.gil is None else figures.gil,
        rows=max(1.0, figures.rows / max(1, figures.calls)),
        columns=figures.columns,
        serial=isinstance(node.operator, Read) and facts.streams(node),
    )


def _contention(profile: Profile) -> float:
    """Return the factor by which contention with other tasks may make a call longer than its CPU time."""
    work = sum(f.cpu * f.rows for f in profile.operators.values())
    locked = sum(f.cpu * f.rows * (f.gil or 0.0) for f in profile.operators.values())
    share = locked / work if work and profile.executor != "processes" else 0.0
    return max(1.0, profile.workers / max(1, profile.machine.cores), profile.workers * share) * 1.2


def _median_cpu(facts: Facts, profile: Profile) -> float:
    """Return the median CPU time per row of the measured row operators."""
    import statistics

    stream = {
        facts.ordinals.get(id(n)) for n in graph.walk(facts.logical) if isinstance(n.operator, StreamOperator | Read)
    }
    known = [f.cpu for ordinal, f in profile.operators.items() if f.rows and ordinal not in stream]
    return statistics.median(known) if known else 0.0


@dataclass(frozen=True)
class DataFlow:
    """Row rates, column sizes and needed columns of every node, by node id.

    Args:
        rate: output rows per row read from the sources.
        sizes: decoded bytes per row of each output column.
        needs: the output columns that later operators use; None means all.
    """

    rate: dict[int, float]
    sizes: dict[int, dict[str, float]]
    needs: dict[int, Names]


def find_flow(root: Node, facts: Facts, loads: dict[int, Load]) -> DataFlow:
    """Compute rates and sizes from the sources up, and needed columns from the output down."""
    nodes = list(graph.walk(root))
    shares = _source_shares(nodes, facts)
    rate: dict[int, float] = {}
    sizes: dict[int, dict[str, float]] = {}
    for node in nodes:
        rates = [rate[id(child)] for child in node.inputs]
        below = [sizes[id(child)] for child in node.inputs]
        rate[id(node)] = _rate(node, facts, loads, rates, shares)
        sizes[id(node)] = _sizes(node, loads, rates, below)
    return DataFlow(rate, sizes, live_columns(root))


# ---- rows ------------------------------------------------------------------------------------------------------------


def _source_shares(nodes: list[Node], facts: Facts) -> dict[int, float]:
    """Return each source's measured share of the rows read. The inputs of a zip count as equally many rows."""
    sources = [node for node in nodes if isinstance(node.operator, Read)]
    figures = {id(node): facts.figures(node) for node in sources}
    rows = {key: float(figure.rows) if figure else 0.0 for key, figure in figures.items()}
    for node in nodes:
        if node.row_use.rows == "paired":
            _equalize_sides(node, rows)
    total = sum(rows.values())
    return {key: count / total if total else 1 / len(rows) for key, count in rows.items()}


def _equalize_sides(node: Node, rows: dict[int, float]) -> None:
    """Scale the sides of a zip to equal row counts, since a side may have been read without being measured."""
    sides = [{id(source) for source in graph.sources(child)} for child in node.inputs]
    if sum(map(len, sides)) > len(set().union(*sides)):
        return  # the sides read the same source
    most = max(sum(rows[key] for key in side) for side in sides)
    for side in sides:
        have = sum(rows[key] for key in side)
        for key in side:
            rows[key] = rows[key] * most / have if have else most / len(side)


def _rate(node: Node, facts: Facts, loads: dict[int, Load], below: list[float], shares: dict[int, float]) -> float:
    operator = node.operator
    if isinstance(operator, Read):
        kept = shares[id(node)]
        for each in operator.where if isinstance(operator, Scan) else ():
            kept *= loads[id(each)].keep
        return kept
    if node.row_use.rows == "paired":
        return min(below)
    if node.row_use.rows in ("drawn", "joined"):
        return _measured_rate(node, facts) or sum(below)
    return sum(below) * loads[id(node)].keep


def _measured_rate(node: Node, facts: Facts) -> float | None:
    """Return output rows per row read, measured at the nearest operator above that has figures; None without one."""
    assert facts.profile is not None
    ordinal = facts.ordinal(node)
    if ordinal is None or not facts.profile.rows:
        return None
    above = {id(child): parent for parent in graph.walk(facts.logical) for child in parent.inputs}
    current = above.get(id(node.logical))
    while current is not None:
        figures = facts.figures(current)
        if figures is not None and figures.rows:
            return figures.rows / facts.profile.rows
        current = above.get(id(current))
    return None


# ---- bytes -----------------------------------------------------------------------------------------------------------


def _sizes(node: Node, loads: dict[int, Load], rates: list[float], below: list[dict[str, float]]) -> dict[str, float]:
    operator, load = node.operator, loads[id(node)]
    if isinstance(operator, Read):
        columns = operator.columns if isinstance(operator, Scan) else None
        kept = load.columns if columns is None else chosen_fields(columns, load.columns)
        return {name: size for name, size in load.columns.items() if name in kept}
    if isinstance(operator, RowOperator):
        return after(operator.effects(), load, below[0])
    names = {name for sizes in below for name in sizes}
    if node.row_use.rows == "paired" or len(below) == 1:
        return {name: max(sizes.get(name, 0.0) for sizes in below) for name in names}
    total = sum(rates) or 1.0
    return {
        name: sum(rate * sizes.get(name, 0.0) for rate, sizes in zip(rates, below, strict=True)) / total
        for name in names
    }


def after(effects: Effects, load: Load, before: dict[str, float]) -> dict[str, float]:
    """Return the column sizes after a row operator."""
    if not load.measured:
        return before
    if effects.writes is None:
        return dict(load.columns) if load.columns else before
    kept = {n: size for n, size in before.items() if effects.survivors is None or n in effects.survivors}
    written = {n: load.columns.get(n, 0.0) for n in effects.writes}
    return {n: size for n, size in (kept | written).items() if size}


def core_seconds(facts: Facts) -> float:
    """Return a graph's estimated CPU seconds per row read, from the profile in ``facts``."""
    loads = find_loads(facts.root, facts)
    rate = find_flow(facts.root, facts, loads).rate
    total = 0.0
    for node in graph.walk(facts.root):
        entering = sum(rate[id(child)] for child in node.inputs) if node.inputs else 1.0
        for inside in node.operator.where if isinstance(node.operator, Scan) else ():
            total += entering * loads[id(inside)].cpu
            entering *= loads[id(inside)].keep
        total += entering * loads[id(node)].cpu if node.inputs else 0.0
    return total
