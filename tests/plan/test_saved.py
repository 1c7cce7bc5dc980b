"""Plans as text: what is written is read back, and what does not fit is refused with its place."""

import os
import random
import re
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar import col
from cedar.plan.data import Decision, Plan
from cedar.plan.saved import text_of
from cedar.plan.steps import Place, PushColumns, Reorder, Replace
from tests.plan.toy_plans import decode, loaded, rewritten, rows, shape, stepped, written
from tests.toy_pipelines import build
from tests.toy_plans_random import by_lot, planner

# ---- text ------------------------------------------------------------------------------------------------------------


def blank_digests(text):
    return re.sub(r'"\w{16}"', '"..."', text)


def test_a_plan_reads_like_this():
    root = rows().map(decode, "x", dtype=int).filter(col("y") > 3).batch(4).node
    plan = stepped(root, (2, Reorder((1, 0))), (3, Place(("", "", "processes", ""))))
    plan = replace(plan, decisions=(Decision("push_filter", "filter below map(decode)", True, "it reads y"),))
    assert (
        blank_digests(text_of(plan))
        == """\
{
  "cedar_plan": 3,
  "pipeline": "...",
  "executor": "",
  "workers": null,
  "operators": [
    {"is": "from_arrow(20 rows)"},
    {"is": "map(decode)", "digest": "...", "code": "..."},
    {"is": "filter([(col(\\"y\\")) > (3)])", "digest": "...", "code": "..."},
    {"is": "batch(4)", "digest": "..."}
  ],
  "steps": [
    {"pass": 0, "at": 2, "step": "Reorder", "order": [1, 0]},
    {"pass": 1, "at": 3, "step": "Place", "places": ["", "", "processes", ""]}
  ],
  "decisions": [
    {"rule": "push_filter", "what": "filter below map(decode)", "applied": true, "why": "it reads y"}
  ]
}
"""
    )


def test_what_steps_made_comes_back():
    plan = rewritten()
    assert shape(loaded(plan)) == shape(plan)


def test_a_step_of_a_program_cannot_be_saved():
    root = rows().map(decode, "x", dtype=int).batch(4).node
    step = Replace(replace(root.inputs[0].operator, fn=lambda x: x + 1))
    plan = stepped(root, (1, step))
    with pytest.raises(cedar.PlanError, match="its step Replace puts in what only your program has"):
        text_of(plan)
    with pytest.raises(cedar.PlanError, match="its graph was not made by steps"):
        text_of(replace(plan, sweeps=()))


def test_the_same_plan_is_the_same_text():
    assert text_of(rewritten()) == text_of(rewritten())


def test_text_holds_no_path_of_the_code():
    assert os.path.dirname(__file__) not in text_of(rewritten())


# ---- there and back --------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**6))
def test_any_legal_plan_comes_back(seed):
    try:
        root = build(random.Random(seed)).pipeline.node
        plan = by_lot(planner(root), random.Random(seed))
    except cedar.PipelineError:
        return
    back = loaded(plan)
    assert shape(back) == shape(plan)
    assert text_of(replace(back, method=plan.method)) == text_of(replace(plan, profile=None))


# ---- files -----------------------------------------------------------------------------------------------------------


def test_a_file_is_replaced_as_a_whole(tmp_path):
    pipeline = written()
    path = tmp_path / "plan.json"
    path.write_text("old")
    Plan.as_written(pipeline.node).save(path)
    assert os.listdir(tmp_path) == ["plan.json"]
    assert cedar.Plan.load(str(path), pipeline).root is pipeline.node


def test_plans_go_to_urls():
    pipeline = written()
    Plan.as_written(pipeline.node).save("memory://plans/plan.json")
    assert cedar.Plan.load("memory://plans/plan.json", pipeline).root is pipeline.node


def test_a_file_that_is_not_there_or_cannot_be_written(tmp_path):
    with pytest.raises(cedar.PlanError, match="cannot be read") as caught:
        cedar.Plan.load(tmp_path / "none.json", written())
    assert caught.value.site.file == __file__
    with pytest.raises(cedar.PlanError, match="cannot be written") as caught:
        Plan.as_written(written().node).save(tmp_path / "no" / "folder" / "plan.json")
    assert caught.value.site.file == __file__
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    with pytest.raises(cedar.PlanError, match="cannot be read"):
        cedar.Plan.load(tmp_path / "bytes.json", written())


def test_odd_names_survive(tmp_path):
    pipeline = cedar.from_arrow(pa.table({"größe": [1], "a\nb": [2], "c": [3]})).select("größe", "a\nb")
    path = tmp_path / "plan.json"
    plan = stepped(pipeline.node, (0, PushColumns(("größe", "a\nb"))))
    plan.save(path)
    assert "größe" in path.read_text(encoding="utf-8")
    assert shape(cedar.Plan.load(path, pipeline)) == shape(plan)
