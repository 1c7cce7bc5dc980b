"""Plans as text: what is written is read back, and what does not fit is refused with its place."""

import os
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar import col
from cedar.operators.base import RowOperator
from cedar.operators.cache import Cache
from cedar.operators.expressions import Select
from cedar.plan.data import Decision, Plan
from cedar.plan.graph import Node, walk
from cedar.plan.saved import plan_from, text_of
from cedar.plan.scan import Scan
from tests.plan.toy_plans import decode, rewritten, rows, shape, stacked, written

# ---- text ------------------------------------------------------------------------------------------------------------


def blank_digests(text):
    return re.sub(r'"\w{16}"', '"..."', text)


def test_a_plan_reads_like_this():
    root = rows().map(decode, "x", dtype=int).filter(col("y") > 3).batch(4).node
    plan = stacked(root, 0, 2, 1, 3, places=((2, "processes"),))
    plan = replace(plan, decisions=(Decision("push_filter", "filter below map(decode)", True, "it reads y"),))
    assert (
        blank_digests(text_of(plan))
        == """\
{
  "cedar_plan": 2,
  "pipeline": "...",
  "executor": "",
  "workers": null,
  "operators": [
    {"is": "from_items(list of 20)"},
    {"is": "map(decode)", "digest": "...", "code": "..."},
    {"is": "filter([(col(\\"y\\")) > (3)])", "digest": "...", "code": "..."},
    {"is": "batch(4)", "digest": "..."}
  ],
  "nodes": [
    {"id": 0, "op": 0, "is": "from_items(list of 20)"},
    {"id": 1, "op": 2, "is": "filter([(col(\\"y\\")) > (3)])", "inputs": [0]},
    {"id": 2, "op": 1, "is": "map(decode)", "inputs": [1], "place": "processes"},
    {"id": 3, "op": 3, "is": "batch(4)", "inputs": [2]}
  ],
  "decisions": [
    {"rule": "push_filter", "what": "filter below map(decode)", "applied": true, "why": "it reads y"}
  ]
}
"""
    )


def test_the_same_plan_is_the_same_text():
    assert text_of(rewritten()) == text_of(rewritten())


def test_text_holds_no_path_of_the_code():
    assert os.path.dirname(__file__) not in text_of(rewritten())


# ---- there and back --------------------------------------------------------------------------------------------------


NAMES = ("x", "y", "z")


@st.composite
def plans(draw):
    """A chain over columns of its own each, in another order, with places, a scan and less work where nobody looks."""
    pipeline = rows()
    kinds = draw(st.lists(st.sampled_from(["map", "filter", "with", "rename", "draw", "cache"]), max_size=6))
    for i, kind in enumerate(kinds):
        name = draw(st.sampled_from(NAMES))
        if kind == "map":
            pipeline = pipeline.map(decode, name, into=f"m{i}", dtype=int)
        elif kind == "filter":
            pipeline = pipeline.filter(col(name) > i)
        elif kind == "with":
            pipeline = pipeline.with_columns(**{f"w{i}": col(name) + 1, f"v{i}": col(name) * 2})
        elif kind == "rename":
            pipeline = pipeline.with_columns(**{f"r{i}": col(name)}).rename({f"r{i}": f"s{i}"})
        elif kind == "draw":
            pipeline = pipeline.map(lambda x, rng: x, name, into=f"d{i}", random=True, dtype=int)
        else:
            pipeline = pipeline.cache("memory")
    pipeline = pipeline.select(*NAMES).shuffle(seed=1).take(9).batch(3)
    nodes = list(walk(pipeline.node))
    rest, moving = nodes[-4:], nodes[1:-4]
    filters = [n for n in moving if n.operator.name == "filter"]
    inside = draw(st.lists(st.sampled_from(filters), unique=True)) if filters else []
    moving = [n for n in moving if n not in inside]
    for _ in range(draw(st.integers(0, 6)) if len(moving) > 1 else 0):
        at = draw(st.integers(0, len(moving) - 2))
        below, above = moving[at].operator.effects(), moving[at + 1].operator.effects()
        if not ((below.writes | set()) & (above.reads | above.writes) or above.writes & below.reads):
            moving[at], moving[at + 1] = moving[at + 1], moving[at]
    source = nodes[0].operator.source
    columns = draw(st.sampled_from([None, NAMES]))
    current = Node(Scan(source, columns, tuple(inside)) if columns or inside else nodes[0].operator, origin=nodes[0])
    for node in [*moving, *rest]:
        operator = node.operator
        if operator.name == "with_columns" and len(operator.items) == 2 and draw(st.booleans()):
            operator = replace(operator, items=operator.items[:1])
        if draw(st.integers(0, 5)) == 0 and isinstance(operator, RowOperator):
            current = Node(Cache("memory"), (current,))
        place = draw(st.sampled_from(["", "threads", "processes"])) if isinstance(operator, RowOperator) else ""
        current = Node(operator, (current,), node.site, origin=node, place=place)
    return pipeline, Plan(pipeline.node, current, workers=draw(st.sampled_from([None, 1, 8])))


@given(plans())
def test_any_legal_plan_comes_back(made):
    pipeline, plan = made
    back = plan_from(text_of(plan), pipeline)
    assert shape(back) == shape(plan)
    again = text_of(replace(back, method=plan.method))
    assert again == text_of(plan)


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
    pipeline = cedar.from_items([{"größe": 1, "a\nb": 2}]).select("größe", "a\nb")
    path = tmp_path / "plan.json"
    plan = stacked(pipeline.node, 0, 1, Select(("größe", "a\nb")))
    plan.save(path)
    assert "größe" in path.read_text(encoding="utf-8")
    assert shape(cedar.Plan.load(path, pipeline)) == shape(plan)
