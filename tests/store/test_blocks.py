"""Blocks as entries: what of blocks can be stored, what comes out is what went in, and damage is found."""

from __future__ import annotations

import importlib.metadata
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.block import Block, Skipped
from cedar.core.cursor import Keys
from cedar.core.groups import cut_each, grouped
from cedar.store import blocks as entries
from cedar.store.blocks import read_blocks, storable, versions, write_body
from cedar.store.entry import Damaged, Entry, opened, sealed
from tests import toy_entries
from tests.store.toy_written import SMALL
from tests.toy_entries import assert_same


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


ORDINALS = (3, 7)


def written(blocks: list[Block], ordinals: tuple[int, ...] = ORDINALS) -> bytes:
    return sealed("name", lambda sink: write_body(blocks, sink, ordinals), entries.versions())


def read(raw: bytes | bytearray, ordinals: tuple[int, ...] = ORDINALS, name: str = "name") -> list[Block]:
    return read_blocks(opened(raw, name, versions()), ordinals)


@pytest.mark.heavy
@given(st.lists(toy_entries.blocks(), max_size=3))
def test_blocks_of_every_kind_come_back(blocks: list[Block]) -> None:
    for raw in (written(blocks), bytearray(written(blocks))):
        back = read(raw)
        assert len(back) == len(blocks)
        for a, b in zip(blocks, back, strict=True):
            assert_same(a, b)


def test_every_flipped_byte_is_found() -> None:
    raw = written([SMALL])
    for place in range(len(raw)):
        damaged = bytearray(raw)
        damaged[place] ^= 1 << place % 8
        with pytest.raises(Damaged):
            read(damaged)


def test_every_truncation_is_found() -> None:
    raw = written([SMALL])
    for length in range(len(raw)):
        with pytest.raises(Damaged):
            read(raw[:length])


def test_another_version_is_not_read(monkeypatch: Any) -> None:
    now = entries.versions()
    for name in now:
        with monkeypatch.context() as patched:
            patched.setattr(entries, "versions", lambda: now | {name: "0"})  # noqa: B023 - used at once
            raw = written([SMALL])
        with pytest.raises(Damaged, match="another version"):
            read(raw)


def test_another_entry_is_not_read() -> None:
    with pytest.raises(Damaged, match="another entry"):
        read(written([SMALL]), name="other")


def test_dead_slots_name_the_operators_of_the_pipeline_that_reads() -> None:
    block = SMALL.kill({1: Skipped(7, "map(f)", "no")})
    (back,) = read(written([block]), (4, 9))
    assert dict(back.dead) == {1: replace(block.dead[1], operator=9)}


ROWS = [[1, 2], [1, 2], [3], [1, 2], []]


def entry_with_group() -> Entry:
    """An entry of a group of two columns next to a plain one."""
    lists = pa.array(ROWS, pa.large_list(pa.int64()))
    columns = cut_each({**grouped({"a": lists, "b": lists}), "x": np.arange(5)}, 1, 5)
    return opened(written([Block(columns, Keys(np.arange(4)))]), "name", versions())


def test_groups_hold_what_their_rows_need_and_share_again() -> None:
    (block,) = read_blocks(entry_with_group(), ORDINALS)
    columns = block.columns
    assert list(columns) == ["a", "b", "x"]
    assert columns["a"].plain().to_pylist() == columns["b"].plain().to_pylist() == ROWS[1:]
    assert columns["a"].sharing is columns["b"].sharing
    assert columns["a"].values.to_pylist() == [[1, 2], [3], []]


@pytest.mark.parametrize("wrong", [{"held": 2}, {"held": 4}, {"held": 3.0}, {"together": 3}, {"fresh": [1, 0]}])
def test_a_group_that_is_told_wrongly_is_refused(wrong: dict[str, Any]) -> None:
    entry = entry_with_group()
    entry.about["blocks"][0]["groups"][0].update(wrong)
    with pytest.raises(Damaged, match="invalid rows"):
        read_blocks(entry, ORDINALS)
