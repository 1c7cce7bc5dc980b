"""What an operator promises that declares nothing, and what a user's operator must have."""

from __future__ import annotations

import pickle
import threading
import time
from dataclasses import dataclass, replace
from typing import Any

import polars as pl
import pytest

import cedar
from cedar import col
from cedar.core.block import Block
from cedar.core.limits import Limits
from cedar.core.numeric import NumericEnvironment
from cedar.operators.base import (
    Bound,
    Effects,
    Env,
    Kernel,
    RowOperator,
    Schema,
    StreamOperator,
    block_kernel,
    by_content,
)
from cedar.operators.calls import Call
from cedar.operators.dedup import PlainRows
from cedar.operators.expressions import Drop, with_columns
from cedar.operators.failures import ErrorContext
from cedar.operators.instances import Instances
from cedar.operators.map import FilterRows, Map
from cedar.operators.marks import Marks, SlotAddress
from tests.toy_blocks import block


def test_an_env_arrives_as_it_was_sent_but_for_what_is_of_its_process():
    sent = Env(
        seed=3, epoch=5, sampling=True, watch="whole", marks=Marks(SlotAddress("/nowhere", b"t", 2, 7)),
        call_in_subprocess=print, numeric=NumericEnvironment(blas=2, flush=True), limits=Limits(json_depth=7),
    )  # fmt: skip
    for epoch in (5, 6):
        sent = replace(sent, epoch=epoch)
        found, again = (pickle.loads(pickle.dumps(sent)) for _ in range(2))
        assert found.marks.place == sent.marks.place
        assert found.instances is not again.instances
        same = {"marks": None, "instances": None, "call_in_subprocess": None}
        assert {**vars(found), **same} == {**vars(sent), **same}
        assert found.call_in_subprocess is None


def test_none_is_made_while_the_caller_is_at_work():
    instances, made = Instances(), threading.Event()

    def borrow() -> None:
        with instances.borrow(0, lambda: made.set() or "one"):
            pass

    instances.leave()
    thread = threading.Thread(target=borrow)
    thread.start()
    assert not made.wait(0.05)
    with instances.borrow(0, lambda: "by the caller itself") as one:
        assert one == "by the caller itself"
    thread.join(60)
    assert not made.is_set()  # one was there meanwhile
    instances.enter()


def test_who_waits_for_an_instance_ends_with_the_run():
    instances, errors = Instances(), []

    def borrow() -> None:
        try:
            with instances.borrow(0, object):
                pass
        except cedar.PipelineError as error:
            errors.append(str(error))

    instances.leave()
    thread = threading.Thread(target=borrow)
    thread.start()
    time.sleep(0.02)
    instances.end()
    thread.join(60)
    assert errors == ["the run ended while a worker waited for an instance of a class"]


def test_a_function_is_a_kernel_that_promises_nothing():
    kernel = block_kernel(lambda block, env: block)
    assert (kernel.row_wise, kernel.pooled, kernel.inexact, kernel.row_bytes, kernel.timeout) == (
        False, False, False, 0, None,
    )  # fmt: skip
    given = block(x=[1, 2])
    assert kernel(given, Env()) is given
    assert (kernel.fuse(kernel), kernel.describe(given, Env())) == (None, [])
    assert block_kernel(kernel) is kernel


def test_a_users_kernel_may_describe_what_it_drew():
    class Draws:
        def __call__(self, block, env):
            return block

        def describe(self, block, env):
            return [{"drawn": env.seed}] * len(block)

    assert block_kernel(Draws()).describe(block(x=[1, 2]), Env(seed=7)) == [{"drawn": 7}] * 2


def test_a_wrapped_kernel_keeps_the_time_limit_of_its_function():
    call = Call(bool, ErrorContext(0, "filter(bool)"), timeout=2.5)
    assert PlainRows(FilterRows(call, ("x",))).timeout == 2.5
    assert PlainRows(FilterRows(call, ("x",))).row_wise


@dataclass(frozen=True)
class Negate(RowOperator):
    """An operator of a user, with what the manual asks for, and a kernel that is a plain function."""

    name = "negate"

    def effects(self) -> Effects:
        return Effects(frozenset({"x"}), frozenset({"x"}))

    def schema(self, *inputs: Schema) -> Schema:
        return inputs[0]

    def bind(self, bound: Bound) -> Kernel:
        return negate


def negate(block: Block, env: Env) -> Block:
    return block.with_columns({"x": -block.columns["x"].to_numpy()})  # type: ignore[union-attr]


