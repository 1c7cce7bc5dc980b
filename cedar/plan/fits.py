"""Fits: whether a saved plan is one of this pipeline: the same operators, connected alike, with the same effects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cedar import graph
from cedar.digests import digest_of
from cedar.errors import PlanError
from cedar.graph import Node
from cedar.operators.base import Operator

_LONG = 200  # parameters of more characters are written as a digest
_AGAIN = "optimize this pipeline and save that plan"


def operator_entries(logical: Sequence[Node]) -> list[dict[str, Any]]:
    """The pipeline as written, an entry per operator: what a plan was made for."""
    ordinals = {id(node): i for i, node in enumerate(logical)}
    found = []
    for number, node in enumerate(logical):
        operator, effects = node.operator, node.operator.effects()
        entry: dict[str, Any] = {"op": number, "is": operator.label()}
        if node.inputs:
            entry["inputs"] = [ordinals[id(child)] for child in node.inputs]
            entry["parameters"] = _parameters(operator)
            if not entry["parameters"]:
                del entry["parameters"]
        if effects.rows != "stream" and node.inputs:
            entry["reads"] = None if effects.reads is None else sorted(effects.reads)
            entry["writes"] = None if effects.writes is None else sorted(effects.writes)
            entry["rows"] = effects.rows
            entry |= {"random": True} if effects.random else {}
            entry |= {"keeps": sorted(effects.keeps)} if effects.keeps is not None else {}
            entry |= {"algebra": effects.algebra} if effects.algebra is not None else {}
        if operator.code():
            entry["code"] = graph.digest([digest_of(item, data=False) for item in operator.code()])
        found.append(entry)
    return found


def _parameters(operator: Operator) -> Any:
    text = json.dumps(operator.parameters(), sort_keys=True, default=repr)
    return json.loads(text) if len(text) <= _LONG else graph.digest(text)


def check_pipeline(saved: Sequence[Mapping[str, Any]], logical: Sequence[Node]) -> list[str]:
    """Compares operator by operator; the labels of those whose code changed.

    Raises:
        PlanError: the first operator that is another one, or is connected in another way.
    """
    changed = []
    for number, mine in enumerate(operator_entries(logical)):
        node = logical[number]
        if number >= len(saved):
            raise PlanError(
                f"the plan is of a pipeline of {len(saved)} operators; this one has {mine['is']} besides",
                site=node.site,
                fix=_AGAIN,
            )
        theirs = saved[number]
        _compare(number, theirs, mine, node)
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


def _compare(number: int, theirs: Mapping[str, Any], mine: Mapping[str, Any], node: Node) -> None:
    if _kind(str(theirs.get("is"))) != _kind(str(mine["is"])):
        raise PlanError(
            f"operator {number} of the plan is {theirs.get('is')}, the pipeline has {mine['is']} there",
            site=node.site,
            fix=_AGAIN,
        )
    for key, what in (
        ("inputs", "draws from operators"), ("parameters", "has the parameters"), ("reads", "reads"),
        ("writes", "writes"), ("rows", "gives rows"), ("random", "is random:"), ("keeps", "keeps"),
        ("algebra", "has the algebra"),
    ):  # fmt: skip
        if theirs.get(key) != mine.get(key):
            raise PlanError(
                f"operator {number}, {mine['is']}, {what} {_said(key, mine)}; in the plan {_said(key, theirs)}",
                site=node.site,
                fix=_AGAIN,
            )


def _kind(label: str) -> str:
    """``map`` of ``map(decode)``: functions, values and places may have other names."""
    return label.partition("(")[0]


def _said(key: str, entry: Mapping[str, Any]) -> str:
    value = entry.get(key)
    if value is None and key in ("reads", "writes"):
        return "the whole row"
    return f"{value!r:.200}"
