"""Methods for operators that work row by row: each builds its own, at the user's line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cedar
from cedar import Pipeline, col

ROWS = [{"x": 1, "y": [1]}, {"x": 5, "y": []}, {"x": 3, "y": [1, 2, 3]}]

METHODS: dict[str, tuple[Callable[[Pipeline], Pipeline], str, list[Any]]] = {
    "map": (lambda p: p.map(lambda x: -x, "x", into="z").select("z"), "select", [{"z": z} for z in (-1, -5, -3)]),
    "map of rows": (lambda p: p.map(lambda row: {"n": len(row["y"])}), "map", [{"n": n} for n in (1, 0, 3)]),
    "flat_map": (
        lambda p: p.select("y").flat_map(lambda y: y, "y", into="i").select("i"), "select",
        [{"i": i} for i in (1, 1, 2, 3)],
    ),
    "filter by a function": (lambda p: p.filter(lambda x, y: x > len(y), "x", "y").select("x"), "select", [{"x": 5}]),
    "filter by an expression": (lambda p: p.select("x").filter(col("x") >= 3), "filter", [{"x": 5}, {"x": 3}]),
    "map_batches": (
        lambda p: p.select("x").map_batches(lambda c: {"x": c["x"] * 2}, "x", format="numpy"), "map_batches",
        [{"x": x} for x in (2, 10, 6)],
    ),
    "with_columns": (
        lambda p: p.select("x").with_columns(z=col("x") + 1), "with_columns",
        [{"x": 1, "z": 2}, {"x": 5, "z": 6}, {"x": 3, "z": 4}],
    ),
    "select": (lambda p: p.select(z=col("x") % 2), "select", [{"z": 1}] * 3),
    "drop and rename": (lambda p: p.drop("y").rename({"x": "w"}), "rename", [{"w": w} for w in (1, 5, 3)]),
    "cache": (lambda p: p.select("x").cache("memory"), "cache", [{"x": x} for x in (1, 5, 3)]),
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_methods_do_what_their_names_say(name: str) -> None:
    build, operator, expected = METHODS[name]
    p = build(cedar.from_items(ROWS))
    assert list(p.loader(executor="inline")) == expected
    assert p.node.operator.name == operator
    assert p.node.site is not None
    assert p.node.site.file == __file__


def test_pad_takes_columns_a_length_and_a_value() -> None:
    p = cedar.from_items(ROWS).pad("y", to=3, value=-1)
    assert [row["y"].tolist() for row in p] == [[1, -1, -1], [-1, -1, -1], [1, 2, 3]]


def test_a_cache_takes_a_path(tmp_path: Path) -> None:
    p = cedar.from_items(ROWS).cache(tmp_path / "kept")
    assert repr(str(tmp_path / "kept")) in p.explain()
    with pytest.raises(cedar.PipelineError, match="invalid location"):
        cedar.from_items(ROWS).cache(3)  # type: ignore[arg-type]


def test_an_expression_names_its_columns_itself() -> None:
    with pytest.raises(cedar.PipelineError, match=r"filter\(expression, 'x'\)") as caught:
        cedar.from_items(ROWS).filter(col("x") > 1, "x", "y")
    assert caught.value.site is not None
    assert caught.value.site.file == __file__


def test_new_names_are_given_by_a_dict_or_by_keywords() -> None:
    rows = cedar.from_items([{"a": 1, "b": 2}])
    assert list(rows.rename({"a": "x"}, b="y")) == [{"x": 1, "y": 2}]
    for wrong in (lambda: rows.rename("a", new="b"), lambda: rows.rename("a"), lambda: rows.rename()):
        with pytest.raises(cedar.PipelineError, match="is not a dict of old to new names"):
            wrong()
