"""Plans that do not fit a pipeline are refused with the place; text that is not a plan ends in an error."""

import contextlib
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar import col
from cedar.plan.data import Plan
from cedar.plan.saved import plan_from, text_of
from tests.plan import toy_plans
from tests.plan.toy_plans import decode, rewritten, rows, written

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
        (lambda: written().take(3), r"of a pipeline of 7 operators; this one has take\(3\) besides"),
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


def step(number, **changes):
    return lambda found: found["steps"][number].update(changes)


@pytest.mark.parametrize(
    ("edit", "match"),
    [
        (step(0, at=99), "a step at node 99, which is not there"),
        (step(0, at=-1), "'at' is -1, not an integer"),
        (step(0, at=True), "'at' is True"),
        (step(0, **{"pass": "x"}), "'pass' is 'x'"),
        (step(0, **{"pass": 9}), "not in the order of their passes"),
        (step(1, **{"pass": 0, "at": 2}), "two steps at one node"),
        (step(0, at=1), "has no such run of operators"),
        (step(0, step="Lose"), "a step 'Lose', which is none of"),
        (step(0, step="Replace"), "a step 'Replace', which is none of"),
        (step(0, step=["Reorder"]), "which is none of"),
        (step(0, size=5), r"step Reorder has \['order', 'size'\], not \['order'\]"),
        (step(0, order=3), r"'order' is 3, not tuple\[int"),
        (step(0, order=[1, True]), r"not tuple\[int"),
        (step(0, order=[0, 1]), "already in this order"),
        (step(0, order=[2, 0, 1]), "has no such run of operators"),
        (step(1, at=2), "not a filter by expression above a source"),
        (step(2, results=[0]), "a is read"),
        (step(2, results=[7]), "no such results"),
        (step(3, columns=["x"]), "'y' is read further up"),
        (step(3, columns=["y", "x", "z"]), "columns of the source in its order"),
        (step(3, columns=["x", "y", "z", "nose"]), "columns of the source in its order"),
        (step(4, above=5), "not the same in every epoch"),
        (step(5, places=[""]), "the graph has other operators"),
        (step(5, places=["processes"] * 7), "needs order or state"),
        (lambda f: f["steps"].insert(0, f["steps"].pop(1)), "not in the order of their passes"),
        (lambda f: f["steps"].append({}), "'pass' is None"),
        (lambda f: f.pop("steps"), "no list of steps"),
        (lambda f: f.update(steps=[3]), "no list of steps"),
        (lambda f: f.pop("operators"), "no list of operators"),
        (lambda f: f.update(pipeline="0"), "digest differs"),
        (lambda f: f.update(workers=0), "workers 0"),
        (lambda f: f.update(executor=4), "'executor' is 4"),
        (lambda f: f.update(decisions=[{"rule": 1}]), "'rule' is 1"),
        (lambda f: f.update(cedar_plan=2), "version 2, this release reads 3"),
        (lambda f: f.pop("cedar_plan"), "is not a plan"),
    ],
)
def test_an_edited_plan_that_cannot_be_is_refused(edit, match):
    plan = rewritten()
    refuse(edited(plan, edit), cedar.Pipeline(plan.logical), match)


def test_the_step_that_is_refused_names_the_line_of_the_user():
    plan = rewritten()
    error = refuse(edited(plan, step(2, results=[0])), cedar.Pipeline(plan.logical), "the plan's step DropResults")
    assert error.site.file == toy_plans.__file__


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "3", "[" * 100_000, '{"cedar_plan": NaN}', '{"a": 1}', "plan: 1"]
)
def test_garbage_is_refused(text):
    refuse(text, written(), "plan")


def test_a_truncated_plan_is_refused():
    pipeline = written()
    whole = text_of(Plan.as_written(pipeline.node))
    for size in range(0, len(whole) - 2, 97):
        refuse(whole[:size], pipeline, "not JSON, or was cut off")


@given(st.data())
def test_any_change_of_a_value_ends_in_a_plan_or_a_plan_error(data):
    plan = rewritten()
    pipeline, found = cedar.Pipeline(plan.logical), json.loads(text_of(plan))
    part = found[data.draw(st.sampled_from(["steps", "operators"]))]
    entry = part[data.draw(st.integers(0, len(part) - 1))]
    key = data.draw(st.sampled_from([*entry, "order", "columns", "above", "where", "at"]))
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
