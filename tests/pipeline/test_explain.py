"""Plans as text."""

from __future__ import annotations

import re
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar import col
from cedar.operators.expressions import Select
from cedar.pipeline.explain import explain, join_parts, with_heading
from cedar.plan.data import Decision, Plan, Prediction
from cedar.plan.graph import Node
from cedar.profile.figures import WIDTH
from cedar.watch import picture
from tests.pipeline.toy_plans import common, placeless, plan, rows


def test_a_plan_of_known_counts_reads_like_this():
    pipeline = rows().with_columns(z=col("x") + 1).shuffle(seed=3).batch(32)
    assert placeless(explain(pipeline.node)).splitlines() == [
        "LOGICAL PLAN",
        "  from_items(list of 100)",
        "  with_columns(z)                   x => z",
        "  shuffle(seed=3, window='256MiB')",
        "  batch(32)",
        'COST   not measured yet: p.profile() measures, or a run under plan="auto" (then loader.explain())',
        "PHYSICAL PLAN (as written)",
        "  1. read    from_items(list of 100) -> with_columns(z)   [1 split(s), 1 window(s), permuted]",
        "  2. stream  shuffle(seed=3, window='256MiB')",
        "  3. stream  batch(32)",
        "  4. task    gather   [a batch a task]",
        "UNITS  4 batches in an epoch",
        "RANKS  contiguous runs of at least 25 units, the same at any number of ranks up to the last step",
    ]


def test_a_plan_says_what_unknown_counts_cost():
    even = rows().filter(col("x") > 3)
    assert "; all read from_items(list of 100) whole" in plan(even.batch(8)).replace("\n       ", " ")
    both = rows(8000).filter(col("x") > 3)
    assert "each rank reads splits of its own" in plan(both.batch(8))
    assert "keeps its turns: take(9) counts rows" in plan(both.take(9).batch(8)).replace("\n       ", " ")
    assert "global: it counts rows" in plan(both.take(9).batch(8))
    assert "local to each rank" in plan(both.take(9, local=True).batch(8))


@pytest.mark.parametrize(
    ("rows", "window", "noted"), [(5, 10, ["2 of 20"]), (5, 1, ["1 of 20"]), (5, 100, []), (100, 1, [])]
)
def test_a_narrow_shuffle_is_noted(tmp_path, rows, window, noted):
    pq.write_table(pa.table({"x": range(100)}), tmp_path / "x.parquet", row_group_size=rows)
    text = cedar.read_parquet(str(tmp_path)).shuffle(window=window).batch(8).explain()
    assert re.findall(r"NOTE   the shuffle mixes rows of about (\d+ of \d+) splits", text) == noted


def test_notebooks_get_escaped_text():
    assert "&gt;" in rows().filter(col("x") > 1)._repr_html_()
    report = rows().filter(col("x") > 1).batch(2).loader().report()
    assert "&gt;" in report._repr_html_()


def test_explain_runs_nothing():
    calls = []
    pipeline = rows().map(lambda x: calls.append(x) or x, "x").batch(2, last="pad")
    pipeline.explain()
    assert len(pipeline.loader()) == 50
    assert pipeline.count() == 50
    assert calls == []


# ---- plans -----------------------------------------------------------------------------------------------------------


def test_the_common_pipeline_before_anything_was_measured(log):
    pipeline, _ = common(log)
    assert "applied  scan_filter" in pipeline.explain()
    assert placeless(explain(pipeline.node)).splitlines() == [
        'NOTE   row counts are unknown; known with loader(counts="exact"), which reads 33% of the bytes first',
        "LOGICAL PLAN",
        "  read_parquet(log)",
        '  filter(col("label") == 1)         label => -',
        "  map(decode)                       x => u",
        "  shuffle(seed=1, window='256MiB')",
        "  batch(32)",
        'COST   not measured yet: p.profile() measures, or a run under plan="auto" (then loader.explain())',
        "PHYSICAL PLAN (as written)",
        '  1. read    read_parquet(log) -> filter(col("label") == 1)   [1 split(s), 1 window(s), permuted]',
        "  2. task    map(decode)   [small tasks, by measured time]",
        "  3. stream  shuffle(seed=1, window='256MiB')",
        "  4. stream  batch(32)",
        "  5. task    gather   [a batch a task]",
        "UNITS  an unknown number of batches in an epoch",
        "RANKS  row counts are unknown before a run: each rank reads splits of its own; all read",
        "       read_parquet(log) whole, a single split, and share its rows by their keys",
    ]


def test_the_common_pipeline_planned_and_measured(log):
    pipeline, chosen = common(log)
    text = explain(
        pipeline.node,
        chosen,
        measured=11000.0,
        run="9,000 rows/s; bottleneck: the trainer",
    )
    lines = placeless(text).splitlines()
    assert lines[:9] == [
        'NOTE   row counts are unknown; known with loader(counts="exact"), which reads 33% of the bytes first',
        "COST   map(decode) 89%, read_parquet(log) 10%",
        "LOGICAL PLAN                                    us/row  keep  bytes  share",
        "  read_parquet(log)                                  3     1   24 B    10%",
        '  filter(col("label") == 1)         label => -     0.1  0.21   24 B     0%',
        "  map(decode)                       x => u         123     1   32 B    89%",
        "  shuffle(seed=1, window='256MiB')",
        "  batch(32)",
        "PHYSICAL PLAN (exact search, 2 worker(s))",
    ]
    stages = [line for line in lines if re.match(r" +\d\.", line)]
    assert stages[0].startswith('  1. read    threads    read_parquet(log) {2 of 3 columns; where col("label") == 1}')
    assert "  2. task    processes  map(decode)   [small tasks, by measured time]" in stages
    assert "  3. stream             shuffle(seed=1, window='256MiB')" in stages
    assert lines[next(i for i, line in enumerate(lines) if line.startswith("RULES")) :] == [
        "RULES  applied  push_filter: filter below shuffle  (rows are ordered by their keys)",
        "       applied  scan_filter: filter into read_parquet(log)  (row groups whose statistics exclude it",
        "       are not read at all)",
        "       refused  scan_columns: read_parquet(log)  (all columns are delivered)",
        "PREDICTION  12,300 rows/s; bottleneck: cores; measured: -11%; one more core: +38%",
        "RUN    9,000 rows/s; bottleneck: the trainer",
        "UNITS  an unknown number of batches in an epoch",
        "RANKS  row counts are unknown before a run: each rank reads splits of its own; all read",
        "       read_parquet(log) whole, a single split, and share its rows by their keys",
    ]


