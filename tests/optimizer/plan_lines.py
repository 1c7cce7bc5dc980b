"""A plan's graph on one line, for tests of rewrites."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import cedar
from cedar.operators.expression_nodes import format_expr
from cedar.operators.expressions import FilterExpression
from cedar.optimizer.rewrite import rewrite
from cedar.plan.data import Decision
from cedar.plan.graph import Node, Scan
from cedar.plan.steps.step import facts_of
from cedar.plan.steps.sweep import key_of, replay
from cedar.profile import Machine, OperatorProfile, Profile


def table(*names: str, rows: int = 4) -> cedar.Pipeline:
    """A pipeline over columns of integers."""
    return cedar.from_arrow(pa.table({name: pa.array(range(rows), pa.int64()) for name in names}))


def line(node: Node) -> str:
    """Such as ``read[a,b where y > 3] -> map(f) -> batch``."""
    label = _label(node)
    if not node.inputs:
        return label
    if len(node.inputs) == 1:
        return f"{line(node.inputs[0])} -> {label}"
    return f"{label}({', '.join(line(child) for child in node.inputs)})"


def _label(node: Node) -> str:
    operator = node.operator
    if isinstance(operator, Scan):
        where = " and ".join(_predicate(n.operator) for n in operator.where)
        return f"read[{','.join(operator.columns or ('*',))}{' where ' * bool(where)}{where}]"
    if isinstance(operator, FilterExpression):
        return f"filter({_predicate(operator)})"
    if operator.name in ("map", "filter", "flat_map", "select", "drop", "rename", "with_columns", "take"):
        return operator.label()
    return operator.name


def _predicate(operator: Any) -> str:
    return format_expr(operator.predicate).translate(str.maketrans("", "", '[]()"')).replace("col", "")


def rewritten(
    pipeline: cedar.Pipeline,
    *rules: Any,
    skips: Any = lambda node: False,
    profile: Profile | None = None,
    refused: frozenset[str] = frozenset(),
    **more: Any,
) -> tuple[Node, list[Decision]]:
    """The graph after some rules, and what they did."""
    facts = facts_of(pipeline.node, pipeline.node, skips, profile, refused=refused, **more)
    done = rewrite(facts, rules)
    assert key_of(replay(facts, done.sweeps), facts.ordinals) == key_of(done.root, facts.ordinals)
    return done.root, list(done.decisions)


def after(pipeline: cedar.Pipeline, *rules: Any, **more: Any) -> str:
    """The line of the graph after some rules."""
    return line(rewritten(pipeline, *rules, **more)[0])


def decided(pipeline: cedar.Pipeline, *rules: Any, **more: Any) -> list[str]:
    """What some rules did and refused."""
    return [str(decision) for decision in rewritten(pipeline, *rules, **more)[1]]


def measured(**figures: dict[int, float]) -> Profile:
    """A profile of some figures of some operators, by their ordinals: ``measured(cpu={1: 1e-3}, keep={2: 0.1})``."""
    ordinals = sorted({n for by_operator in figures.values() for n in by_operator})
    operators = {
        n: OperatorProfile(**({"label": "", "calls": 1, "rows": 1, "wall": 0.0, "cpu": 0.0} | _of(figures, n)))
        for n in ordinals
    }
    return Profile("", operators, Machine(cores=1, memory=1))


def _of(figures: dict[str, dict[int, float]], ordinal: int) -> dict[str, Any]:
    return {name: by_operator[ordinal] for name, by_operator in figures.items() if ordinal in by_operator}
