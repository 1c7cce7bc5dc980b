"""Plans that do not fit a pipeline are refused with the place; text that is no plan ends in an error."""

import contextlib
import json
import logging
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar import col
from cedar.plan.data import Plan
from cedar.plan.graph import Node, walk
from cedar.plan.saved import plan_from, text_of
from tests.plan import toy_plans
from tests.plan.toy_plans import decode, rows, shape, stacked, written

# ---- what does not fit -----------------------------------------------------------------------------------------------


def refuse(text, pipeline, match):
    with pytest.raises(cedar.PlanError, match=match) as caught:
        plan_from(text, pipeline)
    assert caught.value.fix
    return caught.value


def edited(plan, edit):
    found = json.loads(text_of(plan))
    edit(found)
    return json.dumps(found)


@pytest.mark.parametrize(
    ("other", "match"),
    [
        (lambda: rows().filter(col("y") > 3), r"operator 1 of the plan is map\(decode\), the pipeline has filter"),
        (lambda: rows().map(decode, "x", into="u", dtype=int), r"operator 2 of the plan is filter.* only 2 operators"),
        (lambda: written().take(3), r"of a pipeline of 6 operators; this one has take\(3\) besides"),
        (lambda: rows().map(decode, "y", into="u", dtype=int), r"operator 1, map\(decode\), has other inputs"),
        (lambda: rows().map(decode, "x", into="v", dtype=int), r"operator 1, map\(decode\), has other inputs"),
        (lambda: rows().map(decode), r"effects than map\(decode\) of the plan"),
        (lambda: rows().map(lambda x, rng: x, "x", into="u", random=True), r"operator 1, map\(<lambda>\), has other"),
    ],
)
def test_a_plan_of_another_pipeline_says_where(other, match):
    error = refuse(text_of(Plan.as_written(written().node)), other(), match)
    assert error.site.file == __file__


def test_parameters_are_compared():
    saved = text_of(Plan.as_written(rows().shuffle(seed=1).node))
    refuse(saved, rows().shuffle(seed=2), r"operator 1, shuffle\(seed=2.*, parameters .*than shuffle\(seed=1")


def test_connections_are_compared():
    a = rows().select("x")
    b = rows().select("x")
    saved = text_of(Plan.as_written(cedar.concat(a, b).node))
    refuse(saved, cedar.concat(a, a.select("x")), "the pipeline has select")
    zipped = text_of(Plan.as_written(cedar.concat(b, a, b).node))
    refuse(zipped, cedar.concat(b, a, a), "other inputs")


def test_data_may_move_and_change(tmp_path):
    saved = text_of(Plan.as_written(rows(5).batch(2).node))
    assert plan_from(saved, rows(9).batch(2)).decisions == ()


def test_changed_code_is_told_and_not_refused(caplog):
    saved = text_of(Plan.as_written(rows().map(lambda x: x + 1, "x", dtype=int).filter(col("x") > 1).node))
    with caplog.at_level(logging.WARNING, "cedar"):
        plan = plan_from(saved, rows().map(lambda x: x + 2, "x", dtype=int).filter(col("x") > 1))
    assert [str(d) for d in plan.decisions] == [
        "applied  load: map(<lambda>)  (code changed since the plan was saved: it fits, its figures may not)"
    ]
    assert "map(<lambda>)" in caplog.text


def node(number, **changes):
    return lambda found: found["nodes"][number].update(changes)


