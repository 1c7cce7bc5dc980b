"""The fields of struct columns that a source has to read."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import cedar
from cedar import col
from cedar.plan import graph
from cedar.plan.steps.pushdown import fields_read, live_fields
from cedar.plan.steps.step import facts_of

B = col("a").struct.field("b")
E = col("a").struct.field("d").struct.field("e")


def whole(a: Any) -> int:
    return 1


def source() -> cedar.Pipeline:
    return cedar.from_arrow(pa.table({"a": [{"b": 1, "c": 2, "d": {"e": 3, "f": 4}}], "y": [1]}))


LIVE: list[tuple[Any, Any]] = [
    (lambda p: p.select(s=B), {("b",)}),
    (lambda p: p.select(s=B + E), {("b",), ("d", "e")}),
    (lambda p: p.filter(E > 1).select("y"), {("d", "e")}),
    (lambda p: p.rename({"a": "k"}).select(s=col("k").struct.field("c")), {("c",)}),
    (lambda p: p.with_columns(a=B).select("a"), {("b",)}),
    (lambda p: p.map(whole, "y").drop("a"), set()),
    (lambda p: p.select("a"), None),  # it leaves the plan
    (lambda p: p.map(whole, "a", into="s").select("s"), None),
    (lambda p: p.select(s=B, n=col("a").is_null()), None),
    (lambda p: p.cache("memory").select(s=B), None),
    (lambda p: cedar.concat(p, p).select(s=B), None),  # its inputs must stay alike
]


@pytest.mark.parametrize(("make", "expected"), LIVE)
def test_fields_that_are_read_further_up(make: Any, expected: Any) -> None:
    root = make(source()).node
    facts = facts_of(root, root, lambda node: False)
    assert live_fields(graph.sources(root)[0], "a", facts) == expected


def test_fields_that_an_expression_reads() -> None:
    node = source().select(s=B + E, y="y").node
    assert fields_read(node, "a") == {("b",), ("d", "e")}
    assert fields_read(source().select(n=col("a").is_null()).node, "a") is None
    assert fields_read(source().select(n=col("y") + 1).node, "a") == frozenset()
