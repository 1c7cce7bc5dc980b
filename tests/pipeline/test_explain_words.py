"""Operators are labeled in the user's own words."""

from __future__ import annotations

from cedar import col
from tests.pipeline.toy_plans import rows


def test_expressions_are_shown_as_they_were_written():
    # fmt: off
    written = rows().filter(
        col("x") * 2  % 10 < 8,
    ).with_columns(z=col("x") + 1).select("z", w=col("z") ** 2)
    # fmt: on
    logical = written.explain().partition("COST")[0]
    assert 'filter(col("x") * 2 % 10 < 8)' in logical
    twice = rows().filter(col("x") > 1).filter(col("x") > 2).explain()  # nothing knows which of them is which
    assert '(col("x")) > (1)' in twice
    assert '(col("x")) > (2)' in twice
