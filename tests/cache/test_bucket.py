"""Entries below a URL, in a marked folder of their own."""

from __future__ import annotations

import fsspec

from cedar.cache.folder import INSIDE
from cedar.cache.store import Store
from tests.cache.toy_stored import block
from tests.toy_entries import Key


def test_a_url_with_a_folder_that_cedar_did_not_make_is_left_alone() -> None:
    fs, root = fsspec.url_to_fs(f"memory://others/{INSIDE}")
    fs.pipe_file(f"{root}/{Key('g', '0').name}.arrow", b"precious")
    kept = Store()
    assert kept.get(Key("g", "0"), "memory://others") is None, "it is no entry"
    kept.put(Key("g", "0"), "memory://others", [block()])
    assert fs.cat_file(f"{root}/{Key('g', '0').name}.arrow") == b"precious"
    assert any("did not make" in note for note in kept.notes)
