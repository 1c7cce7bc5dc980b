"""Entries below a URL, in a marked folder of their own."""

from __future__ import annotations

import fsspec
import pytest

from cedar.core.requests import ATTEMPTS
from cedar.store.cache import Store
from cedar.store.place import INSIDE
from cedar.testing import flaky
from tests.store.toy_stored import block
from tests.toy_entries import Key


def test_a_url_with_a_folder_that_cedar_did_not_make_is_left_alone() -> None:
    fs, root = fsspec.url_to_fs(f"memory://others/{INSIDE}")
    fs.pipe_file(f"{root}/{Key('g', '0').name}.arrow", b"precious")
    kept = Store()
    assert kept.get(Key("g", "0"), "memory://others") is None, "it is not an entry"
    kept.put(Key("g", "0"), "memory://others", [block()])
    assert fs.cat_file(f"{root}/{Key('g', '0').name}.arrow") == b"precious"
    assert any("did not make" in note for note in kept.notes)


def test_what_fails_and_passes_costs_no_entry() -> None:
    kept, where = Store(), flaky("memory://cache-faults", status=0.1, reset=0.1, short=0.1)
    keys = [Key("g", str(i)) for i in range(10)]
    for i, key in enumerate(keys):
        kept.put(key, where, [block(i)], {"group": key.group})
    found = [kept.get(key, where) for key in keys]
    assert [blocks and blocks[0].columns["x"][0, 0] for blocks in found] == list(range(10))
    assert kept.kept([key.name for key in keys], where) == 10
    assert (kept.notes, kept.rejected, len(kept.records(where))) == ([], 0, 1)


def test_a_storage_that_is_down_is_said_and_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ATTEMPTS, "2")
    kept, where = Store(), flaky("memory://cache-down", status=0.999)
    for i in range(3):
        assert kept.get(Key("g", str(i)), where) is None
        kept.put(Key("g", str(i)), where, [block()])
    reading, writing = kept.notes
    assert "cannot be read" in reading
    assert "cannot be written" in writing
    assert all("failed 2 time(s)" in note and "503" in note for note in kept.notes)
