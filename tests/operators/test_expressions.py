import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar import Skip, col
from cedar.core.block import Block
from cedar.core.columns import OBJECT, UNKNOWN, TensorType
from cedar.core.errors import PipelineError, RowError
from cedar.operators import expression_kernel
from cedar.operators.base import Bound, Env, Kernel, RowOperator
from cedar.operators.columns_ops import Drop, Rename, rename
from cedar.operators.expressions import FilterExpression, Select, WithColumns, select, with_columns
from tests.toy_blocks import SITE, bind, block, run, run_in_parts, same, values


def sample() -> Block:
    return block(
        a=pa.array([1, 2, 3, None]),
        s=["1", "x", "3", "y"],
        t=np.arange(8.0).reshape(4, 2),
        ids=pa.array([[1, 2, 3], [], None, [4]]),
        o=np.array([1, "a", None, {}], dtype=object),
    )


def fused(operators: list[RowOperator], given_block: Block, **how: Any) -> Kernel:
    kernel: Any = None
    for operator in operators:
        bound = bind(operator, given_block, **how)
        kernel = bound if kernel is None else kernel.fuse(bound)
        assert kernel is not None
    return kernel  # type: ignore[no-any-return]


def one_by_one(operators: list[RowOperator], given_block: Block, **how: Any) -> Block:
    for operator in operators:
        given_block = run(operator, given_block, **how)
    return given_block


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


def test_filter_keeps_keys_and_every_kind_of_column() -> None:
    out = run(FilterExpression(col("a") > 1), sample())
    assert values(out, "s") == ["x", "3"]
    assert values(out, "t") == [[2.0, 3.0], [4.0, 5.0]]
    assert values(out, "ids") == [[], None]
    assert values(out, "o") == ["a", None]
    assert out.keys.row.tolist() == [1, 2]


def test_null_is_not_true_and_nan_is_above_all_numbers() -> None:
    given_block = block(x=pa.array([1.0, None, float("nan"), 3.0]))
    assert run(FilterExpression(col("x") > 2), given_block).keys.row.tolist() == [2, 3]
    assert run(FilterExpression(~(col("x") > 2)), given_block).keys.row.tolist() == [0]
    assert len(run(FilterExpression(pl.lit(True)), given_block)) == 4
    assert len(run(FilterExpression(pl.lit(None).cast(pl.Boolean)), given_block)) == 0


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


def test_sets_are_lists_or_columns_of_lists() -> None:
    given_block = block(a=[1, 2, 3], b=[1, 1, 9], ids=[[1], [1], []])
    assert values(run(with_columns(x=col("a").is_in([1, 3])), given_block), "x") == [True, False, True]
    assert values(run(with_columns(x=col("a").is_in("ids")), given_block), "x") == [True, False, False]
    with pytest.raises(PipelineError, match="is_in.. of a column of Int64 looks at other rows"):
        run(with_columns(x=col("a").is_in("b")), given_block)


def test_a_failing_row_is_named() -> None:
    with pytest.raises(RowError, match="conversion") as caught:
        run(with_columns(s=col("s").cast(pl.Int64)), sample())
    assert caught.value.row is not None
    assert caught.value.row.row == 1
    assert caught.value.site == SITE
    assert isinstance(caught.value.__cause__, pl.exceptions.InvalidOperationError)


@pytest.mark.parametrize("refill", [False, True])
def test_failing_rows_are_skipped(refill: bool) -> None:
    out = run(with_columns(s=col("s").cast(pl.Int64)), sample(), on_error=Skip(refill=refill))
    assert values(out, "s") == [1, 3]
    assert out.live_keys().row.tolist() == [0, 2]
    assert sorted(out.dead) == [1, 3]
    assert all(why.refill is refill for why in out.dead.values())


def test_dead_slots_stay_where_they_are() -> None:
    first = run(with_columns(s=col("s").cast(pl.Int64)), sample(), on_error=Skip())
    out = run(FilterExpression(col("a") > 1), first)
    assert out.keys.row.tolist() == [1, 2, 3]
    assert sorted(out.dead) == [0, 2]
    assert values(out, "s") == [3]


