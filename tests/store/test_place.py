"""Who makes room for whom: the least recently used of others, never what a loop needs next."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from cedar.store.entry import Damaged, OtherVersion
from cedar.store.folder import Bucket, Folder
from cedar.store.place import EntryInfo, PassTimes, Place, leaving, name_of, surplus


def test_the_least_recently_used_of_others_go_first() -> None:
    held = [
        EntryInfo("a", "old", 10, 3.0),
        EntryInfo("b", "old", 10, 1.0),
        EntryInfo("c", "mine", 10, 0.0),
        EntryInfo("d", "old", 10, 9.0),
    ]
    assert [e.name for e in leaving(held, 5, 45, "mine", since=5.0) or ()] == []
    assert [e.name for e in leaving(held, 10, 40, "mine", since=5.0) or ()] == ["b"]
    assert [e.name for e in leaving(held, 20, 40, "mine", since=5.0) or ()] == ["b", "a"]
    assert leaving(held, 30, 40, "mine", since=5.0) is None, "neither its own group nor what is in use"
    assert [e.name for e in surplus(held, 20)] == ["c", "b"]


def test_a_pass_ends_where_a_split_comes_again() -> None:
    passes = PassTimes()
    for now, name in enumerate("abcabcab"):
        passes.visit("g", name, float(now))
    assert passes.since("g") == 3.0, "the pass before the present one, which began at 6"
    assert passes.since("other") == math.inf, "it makes no passes"


Make = Callable[[int | None], Place]


@pytest.fixture(params=["folder", "bucket"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    fs = fsspec.filesystem("memory")

    def made(limit: int | None = None) -> Place:
        if request.param == "folder":
            return Folder(str(tmp_path / "kept"), limit=limit)
        return Bucket(fs, f"/places{tmp_path}", limit)

    return made


def body(text: bytes, **about: Any) -> Any:
    def write(sink: Any) -> dict[str, Any]:
        sink.write(text)
        return about

    return write


NAMES = [name_of("kind", number) for number in range(4)]


def test_an_entry_comes_back_elsewhere(make: Make) -> None:
    assert make(None).get(NAMES[0], {}) is None
    assert make(None).put(NAMES[0], body(b"some", x=[1]), {}) > 4
    entry = make(None).get(NAMES[0], {})
    assert entry is not None
    assert (bytes(entry.body), entry.about) == (b"some", {"x": [1]})
    assert [each.name for each in make(None).entries()] == [NAMES[0]]


def torn(*_: Any) -> Any:
    raise Damaged("it is torn")


def test_what_cannot_be_used_is_removed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    place = make(None)
    place.put(NAMES[0], body(b"some"), {"a": "1"})
    with pytest.raises(OtherVersion):
        place.get(NAMES[0], {"a": "2"})
    assert place.get(NAMES[0], {"a": "1"}), "any code that needs it replaces it"
    monkeypatch.setattr("cedar.store.place.opened", torn)
    with pytest.raises(Damaged):
        place.get(NAMES[0], {"a": "1"})
    monkeypatch.undo()
    assert place.get(NAMES[0], {"a": "1"}) is None


def test_a_place_keeps_to_its_budget(make: Make) -> None:
    size = make(None).put(NAMES[0], body(b"x" * 1000), {})
    place = make(2 * size)
    for number in (1, 2):
        assert place.put(NAMES[number], body(b"x" * 1000), {}) == size
    assert {each.name for each in place.entries()} == {NAMES[1], NAMES[2]} - {NAMES[0]}
    assert place.evicted == 1
    assert place.put(NAMES[3], body(b"x" * 5000), {}) == 0
    assert place.put(NAMES[3], body(b"x"), {}, expected=5000) == 0
    assert make(0).put(NAMES[3], body(b""), {}) == 0


def test_a_pass_does_not_evict_its_own(make: Make) -> None:
    size = make(None).put(NAMES[0], body(b"x" * 1000), {})
    place = make(2 * size)
    for name in NAMES:
        place.visit(name)
        place.put(name, body(b"x" * 1000), {})
    assert {each.name for each in place.entries()} == {NAMES[0], NAMES[1]}


def test_one_that_was_used_lately_stays(tmp_path: Path) -> None:
    place = Folder(str(tmp_path))
    (size,) = {place.put(name, body(b"x" * 1000), {}) for name in NAMES[:2]}
    for number, name in enumerate(NAMES[:2]):
        os.utime(place.path(name), (number + 1, number + 1))
    place.get(NAMES[0], {})
    small = Folder(str(tmp_path), limit=2 * size)
    small.put(NAMES[2], body(b"x" * 1000), {})
    assert {each.name for each in small.entries()} == {NAMES[0], NAMES[2]}
