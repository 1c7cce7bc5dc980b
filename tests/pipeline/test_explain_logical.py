"""The pipeline as written, as text: a line an operator, of no more than a hundred columns."""

from __future__ import annotations

import cedar
from cedar import col
from cedar.pipeline.explain import explain
from tests.pipeline.toy_plans import common, decode, plan, rows


def test_a_shared_pipeline_is_printed_once():
    shared = rows().map(lambda x: x + 1, "x", dtype=int)
    text = plan(cedar.zip(shared.select("x"), shared.select("y")))
    assert text.count("from_items") == 2  # once in each plan
    assert "(shared, see above)" in text


def test_wide_pipelines_stay_within_a_hundred_columns():
    wide = cedar.from_items([{f"column_{i}": i for i in range(60)}])
    wide = wide.select(*[f"column_{i}" for i in range(50)]).with_columns(
        **{f"new_{i}": col("column_1") for i in range(9)}
    )
    wide = wide.filter((col("column_1") > 1) & (col("column_2") < 5) & (col("column_3") > 2) | (col("column_4") > 2))
    for _ in range(6):
        wide = wide.map(decode, "column_1", dtype=int)
    joined = cedar.concat(cedar.concat(wide, wide), wide).batch(4)
    lines = joined.explain().splitlines()
    assert max(map(len, lines)) <= 100
    assert sum("map(decode) #6" in line for line in lines) >= 2


def test_figures_of_a_profile_without_a_plan(log):
    pipeline, chosen = common(log)
    text = explain(pipeline.node, profile=chosen.profile)
    assert "us/row" in text
    assert "not measured yet" not in text


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