def test_filters_stay_above_batches() -> None:
    with pytest.raises(PipelineError, match="behind batch") as caught:
        run(FilterExpression(col("a") > 1), sample(), batched=True)
    assert "before batch()" in str(caught.value)
    assert values(run(with_columns(a=col("a") + 1), sample(), batched=True), "a") == [2, 3, 4, None]


def test_rows_of_a_resized_batch_have_no_keys() -> None:
    given_block = sample()
    resized = Block({"s": given_block.columns["s"]}, given_block.keys.take(slice(0, 2)), aligned=False)
    with pytest.raises(RowError) as caught:
        run(with_columns(s=col("s").cast(pl.Int64)), resized, batched=True, on_error=Skip())
    assert caught.value.row is None


def test_drop_and_rename_move_columns_without_a_copy() -> None:
    given_block = sample()
    out = run(Rename((("a", "s"), ("s", "a"))), given_block)
    assert list(out.columns) == ["s", "a", "t", "ids", "o"]
    assert out.columns["a"] is given_block.columns["s"]
    assert list(run(Drop(("a", "o")), given_block).columns) == ["s", "t", "ids"]
    assert len(run(Drop(("a", "s", "t", "ids", "o")), given_block)) == 4
    with pytest.raises(PipelineError, match="two columns would be called 's'"):
        run(rename({"a": "s"}), given_block)


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


def test_types_hold_in_every_block() -> None:
    operators = [with_columns(a=col("a") / 2, s=col("s").str.split(","), d=pl.date(2020, 1, 1), c=pl.lit("x"))]
    for part in (sample(), sample().slice(0, 0), sample().slice(3, 4)):
        out = one_by_one(operators, part)  # type: ignore[arg-type]
        assert out.types == operators[0].schema(sample().types)


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
    assert not predicate.keeps_rows
    assert predicate.label() == 'filter([(col("a")) > (1)])'
    chosen = select("a", b=col("c"))
    assert (chosen.effects().reads, chosen.effects().writes) == (frozenset({"a", "c"}), frozenset({"b"}))
    assert chosen.effects().keeps == frozenset({"a"})
    assert Drop(("a",)).effects().writes == frozenset({"a"})
    assert rename({"a": "b"}).effects().writes == frozenset({"a", "b"})
    assert select(*[f"c{i}" for i in range(9)]).label() == "select(c0, c1, c2, c3, c4, c5, ... 3 more)"
    assert [str(e) for e in predicate.code()] == [str(col("a") > 1)]
    assert FilterExpression(col("a") > 1, Skip()).policy() == Skip()


def test_expressions_cost_no_sample() -> None:
    def no_sample() -> Block:
        raise AssertionError("a read for nothing")

    bound = Bound(0, "with_columns", SITE, 0, None, False, no_sample, sample().types)
    with_columns(x=col("a").fill_null(0), ids=col("ids").list.eval(pl.element() % 7).list.head(2)).bind(bound)
    FilterExpression(col("a") == 1).bind(bound)


def test_a_kernel_travels() -> None:
    kernel = fused([with_columns(b=col("a") + 1), FilterExpression(col("b") > 2), Drop(("a",))], sample())
    again = cloudpickle.loads(cloudpickle.dumps(kernel))
    assert same(again(sample(), Env()), kernel(sample(), Env()))


def test_plain_kernels_fuse_with_expressions_only() -> None:
    plain = bind(Drop(("a",)), sample())
    assert plain.fuse(bind(Drop(("s",)), sample())) is None  # type: ignore[attr-defined]
    computed = bind(with_columns(b=col("a") + 1), sample())
    assert computed.fuse(lambda given_block, env: given_block) is None  # type: ignore[attr-defined]
    assert computed.fuse(plain) is not None  # type: ignore[attr-defined]


def test_a_fused_kernel_blames_the_operator_that_failed() -> None:
    operators = [with_columns(b=col("a") + 1), with_columns(s=col("s").cast(pl.Int64)), FilterExpression(col("b") > 2)]
    with pytest.raises(RowError, match=r"with_columns\(s\)") as caught:
        fused(operators, sample())(sample(), Env())
    assert caught.value.row is not None
    assert caught.value.row.row == 1


