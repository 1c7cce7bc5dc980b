"""What a task does to a block, and what is measured of operators that work together."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import cedar
from cedar.core.block import Block
from cedar.core.columns import objects
from cedar.core.cursor import Keys
from cedar.operators.base import BlockKernel, Env
from cedar.operators.marks import BadRow, Mark, Marks, SlotAddress
from cedar.tasks import clocks
from cedar.tasks.chain import KernelStep, Program, Timing, own_copy, plain_copy, run_steps
from tests.toy_blocks import block, values


@dataclass
class Takes(BlockKernel):
    """A kernel that does nothing, for so many seconds a row."""

    each: float
    clock: list[float]
    samples_parts = True

    def __call__(self, block: Block, env: Env) -> Block:
        self.clock[0] += self.each * block.slots
        return block


def test_what_a_loop_waits_for_is_what_operators_do():
    kernel = Takes(0.0, [0.0])
    named = ((1,), "map(f)"), ((2, 3), "map(g)"), ((), "format='numpy'")
    steps = tuple(KernelStep(kernel, operators, label) for operators, label in named)
    assert Program(steps).label == "map(f) -> map(g) -> format='numpy'"
    assert Program(steps).awaited == "map(f) -> map(g)"
    assert Program(steps[2:]).awaited == Program().awaited == "a batch"


@pytest.mark.parametrize(("together", "factor"), [(0.002, 0.5), (0.008, 2.0)])
def test_operators_take_what_they_take_together(
    monkeypatch: pytest.MonkeyPatch, together: float, factor: float
) -> None:
    clock = [0.0]
    monkeypatch.setattr(clocks, "now", lambda: clocks.Reading(clock[0], clock[0] / 2))
    parts = tuple(KernelStep(Takes(each, clock), (i,)) for i, each in ((4, 0.001), (7, 0.003)))
    block, timing = Block({"x": np.zeros((64, 2))}, Keys(np.arange(64))), Timing()
    run_steps([KernelStep(Takes(together, clock), (4, 7), parts=parts)], block, Env(watch="detail"), timing)
    found = {i: (seen.wall / seen.rows_in, seen.cpu / seen.rows_in) for i, seen in timing.seen.items()}
    assert found == {
        4: pytest.approx((0.001 * factor, 0.0005 * factor)),
        7: pytest.approx((0.003 * factor, 0.0015 * factor)),
    }


def test_a_block_that_is_looked_at_as_a_whole_is_not_worked_on_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(clocks, "now", lambda: clocks.Reading(clock[0], clock[0]))
    parts = tuple(KernelStep(Takes(each, clock), (i,)) for i, each in ((0, 0.001), (1, 0.003)))
    block, timing = Block({"x": np.zeros((4, 2))}, Keys(np.arange(4))), Timing()
    run_steps([KernelStep(Takes(9.0, clock), (0, 1), parts=parts)], block, Env(watch="detail"), timing)
    assert clock[0] == pytest.approx(4 * 0.004)
    assert [seen.wall for seen in timing.seen.values()] == pytest.approx([0.004, 0.012])


class Together(BlockKernel):
    """Two kernels in one, as those of images."""

    samples_parts = True

    def __init__(self) -> None:
        self.rows = 0

    def __call__(self, given: Block, env: Env) -> Block:
        self.rows += len(given)
        return given


def test_operators_that_work_together_are_measured_on_a_few_rows() -> None:
    one, two, both = Together(), Together(), Together()
    step = KernelStep(both, (0, 1), parts=(KernelStep(one, (0,)), KernelStep(two, (1,))))
    for rows, looked in ((100, 6), (20, 4)):
        one.rows = two.rows = both.rows = 0
        timing = Timing()
        made = run_steps([step], block(x=list(range(rows))), Env(watch="detail"), timing)
        assert (len(made), one.rows, two.rows, both.rows) == (rows, looked, looked, rows)
        assert timing.seen[0].rows_in == looked


class Twice(BlockKernel):
    """A kernel of rows, which the marked ones do not get to."""

    row_wise = True

    def __call__(self, block: Block, env: Env) -> Block:
        assert 1 not in values(block, "x")
        return block.with_columns({"y": np.asarray(block.columns["x"]) * 2})


@pytest.mark.parametrize(
    ("bad", "policy", "left"),
    [
        (BadRow(Mark(4, 3, (0, 0, 1, -1, 0, 0)), "killed by SIGABRT", block=True), cedar.Skip(blocks=True), []),
        (BadRow(Mark(4, 1, (0, 0, 0, -1, 0, 0)), "killed by SIGABRT"), cedar.Skip(), [3, 4]),
    ],
)
def test_rows_that_crash_are_dropped_before_a_kernel_gets_them(
    bad: BadRow, policy: cedar.Skip, left: list[int]
) -> None:
    given = block(x=[1, 3, 4])
    marks = Marks(SlotAddress("/nowhere", b"", 1, 1), divided=(Mark(4, 3, divisible=True),), bad=(bad,))
    step = KernelStep(Twice(), (4,), "with_columns(y)", on_error=policy)
    done = run_steps([step], given, Env(marks=marks), Timing())
    assert (values(done, "x"), values(done, "y")) == (left, [2 * x for x in left])
    assert {why.label for why in done.dead.values()} == {"with_columns(y)"}
    assert len(done.dead) == 3 - len(left)
    with pytest.raises(cedar.RowError, match=r"with_columns\(y\) failed: .*killed by SIGABRT"):
        run_steps([replace(step, on_error=None)], given, Env(marks=marks), Timing())


class Reader:
    """Something large that all rows refer to."""

    copies = 0

    def __deepcopy__(self, memo: Any) -> Reader:
        Reader.copies += 1
        return self


class Lazy:
    def __init__(self, reader: Reader, number: int) -> None:
        self.reader, self.number = reader, number


def test_what_rows_refer_to_is_not_copied() -> None:
    reader = Reader()
    rows = cedar.from_items([{"sample": Lazy(reader, i)} for i in range(100)])
    pipeline = rows.map(lambda sample: sample, "sample").map(lambda sample: sample.number, "sample", into="n")
    assert [row["n"] for row in pipeline.loader(plan="off")] == list(range(100))
    assert Reader.copies == 0


def test_objects_are_copied_and_handles_shared() -> None:
    lock = threading.Lock()
    rows = block(x=[1, 2]).with_columns({"tags": objects([{"all": [1]}, lock])})
    for copied in (own_copy(rows), plain_copy(rows)):
        tags = copied.columns["tags"]
        tags[0]["all"].append(2)
        assert tags[1] is lock
        assert copied.columns["x"] is rows.columns["x"]
    assert rows.columns["tags"][0] == {"all": [1]}
