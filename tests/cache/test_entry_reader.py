"""How entries are read: what comes out is what went in, and damage is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.cache import entries
from cedar.cache.entries import versions, write_body
from cedar.cache.entry_reader import read_blocks
from cedar.core.block import Block, Skipped
from cedar.store.entry import Damaged, opened, sealed
from tests import toy_entries
from tests.cache.toy_written import SMALL
from tests.toy_entries import assert_same

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
