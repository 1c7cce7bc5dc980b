"""Files of profiles: what is saved is loaded, and whatever else is refused."""

from __future__ import annotations

import json

import pytest

from cedar.core.errors import PlanError
from cedar.profile import OperatorProfile, Profile
from tests.profile.toy_figures import HERE, profile


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
