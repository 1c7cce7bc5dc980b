from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar import Skip, col
from cedar.core.block import Block
from cedar.core.cursor import Keys
from cedar.core.errors import PipelineError
from cedar.operators.base import Bound
from cedar.operators.expressions import (
    Drop,
    FilterExpression,
    Rename,
    Select,
    WithColumns,
    rename,
    select,
    with_columns,
)
from tests.operators.toy_expressions import ROWS, one_by_one, sample
from tests.toy_blocks import SITE, block, run, values


def test_with_columns_adds_and_replaces_in_place() -> None:
    out = run(with_columns(a=col("a").fill_null(0) * 2, k=3, copy="a", text=pl.lit("q")), sample())
    assert list(out.columns) == ["a", "s", "t", "ids", "o", "k", "copy", "text"]
    assert values(out, "a") == [2, 4, 6, 0]
    assert values(out, "copy") == [1, 2, 3, None]  # all expressions see the columns as they came
    assert values(out, "k") == [3, 3, 3, 3]
    assert values(out, "text") == ["q"] * 4


def test_untouched_columns_are_the_same_objects() -> None:
    given_block = sample()
    out = run(with_columns(b=col("a") + 1), given_block)
    assert all(out.columns[name] is given_block.columns[name] for name in given_block.columns)


def test_many_columns_at_once() -> None:
    given_block = block(d1=[1.0, None], d2=[None, 2.0], e=[1, 2])
    out = run(with_columns(col("^d\\d$").fill_null(0.0)), given_block)
    assert (values(out, "d1"), values(out, "d2"), values(out, "e")) == ([1.0, 0.0], [0.0, 2.0], [1, 2])
    out = run(with_columns(cs.numeric().name.suffix("_2") * 2), given_block)
    assert list(out.columns) == ["d1", "d2", "e", "d1_2", "d2_2", "e_2"]
    with pytest.raises(PipelineError, match="does not fit"):
        run(with_columns(x=col("^d\\d$")), given_block)
    assert list(run(select("*", k=1), given_block).columns) == ["d1", "d2", "e", "k"]
    assert list(run(select(cs.by_name("*")), block(**{"*": [1], "a": [2]})).columns) == ["*"]


def test_select_orders_computes_and_drops() -> None:
    given_block = sample()
    out = run(select("t", col("a").alias("b"), cs.integer() * 2, n=pl.lit(1)), given_block)
    assert list(out.columns) == ["t", "b", "a", "n"]
    assert out.columns["t"] is given_block.columns["t"]
    assert (values(out, "b"), values(out, "a"), values(out, "n")) == ([1, 2, 3, None], [2, 4, 6, None], [1] * 4)
    out = run(select(["s", "a"]), given_block)
    assert list(out.columns) == ["s", "a"]
    assert values(run(select("^(a|s)$"), given_block), "a") == [1, 2, 3, None]
    assert values(run(select(n=3), given_block), "n") == [3] * 4
    for again in (("a", "a"), ("a", col("a") + 1)):
        with pytest.raises(PipelineError, match="'a'"):
            run(select(*again), given_block)


@pytest.mark.parametrize("rows", [[5], [3, 17], range(100), np.arange(2)])
def test_select_takes_no_numbers_of_rows(rows: Any) -> None:
    with pytest.raises(PipelineError, match="select: ") as caught:
        select(rows)
    assert isinstance(rows, np.ndarray) or "p.take(100), p.skip(i).take(n)" in (caught.value.fix or "")


def test_filter_keeps_keys_and_every_kind_of_column() -> None:
    out = run(FilterExpression(col("a") > 1), sample())
    assert values(out, "s") == ["x", "3"]
    assert values(out, "t") == [[2.0, 3.0], [4.0, 5.0]]
    assert values(out, "ids") == [[], None]
    assert values(out, "o") == ["a", None]
    assert out.keys.row.tolist() == [1, 2]


def test_filter_keeps_a_column_without_a_name() -> None:
    unnamed = Block({"a": pa.array([1, 2, 3]), "": pa.array([True, False, None])}, Keys(np.arange(3)))
    assert values(run(FilterExpression(col("a") != 2), unnamed), "") == [True, None]


def test_null_is_not_true_and_nan_is_above_all_numbers() -> None:
    given_block = block(x=pa.array([1.0, None, float("nan"), 3.0]))
    assert run(FilterExpression(col("x") > 2), given_block).keys.row.tolist() == [2, 3]
    assert run(FilterExpression(~(col("x") > 2)), given_block).keys.row.tolist() == [0]
    assert len(run(FilterExpression(pl.lit(True)), given_block)) == 4
    assert len(run(FilterExpression(pl.lit(None).cast(pl.Boolean)), given_block)) == 0