@pytest.mark.parametrize("many", [0, 50])
def test_the_common_pipeline_fits_a_screen(log, many):
    pipeline, chosen = common(log)
    more = tuple(Decision("common", f"subexpression {i} " + "x" * 90, i % 2 == 0, "why" * 40) for i in range(many))
    for shown in (None, chosen, replace(chosen, decisions=(*chosen.decisions, *more)), Plan.as_written(pipeline.node)):
        lines = explain(pipeline.node, shown).splitlines()
        assert len(lines) <= 24
        assert max(map(len, lines)) <= 100


def test_long_lists_of_rules_are_shortened(log):
    pipeline, chosen = common(log)
    decisions = tuple(Decision("filter_order", f"filter {i}", i > 7) for i in range(10))
    lines = explain(pipeline.node, replace(chosen, decisions=decisions)).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("RULES"))
    assert lines[start : start + 6] == [
        "RULES  applied  filter_order: filter 8",
        "       applied  filter_order: filter 9",
        "       refused  filter_order: filter 0",
        "       refused  filter_order: filter 1",
        "       refused  filter_order: filter 2",
        "       ... 5 more: print(plan)",
    ]
    assert "RULES  none applied, none refused" in explain(pipeline.node, replace(chosen, decisions=()))


def test_a_plan_that_more_hardware_would_not_help(log):
    pipeline, chosen = common(log)
    stuck = Prediction(0.5, "one task at a time", more={"one more core": 0.0})
    text = explain(pipeline.node, replace(chosen, prediction=stuck))
    assert "PREDICTION  0.5 rows/s; bottleneck: one task at a time; more hardware would not help" in text


def test_notebooks_see_the_plan(log):
    pipeline, chosen = common(log)
    html = picture.html(pipeline.node, explain(pipeline.node, chosen))
    assert html.startswith("<svg")
    assert "<pre>NOTE   row counts" in html
    assert "\nCOST   map(decode)" in html
    assert "x =&gt; u" in html
    assert "exact search" in html


def test_a_plan_warns_of_what_cannot_be_split():
    assert "cannot be split" in cedar.from_iterable(lambda: iter([{"x": 1}])).explain()


def test_a_plan_says_what_a_cache_keeps():
    random = rows().map(lambda x, rng: x, "x", random=True, dtype=int)
    assert "keeps what comes out" not in random.cache("memory").explain()
    mapped = rows().map(lambda x: x, "x", dtype=int).map(lambda x, rng: x, "x", random=True, dtype=int)
    assert "keeps what comes out of map(<lambda>)" in mapped.cache("memory").batch(2).explain()


def test_a_selection_that_the_optimizer_put_in_is_shown(log):
    pipeline, chosen = common(log)
    batch, shuffle = chosen.root, chosen.root.inputs[0]
    kept = Node(Select(("label", "x", "u")), shuffle.inputs)
    root = replace(batch, inputs=(replace(shuffle, inputs=(kept,)),))
    text = explain(pipeline.node, replace(chosen, root=root))
    assert "map(decode) -> select(label, x, u)" in text
    assert "select" not in text.partition("PHYSICAL")[0]


WORDS = st.lists(st.sampled_from(["one", "two-and-a-half", "a" * 40, "x" * 80]), min_size=1, max_size=6).map(" ".join)


@given(st.lists(WORDS, min_size=1, max_size=8), st.sampled_from(["NOTE", "RULES", "PREDICTION"]))
def test_all_words_come_once_behind_the_head(items: list[str], head: str):
    lines = with_heading(head, items)
    assert max(map(len, lines)) <= WIDTH
    assert " ".join(lines).split() == [head, *" ".join(dict.fromkeys(items)).split()]
    assert all(line.startswith(" " * 7) for line in lines[1:])


@given(st.integers(1, 20), st.integers(1, 12))
def test_what_does_not_fit_is_counted(count: int, room: int):
    lines = with_heading("NOTE", [f"item {i}" for i in range(count)], room, more=": print(plan)")
    shown = [line.removeprefix("NOTE").strip() for line in lines]
    if count <= room:
        assert shown == [f"item {i}" for i in range(count)]
        return
    whole = max(room - 1, 1)
    assert shown == [f"item {i}" for i in range(whole)] + [f"... {count - whole} more: print(plan)"]


@given(st.lists(WORDS, min_size=1, max_size=6), st.none() | WORDS)
def test_a_chain_has_an_arrow_between_parts_and_its_remark_at_the_end(parts: list[str], detail: str | None):
    lines = join_parts("  1. read  ", parts, detail or "")
    assert max(map(len, lines)) <= WIDTH
    told = f"1. read {' -> '.join(parts)} {f'[{detail}]' if detail else ''}"
    assert " ".join(lines).split() == told.split()
