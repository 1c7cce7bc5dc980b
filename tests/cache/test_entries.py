"""Entries: what of blocks can be stored as Arrow."""

from __future__ import annotations

import importlib.metadata

import numpy as np
import pyarrow as pa
import pytest

from cedar.cache import entries
from cedar.cache.entries import storable, versions
from cedar.core.block import Block
from tests.cache.toy_written import SMALL


def test_another_version_of_a_decoder_makes_other_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    before, version = versions(), importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version(name) + ".1" * (name == "pillow"))
    entries._decoders.cache_clear()
    try:
        assert {name for name, found in versions().items() if found != before[name]} == {"pillow"}
    finally:
        entries._decoders.cache_clear()


def test_what_has_no_arrow_form_is_not_stored() -> None:
    assert storable([SMALL]) == ""
    assert "'o'" in storable([Block({"o": np.array([{}, 1, 2], dtype=object)}, SMALL.keys)])
    assert storable([Block({"x": pa.array([1])}, SMALL.keys, aligned=False)])