CHAINS: list[list[RowOperator]] = [
    [with_columns(s=col("s").cast(pl.Int64)), FilterExpression(col("a") > 1), with_columns(a=col("a") * 2)],
    [with_columns(n=col("s").cast(pl.Int64)), Drop(("n",)), with_columns(a=col("a") * 2)],  # nobody reads n
    [with_columns(n=col("s").cast(pl.Int64)), with_columns(n=col("a")), FilterExpression(col("n") > 1)],
    [with_columns(n=col("s").cast(pl.Int64)), select("a", b="a"), FilterExpression(col("b") > 1)],
    [with_columns(n=col("s").cast(pl.Int64)), rename({"n": "m"}), with_columns(n=col("a")), Drop(("m",))],
    [FilterExpression(col("a") > 1), rename({"a": "b", "ids": "a"}), with_columns(c=col("a").list.len() + col("b"))],
    [rename({"s": "q"}), with_columns(s=col("q") + "!"), Drop(("q",)), select("s", "t", "o")],
    [FilterExpression(col("a") > 1), FilterExpression(col("ids").list.len() > 0), with_columns(col("^a$") + 1)],
    [with_columns(t=col("a")), FilterExpression(col("t") < 3), rename({"t": "u"})],
    [select("a", "s"), with_columns(k=1), FilterExpression(col("k") == 1)],
]
ROWS = st.fixed_dictionaries(
    {
        "a": st.none() | st.integers(-3, 5),
        "s": st.sampled_from(["1", "2", "x", ""]),
        "ids": st.none() | st.lists(st.none() | st.integers(0, 5), max_size=3),
    }
)


@given(
    rows=st.lists(ROWS, max_size=9),
    chain=st.integers(0, len(CHAINS) - 1),
    cuts=st.lists(st.integers(0, 99), max_size=3),
    skip=st.sampled_from([Skip(), Skip(refill=True)]),
)
def test_fusing_and_block_size_never_show(rows: list[dict[str, Any]], chain: int, cuts: list[int], skip: Skip) -> None:
    n = len(rows)
    given_block = block(
        a=pa.array([r["a"] for r in rows], pa.int64()),
        s=pa.array([r["s"] for r in rows], pa.large_string()),
        ids=pa.array([r["ids"] for r in rows], pa.large_list(pa.int64())),
        t=np.arange(2.0 * n).reshape(n, 2),
        o=np.array([{i} for i in range(n)], dtype=object),
    )
    operators = CHAINS[chain]
    kernel = fused(operators, given_block, on_error=skip)
    whole = kernel(given_block, Env())
    expected = one_by_one(operators, given_block, on_error=skip)
    assert same(whole, expected) or _texts(whole) == _texts(expected)
    assert same(whole, run_in_parts(kernel, given_block, cuts)) or _texts(whole) == _texts(
        run_in_parts(kernel, given_block, cuts)
    )


def _texts(given_block: Block) -> Any:
    """A block without the messages of its dead slots, which count the rows at hand."""
    columns = {name: repr(values(given_block, name)) for name in given_block.columns}
    return columns, given_block.types, given_block.keys.hash(0).tolist(), sorted(given_block.dead)


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


def test_expressions_are_compiled_once_for_all_epochs(monkeypatch):
    compiled = []
    compile_steps = expression_kernel.compile_steps
    monkeypatch.setattr(expression_kernel, "compile_steps", lambda *given: compiled.append(1) or compile_steps(*given))
    p = cedar.from_arrow(pa.table({"x": range(8), "y": range(8)})).select("x").filter(col("x") > 2)
    p = p.with_columns(z=col("x") + 1).select("z").batch(2)
    with p.loader(plan="off", executor="inline") as loader:
        first = [batch["z"].tolist() for batch in loader]
        count = len(compiled)
        assert [batch["z"].tolist() for batch in loader] == first
    assert len(compiled) == count > 0


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


def test_results_are_of_the_columns_before_them_also_where_a_column_is_replaced_twice():
    table = pa.table({"z": pa.array([1, 4], pa.int16()), "f": [1.0, 2.5]})
    p = cedar.from_arrow(table).with_columns(n=col("z") + col("z")).with_columns(n=col("f") * -1.0, f=col("z") / 2)
    for plan in ("off", "auto"):
        (batch,) = p.batch(2).loader(plan=plan, executor="inline", format="numpy")
        assert batch["n"].tolist() == [-1.0, -2.5]
        assert batch["f"].tolist() == [0.5, 2.0]
