"""Profiles as data: what takes the time, other pipelines and machines, merging."""

from __future__ import annotations

import json
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


def test_what_is_saved_is_loaded(tmp_path):
    figures = OperatorProfile("map(decode)", 3, 100, 1.25e-3, 1e-3, 0.5, 10.0, 20.5, {"x": 1.5, "é": 2.0}, 0.25, 1e-5)
    source = OperatorProfile("read", 3, 100, 1.0, 1.0)
    saved = Profile("abc", {0: source, 2: figures}, HERE, 100, 2.5, 4, "threads")
    saved.save(tmp_path / "p.json")
    assert Profile.load(tmp_path / "p.json") == saved
    assert [p.name for p in tmp_path.iterdir()] == ["p.json"]


def test_the_file_diffs_well(tmp_path):
    profile(1.23456789e-6, 2e-6).save(tmp_path / "a.json")
    profile(1.23456781e-6, 3e-6).save(tmp_path / "b.json")
    a, b = ((tmp_path / name).read_text().splitlines() for name in ("a.json", "b.json"))
    changed = [(x.strip(), y.strip()) for x, y in zip(a, b, strict=True) if x != y]
    assert changed == [('"wall": 2e-06,', '"wall": 3e-06,'), ('"cpu": 2e-06,', '"cpu": 3e-06,')]


def changed(tmp_path, change):
    """A saved profile with something changed in its JSON."""
    path = tmp_path / "p.json"
    profile(1e-6).save(path)
    found = json.loads(path.read_text())
    path.write_text(json.dumps(change(found) or found))
    return path


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: [1, 2], "it does not begin with"),
        (lambda d: d.update(format="yaml"), "it does not begin with"),
        (lambda d: d.update(version=99), "it has version 99, but this cedar reads version 2"),
        (lambda d: d.pop("machine") and None, "machine is missing"),
        (lambda d: d["machine"].update(cores="two"), "machine: cores is 'two'"),
        (lambda d: d["machine"].update(memory=-1), "machine: memory is -1"),
        (lambda d: d["machine"].update(ship_bytes=0), "machine: ship_bytes is 0"),
        (lambda d: d.update(operators={}), "operators is not a list"),
        (lambda d: d.update(operators=[3]), "ordinal None is invalid"),
        (lambda d: d["operators"].append(dict(d["operators"][0])), "ordinal 0 is invalid or repeated"),
        (lambda d: d["operators"][0].update(wall=None), "operator 0: wall is None"),
        (lambda d: d["operators"][0].update(rows=True), "operator 0: rows is True"),
        (lambda d: d["operators"][0].update(columns={"x": "large"}), "operator 0: columns is"),
        (lambda d: d["operators"][0].update(gil=1.5), "operator 0: gil is 1.5"),
        (lambda d: d["operators"][0].update(wall=float("nan")), "NaN is not a valid number"),
        (lambda d: d["operators"][0].pop("label") and None, "operator 0 has no 'label'"),
        (lambda d: d.update(color="red"), "the profile has an unknown 'color'"),
    ],
)
def test_a_file_that_is_no_profile_is_refused(tmp_path, change, said):
    with pytest.raises(PlanError) as raised:
        Profile.load(changed(tmp_path, change))
    assert said in str(raised.value)
    assert "p.json" in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"not json", b"{" * 100_000])
def test_garbage_is_refused(tmp_path, content):
    (tmp_path / "p.json").write_bytes(content)
    with pytest.raises(PlanError, match="is not a valid profile"):
        Profile.load(tmp_path / "p.json")


def test_a_file_that_cannot_be_read_or_written_is_told(tmp_path):
    with pytest.raises(PlanError, match="cannot be read"):
        Profile.load(tmp_path / "none.json")
    with pytest.raises(PlanError, match="cannot be written"):
        profile(1.0).save(tmp_path / "none" / "p.json")
