"""Profiles as data: what takes the time, other pipelines and machines, merging."""

import re

import pytest

import cedar
from cedar.core.errors import PlanError
from cedar.profile import Machine, OperatorProfile, Profile, Subject
from tests.profile.toy_figures import HERE, profile

# ---- to read ---------------------------------------------------------------------------------------------------------


def test_the_bottleneck_is_the_operator_that_takes_most():
    assert profile(1e-6, 3e-6, 2e-6).bottleneck == "map(f1)"
    assert profile().bottleneck == "nothing was measured"
    assert profile(0.0).bottleneck == "nothing was measured"


def test_shares_add_up_to_one():
    assert sum(profile(1e-6, 3e-6, 2e-6).shares.values()) == pytest.approx(1)


# ---- other pipelines, other machines ---------------------------------------------------------------------------------


def test_a_profile_of_another_pipeline_is_refused_and_says_what_differs(tmp_path):
    rows = cedar.from_items([{"x": 1}])
    here, same = rows.map(str, "x"), cedar.from_items([{"x": 5}]).map(str, "x")
    labels = dict(here.subject.labels)
    operators = {i: OperatorProfile(label, 1, 1, 1.0, 1.0) for i, label in labels.items()}
    Profile(here.subject.digest, operators, HERE).save(tmp_path / "p.json")
    assert Profile.load(tmp_path / "p.json", same).operators == operators  # the data may be others
    for other, said in [
        (rows.map(repr, "x"), re.escape("operator 1 is map(str) there and map(repr) here")),
        (rows, re.escape("it has an operator 1, map(str), which this pipeline lacks")),
        (here.batch(2), "operators were added"),
    ]:
        with pytest.raises(PlanError, match=said):
            Profile.load(tmp_path / "p.json", other)


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        (Machine(cores=8, memory=8 << 30), ["2 core(s) there, 8 here"]),
        (Machine(cores=2, memory=64 << 30), ["8.59 GB of memory there, 68.7 GB here"]),
        (Machine(cores=2, memory=8 << 30, speed=300.0), ["a core is 3.0x as fast here"]),
        (Machine(cores=2, memory=8 << 30, speed=0.0, ship_seconds=1.0), []),
        (Machine(cores=2, memory=9 << 30, speed=90.0), []),
    ],
)
def test_a_profile_knows_whether_it_fits_a_machine(machine, said):
    assert profile(1e-6).differences(machine) == said
    assert profile(1e-6).fits(machine) is (not said)


# ---- refreshed by runs -----------------------------------------------------------------------------------------------


def test_newer_figures_count_twice():
    merged = profile(1e-6).merge(profile(4e-6))
    assert merged.operators[0].wall == pytest.approx(3e-6)
    assert merged.operators[0].rows == 2000


def test_however_many_older_rows_there_are_newer_ones_count():
    merged = profile(1e-6, rows=10**9).merge(profile(4e-6, rows=10))
    assert merged.operators[0].wall == pytest.approx(2e-6)


def test_seconds_of_another_machine_do_not_count():
    elsewhere = Machine(cores=64, memory=8 << 30)
    merged = profile(1e-6).merge(profile(4e-6, machine=elsewhere))
    assert merged.operators[0].wall == 4e-6
    assert merged.machine == elsewhere


def test_waiting_beside_other_tasks_does_not_count():
    alone = Profile("abc", {0: OperatorProfile("f", 1, 100, wall=2e-3, cpu=1e-3)}, HERE)
    crowded = Profile("abc", {0: OperatorProfile("f", 1, 100, wall=9e-3, cpu=1e-3)}, HERE, workers=8)
    assert alone.merge(crowded).operators[0].wall == pytest.approx(2e-3)


def test_what_only_one_of_both_measured_is_kept():
    first = Profile("abc", {0: OperatorProfile("f", 1, 10, 1.0, 1.0, gil=0.5, columns={"x": 8.0})}, HERE)
    second = Profile("abc", {0: OperatorProfile("f", 1, 10, 1.0, 1.0), 1: OperatorProfile("g", 1, 10, 1.0, 1.0)}, HERE)
    merged = first.merge(second)
    assert merged.operators[0].gil == 0.5
    assert merged.operators[0].columns == {"x": 8.0}
    assert set(merged.operators) == {0, 1}


def test_profiles_of_two_pipelines_are_not_merged():
    with pytest.raises(PlanError, match="another pipeline"):
        profile(1.0).merge(profile(1.0, pipeline="def"))


def test_a_subject_stands_for_operators_and_parameters():
    rows = cedar.from_items([{"x": 1}])
    assert rows.batch(2).subject == rows.batch(2).subject
    assert rows.batch(2).subject != rows.batch(3).subject
    assert isinstance(rows.subject, Subject)
