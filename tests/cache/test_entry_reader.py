"""How entries are read: what comes out is what went in, and damage is found."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.cache import entries
from cedar.cache.entries import tail, write_body
from cedar.cache.entry_reader import Damaged, read_entry
from cedar.core.block import Block, Skipped
from tests import toy_entries
from tests.cache.toy_written import SMALL
from tests.toy_entries import assert_same

ORDINALS = (3, 7)


def written(blocks: list[Block], ordinals: tuple[int, ...] = ORDINALS) -> bytes:
    sink = pa.BufferOutputStream()
    described = write_body(blocks, sink, ordinals)
    body: bytes = sink.getvalue().to_pybytes()
    return body + tail("name", described, zlib.crc32(body))


@pytest.mark.heavy
@given(st.lists(toy_entries.blocks(), max_size=3))
def test_blocks_of_every_kind_come_back(blocks: list[Block]) -> None:
    for raw in (written(blocks), bytearray(written(blocks))):
        read = read_entry(raw, "name", ORDINALS, checked=False).blocks
        assert len(read) == len(blocks)
        for a, b in zip(blocks, read, strict=True):
            assert_same(a, b)


def test_every_flipped_byte_is_found() -> None:
    raw = written([SMALL])
    for place in range(len(raw)):
        damaged = bytearray(raw)
        damaged[place] ^= 1 << place % 8
        with pytest.raises(Damaged):
            read_entry(damaged, "name", ORDINALS, checked=False)


def test_every_truncation_is_found() -> None:
    raw = written([SMALL])
    for length in range(len(raw)):
        with pytest.raises(Damaged):
            read_entry(raw[:length], "name", ORDINALS, checked=False)


def test_another_version_is_not_read(monkeypatch: Any) -> None:
    now = entries.versions()
    for name in now:
        with monkeypatch.context() as patched:
            patched.setattr(entries, "versions", lambda: now | {name: "0"})  # noqa: B023 - used at once
            raw = written([SMALL])
        with pytest.raises(Damaged, match="another version"):
            read_entry(raw, "name", ORDINALS, checked=False)


def test_another_entry_is_not_read() -> None:
    with pytest.raises(Damaged, match="another entry"):
        read_entry(written([SMALL]), "other", ORDINALS, checked=True)


def test_dead_slots_name_the_operators_of_the_pipeline_that_reads() -> None:
    block = SMALL.kill({1: Skipped(7, "map(f)", "no")})
    read = read_entry(written([block]), "name", (4, 9), checked=False).blocks[0]
    assert dict(read.dead) == {1: replace(block.dead[1], operator=9)}
