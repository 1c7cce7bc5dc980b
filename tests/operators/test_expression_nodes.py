"""Expressions as nodes and back."""

from __future__ import annotations

import functools
import operator
from typing import Any

import polars as pl
import polars.selectors as cs
import pytest

import cedar
from cedar import PipelineError, col
from cedar.operators.expression_nodes import expression, literal_value, tree

NUMBERS = [float("nan"), float("inf"), -float("inf"), -0.0, 123456789.12345679, 5e-324, 2**70, -(2**63), 0.1]


@pytest.mark.parametrize("number", NUMBERS, ids=str)
def test_the_same_to_the_last_bit(number: float) -> None:
    exprs = [
        pl.col("x").fill_null(number), pl.lit(number), pl.col("x").is_in([1.0, float(number)]),
        cs.float().clip(0, number), pl.struct(a=pl.lit(number)), pl.col("t").list.eval(pl.element() + number),
    ]  # fmt: skip
    for expr in exprs:
        again = expression(tree(expr))
        assert again.meta.serialize(format="binary") == expr.meta.serialize(format="binary")


@pytest.mark.heavy
@pytest.mark.parametrize("number", NUMBERS, ids=str)
def test_literals_beside_sums_of_lists_and_selectors(number: float) -> None:
    frame = pl.DataFrame({"t": [[1.5, None], [], None, [2.0]], "x": [1.0, None, -0.0, None]})
    exprs = [
        pl.col("t").list.mean().fill_null(float(number)), pl.col("t").list.sum() * 0 + number,
        cs.float().fill_null(float(number)), pl.col("x", "x2").clip(number),
    ]  # fmt: skip
    frame = frame.with_columns(x2="x")
    for expr in exprs:
        wanted = frame.select(expr)
        found = list(cedar.from_polars(frame).select(expr).loader())
        assert str(found) == str(wanted.to_dicts()) or pl.DataFrame(found).equals(wanted), expr


def test_what_looks_at_other_rows_beside_numbers_that_json_lacks_is_refused() -> None:
    p = cedar.from_items([{"x": 1.0, "a": 1, "b": 2, "u": 3}] * 5)
    for expr in ((col("x") < float("inf")) & col("a").is_in("b"), (col("x") + float("nan") > 0) | col("a").is_in("b")):
        with pytest.raises(PipelineError, match="is_in.* depends on other rows"):
            list(p.filter(expr).loader())
    named = (pl.lit(2) + cs.by_name("a", "u")).is_in(pl.col("b")).name.keep()  # both results are called "literal"
    with pytest.raises(PipelineError, match="is_in.* depends on other rows"):
        list(p.select(named).loader())


def test_lists_of_several_columns_are_judged_each() -> None:
    p = cedar.from_items([{"a": [1, 2], "b": [0.5]}] * 3)
    assert next(iter(p.select(pl.col("a", "b").list.eval(pl.element() * 2)).loader())) == {"a": [2, 4], "b": [1.0]}
    with pytest.raises(PipelineError, match="changes the sign"):
        list(p.select(pl.col("a", "b").list.eval(pl.element() + 0)).loader())


@pytest.mark.parametrize("terms", [100, 300, 450, 500, 600, 2000])
def test_long_sums_work_or_are_refused_by_name(terms: int) -> None:
    row: dict[str, Any] = {f"f{i}": i for i in range(terms)} | {"t": [1.0, 2.0]}
    total = functools.reduce(operator.add, [col(f"f{i}") for i in range(terms)]) + col("t").list.sum()
    try:
        found = next(iter(cedar.from_items([row] * 2).select(y=total).loader()))
    except PipelineError as error:
        assert "too many operators" in str(error)  # noqa: PT017 - by how deep Python is already
        assert terms > 100
    else:
        assert found == {"y": terms * (terms - 1) // 2 + 3.0}


def test_whole_numbers_of_sixteen_bytes() -> None:
    for number in (0, -3, 2**63 + 5, -(2**100)):
        ((kind, given),) = tree(pl.lit(number))["Literal"]["Dyn"].items()
        assert literal_value(kind, given) == number
    assert literal_value("String", "x") == "x"