@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_a_users_operator_needs_no_more_than_the_manual_asks_for(executor: Any) -> None:
    p = cedar.from_items([{"x": 1}, {"x": 2}]).apply(Negate())
    assert [row["x"] for row in p.loader(executor=executor, workers=1)] == [-1, -2]


@dataclass(frozen=True)
class Own(RowOperator):
    """An operator of a user that declares an int64 column x and keeps all rows, whatever its kernel does."""

    kernel: Any
    name = "own"

    def effects(self) -> Effects:
        return Effects(frozenset({"x"}), frozenset({"x"}))

    def schema(self, *inputs: Schema) -> Schema:
        return inputs[0]

    def bind(self, bound: Bound) -> Kernel:
        return self.kernel  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("kernel", "says"),
    [
        (lambda b, env: None, "the kernel returned NoneType, not a Block"),
        (lambda b, env: b.with_columns({"x": [1, 2, 3]}), "a column must be an Arrow array"),
        (lambda b, env: b.with_columns({"x": b.columns["x"][:1]}), r"column 'x' has 1 value\(s\) for 3 row\(s\)"),
        (lambda b, env: b.slice(0, 2), r"the kernel returned 2 rows for 3, but effects\(\) declares 1:1"),
        (lambda b, env: b.with_columns({"x": b.columns["x"].cast("string")}), "is large_string, but int64 is declared"),
    ],
)
@pytest.mark.parametrize("plan", ["off", "auto"])
def test_what_a_users_kernel_may_not_return_is_refused_at_the_users_line(plan: Any, kernel: Any, says: str) -> None:
    p = cedar.from_items([{"x": 1}, {"x": 2}, {"x": 3}]).apply(Own(kernel)).batch(2)
    with pytest.raises(cedar.RowError, match=f"own failed on a block: .*{says}") as caught:
        list(p.loader(plan=plan, executor="inline"))
    assert caught.value.site is not None
    assert caught.value.site.file == __file__


def test_arrays_of_a_users_kernel_become_columns_of_the_declared_type() -> None:
    polars_column = Own(lambda b, env: b.with_columns({"x": pl.from_arrow(b.columns["x"]) + 1}))
    p = cedar.from_items([{"x": 1}, {"x": 2}]).apply(polars_column)
    assert p.to_arrow()["x"].to_pylist() == [2, 3]


@dataclass(frozen=True)
class Positive(RowOperator):
    """A filter of a user, with a field whose name means something in cedar's own operators."""

    size: int = 3
    name = "positive"

    def effects(self) -> Effects:
        return Effects(frozenset({"x"}), frozenset(), rows="1:0..1")

    def schema(self, *inputs: Schema) -> Schema:
        return inputs[0]

    def bind(self, bound: Bound) -> Kernel:
        return positive


def positive(block: Block, env: Env) -> Block:
    return block.filter(block.columns["x"].to_numpy() > 0)  # type: ignore[union-attr]


def test_effects_alone_make_an_operator_a_filter_and_names_of_its_fields_mean_nothing() -> None:
    p = cedar.from_items([{"x": x} for x in (1, -1, 2, 3, -2)]).apply(Positive())
    assert [row["x"] for row in p] == [1, 2, 3]
    assert p.node.filters
    assert p.node.exact_rows is None
    assert not cedar.from_items([{"x": 1}]).apply(Negate()).node.filters


def test_a_stream_operator_that_says_nothing_may_do_anything() -> None:
    class Mine(StreamOperator):
        name = "mine"

        def stream(self, inputs: Any, context: Any) -> Any:
            return inputs[0]

    assert Mine().effects() == Effects(rows="stream")


def f(x: int) -> int:
    return x


@pytest.mark.parametrize(
    "make",
    [lambda: Drop(("a", "b")), lambda: with_columns(x=col("a") + 1), lambda: Map(f, ("a",), "b")],
)
def test_equal_content_is_an_equal_key(make: Any) -> None:
    assert by_content(make()) == by_content(make())
    assert hash(by_content(make())) == hash(by_content(make()))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Drop(("a", "b")), Drop(("b", "a"))),
        (with_columns(x=1), with_columns(x=True)),  # equal in Python, and other columns
        (with_columns(x=col("a") + 1), with_columns(x=col("a") + 2)),
        (Map(lambda x: x, ("a",)), Map(lambda x: x, ("a",))),  # functions are themselves alone
    ],
)
def test_other_content_is_another_key(one: Any, other: Any) -> None:
    assert by_content(one) != by_content(other)


def test_fields_that_do_not_count() -> None:
    one, other = Map(f, ("a",), "b"), Map(f, ("a",), "c")
    assert by_content(one) != by_content(other)
    assert by_content(one, but=("into",)) == by_content(other, but=("into",))