@pytest.mark.parametrize("plan", ["auto", "off"])
def test_nothing_but_nulls_is_not_true(tmp_path: Path, plan: Any) -> None:
    pq.write_table(pa.table({"x": pa.nulls(40), "id": range(40)}), tmp_path / "t.parquet", row_group_size=10)
    rows = cedar.read_parquet(tmp_path / "t.parquet").with_columns(z=col("id") * 2)
    for predicate in (col("x"), pl.lit(None), pl.when(col("id") > 0).then(None)):
        for filtered in (rows.filter(predicate), rows.filter(col("id") > 5).filter(predicate)):
            with filtered.loader(plan=plan) as loader:
                assert list(loader) == []


def test_what_is_no_expression_is_refused_at_the_users_line() -> None:
    for make in (
        lambda: with_columns(x=lambda row: row),
        lambda: with_columns(x=np.arange(3)),
        lambda: with_columns(x={"a": 1}),
        lambda: with_columns(x=pl.Series([1])),
        lambda: with_columns(x=object()),
        lambda: select(lambda row: row),
        lambda: FilterExpression(True),  # type: ignore[arg-type]
        lambda: WithColumns((("x", 3),)),  # type: ignore[arg-type]
        lambda: rename(["a"]),
        lambda: rename({"a": 3}),
        lambda: rename({"a": "c", "b": "c"}),
        lambda: Drop((3,)),  # type: ignore[arg-type]
    ):
        with pytest.raises(PipelineError) as caught:
            make()
        assert caught.value.site is not None
        assert caught.value.site.file == __file__


def test_what_is_not_row_wise_is_refused_at_the_users_line() -> None:
    for make in (
        lambda: with_columns(x=col("x") - col("x").mean()),
        lambda: FilterExpression(col("x") > col("x").mean()),
        lambda: select(col("x").cum_sum()),
    ):
        with pytest.raises(PipelineError, match="is not row-wise") as caught:
            make()
        assert caught.value.site is not None
        assert caught.value.site.file == __file__


@pytest.mark.parametrize(
    ("expr", "fix"),
    [
        (col("t").explode(empty_as_null=True), "use p.explode('x')"),
        (col("x").unique(), "use p.unique('x')"),
        (col("x").drop_nulls(), "use p.filter(col('x').is_not_null())"),
        (col("x").head(3), "use p.take(n)"),
        (col("x").shift(1), "cedar.fit for scaling and codes; otherwise compute it first"),
        (col("x").rolling_mean(3), "cedar.from_polars(p.to_polars().with_columns(...))"),
        (col("x").sum().over("k"), "cedar.from_polars("),
        (col("x").fill_null(strategy="forward"), "cedar.from_polars("),
        (col("x").value_counts(), "cedar.from_polars("),
        (col("s").cast(pl.Categorical).to_physical(), "cedar.fit for scaling and codes"),
    ],
)
def test_what_is_not_row_wise_is_answered_with_what_gives_it(expr: pl.Expr, fix: str) -> None:
    with pytest.raises(PipelineError) as caught:
        list(cedar.from_items([{"x": 1, "k": 1, "s": "a", "t": [1]}]).with_columns(y=expr))
    assert fix in (caught.value.fix or "")
    assert "size=" not in (caught.value.fix or "")


def test_sets_are_lists_or_columns_of_lists() -> None:
    given_block = block(a=[1, 2, 3], b=[1, 1, 9], ids=[[1], [1], []])
    assert values(run(with_columns(x=col("a").is_in([1, 3])), given_block), "x") == [True, False, True]
    assert values(run(with_columns(x=col("a").is_in("ids")), given_block), "x") == [True, False, False]
    with pytest.raises(PipelineError, match="is_in.. of a column of Int64 depends on other rows"):
        run(with_columns(x=col("a").is_in("b")), given_block)


def test_filters_stay_above_batches() -> None:
    with pytest.raises(PipelineError, match="after batch") as caught:
        run(FilterExpression(col("a") > 1), sample(), batched=True)
    assert "before batch()" in str(caught.value)
    assert values(run(with_columns(a=col("a") + 1), sample(), batched=True), "a") == [2, 3, 4, None]


