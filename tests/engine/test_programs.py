"""Programs: what tasks do in the order of a plan, and the same work in the order as written."""

from __future__ import annotations

import cedar
from cedar import col
from cedar.engine.binding import Binding
from cedar.engine.programs import Programs
from cedar.operators.base import Env
from cedar.tasks.chain import Timing, run_program
from tests.toy_blocks import block, values


def plus(x: int) -> int:
    return x + 1


def half(x: int) -> float:
    return 6 / x


def programs(pipeline: cedar.Pipeline) -> Programs:
    binding = Binding(pipeline.node, None, Env())
    return Programs(binding, binding.written)


MAPS = cedar.from_items([{"x": 1}, {"x": 2}]).map(plus, "x", dtype=int).map(half, "x", into="y", dtype=float)


def test_operators_in_their_order_have_one_program() -> None:
    program = programs(MAPS).of([1, 2])
    assert program.label == "map(plus) -> map(half)"
    assert program.written is None
    done = run_program(program, block(x=[1, 2]), Env(), Timing())
    assert (values(done, "x"), values(done, "y")) == ([2, 3], [3.0, 2.0])


def test_where_a_plan_changes_the_order_the_order_as_written_is_at_hand() -> None:
    program = programs(MAPS).of([2, 1])
    assert program.label == "map(half) -> map(plus)"
    assert program.written is not None
    assert [step.label for step in program.written] == ["map(plus)", "map(half)"]
    timing = Timing()
    done = run_program(program, block(x=[0, 2]), Env(), timing)  # which fails in the plan's order alone
    assert (values(done, "y"), timing.fell_back) == ([6.0, 2.0], 1)


def test_sources_are_read_as_they_are_where_no_plan_reads_less() -> None:
    made = programs(cedar.from_items([{"x": 1}]).filter(col("x") > 0))
    plain = object()
    assert made.scan(made.physical.nodes[0].operator, plain) is plain  # type: ignore[arg-type]