@pytest.mark.parametrize(
    ("edit", "match"),
    [
        (node(1, inputs=[7]), r"node 1 of the plan: 'inputs' is 7, not a whole number from 0 to 0"),
        (node(1, inputs=[True]), "'inputs' is True"),
        (node(1, inputs=3), "not a list"),
        (node(1, inputs=[]), "takes 1 input"),
        (node(1, op=99), "'op' is 99, not a whole number from 0 to 5"),
        (node(1, op="map"), "'op' is 'map'"),
        (node(1, op=2), r"operator 2, filter.* is twice in the plan, in its nodes 1 and 2"),
        (node(1, id=5), "node 1 of the plan has the id 5"),
        (node(1, size=5), r"changes 'size' of map\(decode\), which no plan may"),
        (node(1, place=3), "'place' of node 1 is 3, which is no kind of place"),
        (node(5, n=5), "changes 'n' of batch"),
        (node(3, items=[3]), "'items' is 3, not a whole number from 0 to 2"),
        (node(3, items=[0, 1]), "columns that come out of the plan are not those of the pipeline"),
        (node(0, columns=["x"]), r"node 2 of the plan, filter.* needs column 'y'"),
        (node(0, columns=["x", "y", "nose"]), "'nose'"),
        (node(0, columns=["x", "x", "y"]), "each once"),
        (node(0, where=[2]), r"operator 2, filter.* is twice in the plan, in its nodes 0 and 2"),
        (node(0, where=[1]), r"is no filter by an expression"),
        (lambda f: f["nodes"].pop(), r"leaves out operator 5, batch"),
        (lambda f: f["nodes"].append({"id": 6}), "neither which operator"),
        (lambda f: f["nodes"].append({"id": 6, "inputs": [5]}), "neither which operator"),
        (lambda f: f["nodes"].append({"id": 6, "keep": ["x", "nose"], "inputs": [5]}), "node 6.*'nose'"),
        (lambda f: f["nodes"].append({"id": 6, "keep": ["x"], "inputs": [5]}), "instead of x, y, z, u, a, b, c"),
        (lambda f: f.update(nodes=[]), "no nodes"),
        (lambda f: f.pop("nodes"), "no list of nodes"),
        (lambda f: f.update(nodes=[3]), "no list of nodes"),
        (lambda f: f.pop("operators"), "no list of operators"),
        (lambda f: f.update(pipeline="0"), "digest differs"),
        (lambda f: f.update(workers=0), "workers 0"),
        (lambda f: f.update(executor=4), "'executor' is 4"),
        (lambda f: f.update(decisions=[{"rule": 1}]), "'rule' is 1"),
        (lambda f: f.update(cedar_plan=1), "version 1, this release reads 2"),
        (lambda f: f.pop("cedar_plan"), "is no plan"),
    ],
)
def test_an_edited_plan_that_cannot_be_is_refused(edit, match):
    pipeline = written()
    refuse(edited(Plan.as_written(pipeline.node), edit), pipeline, match)


def test_an_operator_that_is_left_out_is_named():
    pipeline = written()
    for plan, name in (
        (stacked(pipeline.node, 0, 1, 3, 4, 5), "operator 2, filter"),
        (stacked(pipeline.node, 0, 1, 2, 3, 5), "operator 4, shuffle"),
        (stacked(pipeline.node, 0, 1, 2, 3, 4), "operator 5, batch"),
    ):
        error = refuse(text_of(plan), pipeline, f"leaves out {re.escape(name)}")
        assert error.site.file == toy_plans.__file__


def test_stream_operators_keep_their_order():
    pipeline = rows().shuffle(seed=1).take(5).batch(2)
    refuse(
        text_of(stacked(pipeline.node, 0, 2, 1, 3)), pipeline, r"operator 1, shuffle.* does not draw from from_items"
    )


def test_rows_of_one_source_do_not_pass_the_operators_of_another():
    pipeline = cedar.concat(rows(3).filter(col("x") > 1), rows(4))
    nodes = list(walk(pipeline.node))
    moved = Node(nodes[1].operator, (nodes[2],), origin=nodes[1])
    plan = Plan(pipeline.node, Node(nodes[3].operator, (nodes[0], moved), origin=nodes[3]))
    refuse(text_of(plan), pipeline, "other rows pass operator 1, filter")


def test_expressions_that_cannot_fail_are_all_that_may_be_left_out():
    for pipeline in (
        rows().map(decode, "x", into="u", dtype=int).select("y"),
        rows().with_columns(u=col("x").cast(int)).select("y"),
        rows().map(lambda x, rng: x, "x", into="u", random=True, dtype=int).select("y"),
    ):
        refuse(text_of(stacked(pipeline.node, 0, 2)), pipeline, r"leaves out operator 1, (map|with_columns)")
    dead = rows().with_columns(u=col("x") + 1).select("y")
    assert len(shape(plan_from(text_of(stacked(dead.node, 0, 2)), dead))) == 2


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "3", "[" * 100_000, '{"cedar_plan": NaN}', '{"a": 1}', "plan: 1"]
)
def test_garbage_is_refused(text):
    refuse(text, written(), "plan")


def test_a_truncated_plan_is_refused():
    pipeline = written()
    whole = text_of(Plan.as_written(pipeline.node))
    for size in range(0, len(whole) - 2, 97):
        refuse(whole[:size], pipeline, "no JSON, or was cut off")


@given(st.data())
def test_any_change_of_a_value_ends_in_a_plan_or_a_plan_error(data):
    pipeline = written()
    found = json.loads(text_of(Plan.as_written(pipeline.node)))
    part = found[data.draw(st.sampled_from(["nodes", "operators"]))]
    entry = part[data.draw(st.integers(0, len(part) - 1))]
    key = data.draw(st.sampled_from([*entry, "items", "keep", "cache", "where", "columns", "n"]))
    junk = st.none() | st.booleans() | st.integers(-2, 9) | st.floats() | st.text(max_size=3) | st.lists(
        st.integers(-1, 7) | st.text(max_size=2) | st.none(), max_size=3
    )  # fmt: skip
    entry[key] = data.draw(junk)
    try:
        text = json.dumps(found, allow_nan=False)
    except ValueError:
        return
    with contextlib.suppress(cedar.PlanError):
        plan_from(text, pipeline)