def test_effects_and_labels() -> None:
    operator = with_columns(b=col("a") + col("c"))
    assert (operator.effects().reads, operator.effects().writes) == (frozenset({"a", "c"}), frozenset({"b"}))
    assert operator.label() == "with_columns(b)"
    assert with_columns(cs.numeric()).effects().reads is None
    assert with_columns(cs.numeric()).effects().writes is None
    assert with_columns(col("a") + 1).effects().writes == frozenset({"a"})
    predicate = FilterExpression(col("a") > 1)
    assert (predicate.effects().reads, predicate.effects().writes) == (frozenset({"a"}), frozenset())
    assert predicate.effects().rows == "1:0..1"
    assert predicate.label() == 'filter([(col("a")) > (1)])'
    chosen = select("a", b=col("c"))
    assert (chosen.effects().reads, chosen.effects().writes) == (frozenset({"a", "c"}), frozenset({"b"}))
    assert chosen.effects().survivors == frozenset({"a"})
    assert Drop(("a",)).effects().writes == frozenset({"a"})
    assert rename({"a": "b"}).effects().writes == frozenset({"a", "b"})
    assert select(*[f"c{i}" for i in range(9)]).label() == "select(c0, c1, c2, c3, c4, c5, ... 3 more)"
    assert [str(e) for e in predicate.code()] == [str(col("a") > 1)]
    assert FilterExpression(col("a") > 1, Skip()).on_error == Skip()


def test_expressions_cost_no_sample() -> None:
    def no_sample() -> Block:
        raise AssertionError("a read for nothing")

    bound = Bound(0, "with_columns", SITE, 0, None, False, no_sample, sample().types)
    with_columns(x=col("a").fill_null(0), ids=col("ids").list.eval(pl.element() % 7).list.head(2)).bind(bound)
    FilterExpression(col("a") == 1).bind(bound)


@given(rows=st.lists(ROWS, max_size=9))
def test_results_are_those_of_polars(rows: list[dict[str, Any]]) -> None:
    given_block = block(
        a=pa.array([r["a"] for r in rows], pa.int64()),
        ids=pa.array([r["ids"] for r in rows], pa.large_list(pa.int64())),
    )
    frame = pl.DataFrame({n: pl.Series(n, c) for n, c in given_block.columns.items()})
    added = {
        "b": pl.when(col("a") > 0).then(col("a").log1p()).otherwise(None),
        "c": col("ids").list.eval(pl.element() % 3).list.head(2),
        "d": col("ids").list.len(),
    }
    out = one_by_one([FilterExpression(col("a") < 4), with_columns(**added)], given_block)
    expected = frame.filter(col("a") < 4).with_columns(**added)
    assert {n: repr(values(out, n)) for n in out.columns} == {n: repr(expected[n].to_list()) for n in expected.columns}


def test_select_built_by_hand_checks_itself() -> None:
    with pytest.raises(PipelineError, match="given twice"):
        Select(("a", "a"))


@pytest.mark.heavy
def test_pipelines_without_expressions_do_without_polars(tmp_path: Path) -> None:
    """It takes a tenth of a second and 25 MB."""
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    code = f"""
import sys, cedar
if __name__ == "__main__":
    lines = cedar.read_text({str(tmp_path / "a.txt")!r}).map(len, "text", into="n")
    assert [batch["n"].tolist() for batch in lines.drop("text").select("line", "n").batch(2).loader()] == [[3, 3]]
    sys.exit("polars" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_drop_and_rename_move_columns_without_a_copy() -> None:
    given_block = sample()
    out = run(Rename((("a", "s"), ("s", "a"))), given_block)
    assert list(out.columns) == ["s", "a", "t", "ids", "o"]
    assert out.columns["a"] is given_block.columns["s"]
    assert list(run(Drop(("a", "o")), given_block).columns) == ["s", "t", "ids"]
    assert len(run(Drop(("a", "s", "t", "ids", "o")), given_block)) == 4
    with pytest.raises(PipelineError, match="two columns would be called 's'") as caught:
        run(rename({"a": "s"}), given_block)
    assert caught.value.fix == "rename or drop 's' too"


def test_columns_that_are_gone_need_no_drop_and_no_new_name() -> None:
    drop, named = Drop(("a", "b")), rename({"a": "x", "b": "y"})
    assert drop.fitted({"a", "b", "c"}) is drop
    assert drop.fitted({"b", "c"}) == Drop(("b",))
    assert drop.fitted({"c"}) is None
    assert named.fitted({"a", "b"}) is named
    assert named.fitted({"b", "c"}) == Rename((("b", "y"),))
    assert named.fitted({"c"}) is None
