"""The stages that a plan runs in, as text: what each does, and where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cedar.datasets.base import Read
from cedar.graph import Node
from cedar.plan.data import Plan
from cedar.plan.scan import Scan, chosen_fields
from cedar.plan.stages import Stage
from cedar.report.text import chained

_METHODS = {
    "as written": "as written",
    "rules": "by rules, before measuring",
    "exact": "exact search",
    "beam": "beam search",
    "loaded": "loaded",
}


def physical_lines(plan: Plan, stages: Sequence[Stage], nodes: Mapping[str, Node]) -> list[str]:
    """A numbered line a stage.

    Args:
        plan: for the places, and for what its scans read.
        stages: in the order in which rows pass them.
        nodes: of the graph that runs, by the labels that the stages call them.
    """
    places = [_place(stage, nodes, plan) for stage in stages]
    width = max(map(len, places), default=0)
    lines = [f"PHYSICAL PLAN ({_title(plan)})"]
    for number, (stage, place) in enumerate(zip(stages, places, strict=True), 1):
        first = f"{number:>3}. {stage.kind:<6}  " + (f"{place:<{width}}  " if width else "")
        parts = [_named(label, nodes.get(label)) for label in stage.operators]
        lines += chained(first, parts or ["gather"], stage.detail)
    return lines


def _title(plan: Plan) -> str:
    workers = "" if plan.workers is None else f", {plan.workers} worker(s)"
    return _METHODS[plan.method] + workers


def _place(stage: Stage, nodes: Mapping[str, Node], plan: Plan) -> str:
    """The executor of a stage; nothing where the run decides."""
    if stage.kind == "stream":
        return ""
    places = [nodes[label].place for label in stage.operators if label in nodes]
    return next(filter(None, places), plan.executor)


def _named(label: str, node: Node | None) -> str:
    """A label, with what a scan leaves out."""
    if node is None or not isinstance(node.operator, Scan):
        return label
    scan, told = node.operator, []
    if scan.columns is not None:
        known = Read(scan.source).schema()
        of = "" if known is None else f" of {len(known)}"
        chosen = chosen_fields(scan.columns, known or ())
        told.append(f"{len(chosen)}{of} columns")
        told += [f"of {name} only {', '.join(paths)}" for name, paths in chosen.items() if paths]
    if scan.where:
        told.append("where " + " and ".join(each.operator.label()[len("filter(") : -1] for each in scan.where))
    return f"{label} {{{'; '.join(told)}}}" if told else label
