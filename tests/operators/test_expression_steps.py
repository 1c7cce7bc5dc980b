"""Steps of expressions, compiled: their columns and types, and rows that are worked on as if alone."""

from __future__ import annotations

from typing import Any

import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pytest

import cedar
from cedar import col
from cedar.core.columns import OBJECT, UNKNOWN, TensorType
from cedar.core.errors import PipelineError
from cedar.operators.base import RowOperator
from cedar.operators.expression_kernel import run as run_program
from cedar.operators.expression_steps import AddColumns, DropColumns, KeepRows, compile_steps
from cedar.operators.expressions import Drop, FilterExpression, rename, select, with_columns
from tests.operators.toy_expressions import BLAME, one_by_one, sample
from tests.toy_blocks import SITE, block, run


def test_columns_that_are_missing_or_unreadable() -> None:
    cases: list[tuple[RowOperator, str]] = [
        (with_columns(x=col("aa") + 1), "no column 'aa'; the columns are 'a'"),
        (FilterExpression(col("q") > 1), "no column 'q'"),
        (select("zz"), "no column 'zz'"),
        (Drop(("aa",)), "no column 'aa'"),
        (rename({"aa": "b"}), "no column 'aa'"),
        (with_columns(x=col("t") + 1), "column 't' of float64"),
        (with_columns(x=col("o") == 1), "column 'o' of object"),
        (with_columns(x=pl.all()), "of float64|of object"),
        (with_columns(s=col("s") * 2), "does not fit its columns"),
        (FilterExpression(col("a")), "gives int64, not a boolean"),
    ]
    for operator, message in cases:
        with pytest.raises(PipelineError, match=message) as caught:
            run(operator, sample())
        assert caught.value.site == SITE
        with pytest.raises(PipelineError, match=message):
            operator.schema(sample().types)


def test_a_field_that_a_struct_has_not() -> None:
    rows = block(s=[{"u": 1, "v": {"other": 2}}], t=[{"else": 1}])
    for expr in (col("s").struct.field("uu"), col("s").struct.field("v").struct.field("uu") + 1):
        for operator in (select(x=expr), with_columns(x=expr), FilterExpression(expr > 1)):
            with pytest.raises(PipelineError, match="there is no field 'uu'; the fields are 'u', .*'other'") as caught:
                run(operator, rows)
            assert (caught.value.site, caught.value.fix) == (SITE, "did you mean 'u'?")
            assert "else" not in caught.value.what


def test_schemas_tell_without_running() -> None:
    types = sample().types | {"u": UNKNOWN}
    known = with_columns(a=col("a") / 2, b=col("u") + 1, ids=col("ids").list.len()).schema(types)
    assert known == types | {"a": pa.float64(), "b": UNKNOWN, "ids": pa.uint32()}
    assert select("t", "u", x=col("s").str.len_chars()).schema(types) == {
        "t": TensorType((2,), "float64"),
        "u": UNKNOWN,
        "x": pa.uint32(),
    }
    assert with_columns(cs.numeric() * 2).schema(types) is None  # a selector by type, and a type unknown
    assert select("a", b=col("a")).schema(None) == {"a": UNKNOWN, "b": UNKNOWN}
    assert select(cs.numeric()).schema(None) is None
    assert with_columns(a=1).schema(None) is None
    assert FilterExpression(col("u") > 1).schema(types) == types
    assert rename({"a": "b"}).schema({"a": pa.int64()}) == {"b": pa.int64()}
    assert Drop(("a",)).schema({"a": pa.int64(), "o": OBJECT}) == {"o": OBJECT}
    assert Drop(("a",)).schema(None) is None


def test_what_fails_on_every_row_is_refused_without_running() -> None:
    types = {"s": pa.large_string(), "n": pa.int64(), "b": pa.large_binary(), "u": pa.uint8(), "z": pa.null()}
    for expr in (col("s") == 5, col("n") == "5", col("s") > col("n"), col("b") == col("n"), -col("u")):
        for operator in (FilterExpression(expr), with_columns(x=expr), select(x=expr)):
            with pytest.raises(PipelineError, match="fails on every row") as caught:
                operator.schema(types)
            assert caught.value.fix
    with pytest.raises(PipelineError, match="fails on every row"):
        select(x=col("z").str.strip_chars()).schema(types)
    assert select(x=col("s").cast(pl.Int64)).schema(types) == {"x": pa.int64()}, "on some rows"
    rows = cedar.from_items([{"s": "a"}]).filter(col("s") == 5)
    with pytest.raises(PipelineError, match="fails on every row"):
        rows.explain()


def test_types_hold_in_every_block() -> None:
    operators = [with_columns(a=col("a") / 2, s=col("s").str.split(","), d=pl.date(2020, 1, 1), c=pl.lit("x"))]
    for part in (sample(), sample().slice(0, 0), sample().slice(3, 4)):
        out = one_by_one(operators, part)  # type: ignore[arg-type]
        assert out.types == operators[0].schema(sample().types)


X = pl.col("x")


@pytest.mark.parametrize(
    "steps",
    [
        (AddColumns((("z", X + 0),), BLAME),),
        (KeepRows(X < 1, BLAME), AddColumns((("z", X + 0),), BLAME)),
        (
            KeepRows(X < 1, BLAME),
            DropColumns(("y",), BLAME),
            AddColumns((("k", X),), BLAME),
            AddColumns((("z", pl.col("k") + 0),), BLAME),
        ),
        (AddColumns((("k", pl.lit(-0.0)),), BLAME), AddColumns((("z", pl.col("k") + 0),), BLAME)),
    ],
    ids=["alone", "filtered", "renamed", "constant"],
)
def test_one_row_is_worked_on_as_many_are(steps: tuple[Any, ...]) -> None:
    """-0.0 + 0 is 0.0 for polars if there is one row, or one value for all, and -0.0 if there are more."""
    for values in ([-0.0], [-0.0, 5.0], [-0.0, -0.0, 5.0], [-0.0, 0.5, 0.25, 9.0]):
        given = block(x=pa.array(values), y=pa.array(values))
        done = run_program(compile_steps(steps, tuple(given.types.items())), given)
        left = [value for value in values if value < 1 or not isinstance(steps[0], KeepRows)]
        assert done.columns["x"].to_pylist() == left
        assert len(done) == len(done.columns["z"]) == len(left)
        assert repr(done.columns["z"][0].as_py()) == "-0.0"


def test_sums_of_lists_do_not_depend_on_nulls_of_other_rows() -> None:
    """Polars adds up in another order once any list of the block holds a null."""
    items = [1e16, 1.0, -1e16, 1e-3, 3.0, 1e8] * 40
    for expr in (pl.col("t").list.sum(), pl.col("t").list.mean()):
        steps = (AddColumns((("r", expr),), BLAME),)
        seen = set()
        for rows in ([items], [items, [1.0, None]], [[None], items], [None, items, []]):
            given = block(t=pa.array(rows, pa.large_list(pa.float64())))
            done = run_program(compile_steps(steps, tuple(given.types.items())), given).columns["r"]
            seen.add(repr(done[rows.index(items)].as_py()))
        assert len(seen) == 1


def test_integers_of_128_bits_are_refused_by_name() -> None:
    given = block(i=pa.array([1], pa.int64()), u=pa.array([1], pa.uint64()))
    with pytest.raises(PipelineError, match="gives what no column holds"):
        compile_steps((AddColumns((("r", pl.col("i") + pl.col("u")),), BLAME),), tuple(given.types.items()))
