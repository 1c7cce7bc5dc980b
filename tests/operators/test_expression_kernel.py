"""The kernel of expressions: fused or one by one, in any blocks, with rows that fail."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cloudpickle
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar import Skip, col
from cedar.core.block import Block
from cedar.core.errors import RowError
from cedar.operators import expression_kernel
from cedar.operators.base import Env, Kernel, RowOperator
from cedar.operators.expressions import Drop, FilterExpression, rename, select, with_columns
from tests.operators.toy_expressions import ROWS, one_by_one, sample
from tests.toy_blocks import SITE, bind, block, run, run_in_parts, same, values


def fused(operators: list[RowOperator], given_block: Block, **how: Any) -> Kernel:
    kernel: Any = None
    for operator in operators:
        bound = bind(operator, given_block, **how)
        kernel = bound if kernel is None else kernel.fuse(bound)
        assert kernel is not None
    return kernel  # type: ignore[no-any-return]


def test_a_failing_row_is_named() -> None:
    with pytest.raises(RowError, match="conversion") as caught:
        run(with_columns(s=col("s").cast(pl.Int64)), sample())
    assert caught.value.row is not None
    assert caught.value.row.row == 1
    assert caught.value.site == SITE
    assert isinstance(caught.value.__cause__, pl.exceptions.InvalidOperationError)


@pytest.mark.parametrize("filters", [[], [FilterExpression(col("a") == 2)]])
def test_the_error_of_a_row_counts_it_once(filters: list[RowOperator]) -> None:
    operators = [*filters, with_columns(n=col("s").cast(pl.Int64))]
    with pytest.raises(RowError, match=r'1 out of 1 values: \["two"\]'):
        fused(operators, sample())(block(a=[2], s=["two"]), Env())


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


def test_rows_of_a_resized_batch_have_no_keys() -> None:
    given_block = sample()
    resized = Block({"s": given_block.columns["s"]}, given_block.keys.take(slice(0, 2)), aligned=False)
    with pytest.raises(RowError) as caught:
        run(with_columns(s=col("s").cast(pl.Int64)), resized, batched=True, on_error=Skip())
    assert caught.value.row is None


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
    [with_columns(n=col("s").cast(pl.Int64)), Drop(("n",)), with_columns(a=col("a") * 2)],  # nothing reads n
    [with_columns(n=col("s").cast(pl.Int64)), with_columns(n=col("a")), FilterExpression(col("n") > 1)],
    [with_columns(n=col("s").cast(pl.Int64)), select("a", b="a"), FilterExpression(col("b") > 1)],
    [with_columns(n=col("s").cast(pl.Int64)), rename({"n": "m"}), with_columns(n=col("a")), Drop(("m",))],
    [FilterExpression(col("a") > 1), rename({"a": "b", "ids": "a"}), with_columns(c=col("a").list.len() + col("b"))],
    [rename({"s": "q"}), with_columns(s=col("q") + "!"), Drop(("q",)), select("s", "t", "o")],
    [FilterExpression(col("a") > 1), FilterExpression(col("ids").list.len() > 0), with_columns(col("^a$") + 1)],
    [with_columns(t=col("a")), FilterExpression(col("t") < 3), rename({"t": "u"})],
    [select("a", "s"), with_columns(k=1), FilterExpression(col("k") == 1)],
]


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
    """A block without the messages of its dead slots, which count the current rows."""
    columns = {name: repr(values(given_block, name)) for name in given_block.columns}
    return columns, given_block.types, given_block.keys.hash(0).tolist(), sorted(given_block.dead)


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


def test_threads_that_begin_together_compile_an_expression_once(monkeypatch):
    given, barrier, compiled = block(x=[1, 2]), threading.Barrier(2), []
    kernel = bind(with_columns(y=col("x") + 1), given)
    compile_steps = expression_kernel.compile_steps

    def slowly(*args: Any) -> Any:
        compiled.append(args)
        time.sleep(0.05)
        return compile_steps(*args)

    def work(_: int) -> list[Any]:
        barrier.wait(60)
        return values(kernel(given, Env()), "y")

    monkeypatch.setattr(expression_kernel, "compile_steps", slowly)
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(work, range(2))) == [[2, 3]] * 2
    assert len(compiled) == 1


def test_results_are_of_the_columns_before_them_also_where_a_column_is_replaced_twice():
    table = pa.table({"z": pa.array([1, 4], pa.int16()), "f": [1.0, 2.5]})
    p = cedar.from_arrow(table).with_columns(n=col("z") + col("z")).with_columns(n=col("f") * -1.0, f=col("z") / 2)
    for plan in ("off", "auto"):
        (batch,) = p.batch(2).loader(plan=plan, executor="inline", format="numpy")
        assert batch["n"].tolist() == [-1.0, -2.5]
        assert batch["f"].tolist() == [0.5, 2.0]


@pytest.mark.parametrize(
    ("expression", "advice"),
    [
        (col("t").list.get(0), "null_on_oob=True"),
        (col("t").list.len().replace_strict({1: 1}), "an option of the function"),
        (col("s").cast(pl.Int64), "cast(..., strict=False)"),
    ],
)
def test_the_advice_fits_the_function_that_failed(expression: pl.Expr, advice: str) -> None:
    p = cedar.from_items([{"t": [1], "s": "1"}, {"t": [], "s": "a"}]).with_columns(y=expression)
    with pytest.raises(RowError) as caught:
        p.to_arrow()
    assert advice in (caught.value.fix or "")
    assert ("cast" in (caught.value.fix or "")) == ("cast" in advice)
