"""Fits: whether a saved plan is one of this pipeline: the same operators, connected alike, with the same effects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cedar.core.digests import digest_of
from cedar.core.errors import PlanError
from cedar.plan import graph
from cedar.plan.graph import Node

_AGAIN = "optimize this pipeline and save that plan"


def operator_entries(logical: Sequence[Node]) -> list[dict[str, Any]]:
    """The pipeline as written, an entry per operator: its label, and a digest of what a plan goes by."""
    ordinals = {id(node): i for i, node in enumerate(logical)}
    found = []
    for node in logical:
        operator, effects = node.operator, node.effects
        entry: dict[str, Any] = {"is": operator.label()}
        if node.inputs:  # data may change
            inputs = [ordinals[id(child)] for child in node.inputs]
            names = [None if n is None else sorted(n) for n in (effects.reads, effects.writes, effects.keeps)]
            does = [effects.rows, effects.random, effects.algebra]
            entry["digest"] = graph.digest([operator.name, inputs, operator.parameters(), names, does])
        if operator.code():
            entry["code"] = graph.digest([digest_of(item, data=False) for item in operator.code()])
        found.append(entry)
    return found


def check_pipeline(saved: Sequence[Mapping[str, Any]], logical: Sequence[Node]) -> list[str]:
    """Compares operator by operator; the labels of those whose code changed.

    Raises:
        PlanError: the first operator that is another one, or is connected in another way.
    """
    changed = []
    for number, (mine, node) in enumerate(zip(operator_entries(logical), logical, strict=True)):
        if number >= len(saved):
            raise PlanError(
                f"the plan is of a pipeline of {len(saved)} operators; this one has {mine['is']} besides",
                site=node.site,
                fix=_AGAIN,
            )
        theirs = saved[number]
        if _kind(theirs) != _kind(mine):
            raise PlanError(
                f"operator {number} of the plan is {theirs.get('is')}, the pipeline has {mine['is']} there",
                site=node.site,
                fix=_AGAIN,
            )
        if theirs.get("digest") != mine.get("digest"):
            raise PlanError(
                f"operator {number}, {mine['is']}, has other inputs, parameters or effects than {theirs['is']} of the "
                "plan",
                site=node.site,
                fix=_AGAIN,
            )
        if theirs.get("code") != mine.get("code"):
            changed.append(str(mine["is"]))
    if len(saved) > len(logical):
        extra = saved[len(logical)].get("is")
        raise PlanError(
            f"operator {len(logical)} of the plan is {extra}; the pipeline has only {len(logical)} operators",
            site=logical[-1].site,
            fix=_AGAIN,
        )
    return changed


def _kind(entry: Mapping[str, Any]) -> str:
    """``map`` of ``map(decode)``: functions, values and places may have other names."""
    return str(entry.get("is")).partition("(")[0]
