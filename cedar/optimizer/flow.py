"""Data flow: how many rows pass each edge of a graph, and the sizes of their columns."""

from __future__ import annotations

from dataclasses import dataclass

from cedar.datasets.base import Read
from cedar.operators.base import Effects, RowOperator
from cedar.optimizer.facts import Facts
from cedar.optimizer.loads import Load, find_loads
from cedar.plan import graph
from cedar.plan.graph import Node
from cedar.plan.scan import Scan, chosen_fields
from cedar.plan.steps.live import Names, live_columns


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
    return DataFlow(rate, sizes, live_columns(root, graph.schemas(root)))


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
    """Return a graph's estimated CPU seconds per row read; 0 before anything is measured."""
    if facts.profile is None:
        return 0.0
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
