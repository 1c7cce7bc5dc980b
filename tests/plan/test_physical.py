"""Physical plans: what their stages look like, and which are equal."""

from __future__ import annotations

import cedar
from cedar import col
from cedar.plan.lower import Choice, lower
from tests.plan.toy_stages import numbers, plus
from tests.plan.verify import describe


def lines(p: cedar.Pipeline, choice: Choice | None = None) -> list[str]:
    physical = lower(p.node, choice or Choice())
    return [" ".join(describe(physical, stage).split()) for stage in physical.stages]


def test_what_reads_also_does_what_is_cheap_for_many_rows_at_once():
    p = numbers().filter(col("x") > 3).map(plus, "x", dtype=int).with_columns(z=col("x") + 1).shuffle().batch(4)
    assert lines(p) == [
        "read from_items(list of 40) -> filter([(col(\"x\")) > (3)]) windows of shuffle(seed=0, window='256MiB')",
        "task map(plus) -> with_columns(z) small tasks of 0",
        "stream shuffle(seed=0, window='256MiB') of 1",
        "stream batch(4) of 2",
        "deal gather of 3",
        "task gather of 4",
    ]


def test_windows_of_what_is_not_read_from_splits_are_runs_of_units():
    assert "window gather windows of shuffle(seed=0, window=10) of 1" in lines(numbers().take(9).shuffle(window=10))


def test_the_same_graph_gives_the_same_value():
    p = numbers().filter(col("x") > 3).shuffle().batch(4)
    assert lower(p.node, Choice()) == lower(p.node, Choice())
    assert lower(p.node, Choice()) != lower(numbers().filter(col("x") > 3).take(3).batch(4).node, Choice())
