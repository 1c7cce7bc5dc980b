"""Plans as data: the one as written, what was decided, and how people see it."""

from __future__ import annotations

import html
import os
from dataclasses import replace

import numpy as np
import pytest

import cedar
from cedar.core.errors import PipelineError
from cedar.plan.data import Budget, Decision, Plan
from tests.plan.toy_plans import loaded, moved, rewritten, written


def test_people_see_a_node_a_line():
    assert str(rewritten()).splitlines() == [
        "plan (exact): 7 nodes, 12,300 rows/s, bottleneck cores",
        '  0  from_arrow(20 rows), columns x, y, z, where filter([(col("y")) > (3)])',
        "  1  map(decode) in processes  of 0",
        "  2  cache('auto')  of 1",
        "  3  with_columns(a, c)  of 2",
        "  4  shuffle(seed=3, window='256MiB')  of 3",
        "  5  select(x, y, z, u, a, c)  of 4",
        "  6  batch(4)  of 5",
        "  applied  push_filter: filter below map(decode)",
        "  refused  cache: map(decode)  (random)",
    ]


def test_a_plan_as_written_is_the_pipeline_itself(tmp_path):
    pipeline = written()
    Plan.as_written(pipeline.node).save(tmp_path / "plan.json")
    plan = cedar.Plan.load(tmp_path / "plan.json", pipeline)
    assert plan.root is plan.logical is pipeline.node
    assert plan.method == "loaded"


def test_what_was_decided_comes_back():
    plan = replace(moved(), decisions=rewritten().decisions)
    back = loaded(replace(plan, workers=3, executor="processes"))
    assert back.decisions == plan.decisions
    assert (back.workers, back.executor) == (3, "processes")


def test_a_decision_says_what_was_done_and_why():
    assert str(Decision("late", "map(f)", True)) == "applied  late: map(f)"
    assert str(Decision("late", "map(f)", False, "random")) == "refused  late: map(f)  (random)"


def test_a_plan_knows_whether_it_needs_processes_and_is_shown_as_text():
    plan = rewritten()
    assert plan.in_processes
    assert not Plan.as_written(written().node).in_processes
    shown = plan._repr_html_()
    assert shown.startswith("<pre>plan (exact): 7 nodes")
    assert html.unescape(shown) == f"<pre>{plan}</pre>"
    assert "&gt; (3)" in shown


def test_sizes_are_text_or_bytes():
    budget = Budget(cpus=2, memory="2GiB", cache=1000)
    assert (budget.memory_bytes, budget.cache_bytes) == (2 << 30, 1000)
    assert Budget(cache=0).cache_bytes == 0
    assert Budget(cpus=np.int64(4)).cpus == 4
    empty = Budget()
    assert (empty.cpus, empty.memory_bytes, empty.cache_bytes, empty.cluster) == (None, None, None, None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"cpus": 0}, {"cpus": 1.5}, {"cpus": True}, {"cpus": "2"}, {"memory": "lots"}, {"memory": 0}, {"memory": -1},
        {"memory": 1.5}, {"cache": "2 parsecs"}, {"cache": -1}, {"cache": True}, {"memory": "0GiB"},
    ],
)  # fmt: skip
def test_what_is_no_figure_is_refused_at_the_users_line(wrong):
    with pytest.raises(PipelineError) as caught:
        Budget(**wrong)
    (name,) = wrong
    assert name in caught.value.what
    assert repr(wrong[name]) in caught.value.what
    assert os.path.basename(caught.value.site.file) == "test_data.py"
