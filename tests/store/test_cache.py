"""What a store keeps, in memory and in directories, and what it gives back."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.dlpack import from_dlpack

from cedar.core.block import Block
from cedar.core.columns import objects
from cedar.core.cursor import Keys
from cedar.store import place
from cedar.store.cache import Memory, Store
from cedar.store.entry import opened
from tests import toy_entries
from tests.store.toy_stored import block, entries, entry
from tests.toy_entries import Key, assert_same


def stored(folder: Path) -> set[str]:
    names = (path.name.removesuffix(".arrow").split("-") for path in entries(folder))
    return {"-".join(bytes.fromhex(part).rstrip(b"\0").decode() for part in name) for name in names}


# ---- a directory -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["{}/kept", "file://{}/kept", "memory://{}/kept"])
def test_a_place_keeps_entries_for_other_loaders(where: str, tmp_path: Path) -> None:
    where = where.format(tmp_path)
    key = Key("g", "0", (1,), ("x",))
    assert Store().get(key, where) is None
    writer = Store()
    writer.put(key, where, [block()])
    reader = Store()
    assert_same((reader.get(key, where) or [])[0], block())
    assert (reader.hits, reader.misses, writer.stored_bytes > 1600) == (1, 0, True)
    assert reader.kept([Key("g", "0").name, Key("g", "1").name], where) == 1


def test_what_is_done_to_rows_does_not_reach_the_file(tmp_path: Path) -> None:
    key = Key("g", "0")
    Store().put(key, str(tmp_path), [block()])
    for _ in range(2):
        (read,) = Store().get(key, str(tmp_path)) or []
        read.columns["x"][:] = -1
    assert_same((Store().get(key, str(tmp_path)) or [])[0], block())


def test_fewer_columns_are_served_from_more(tmp_path: Path) -> None:
    both = Block({"a": np.zeros((3, 1)), "b": np.ones((3, 1))}, Keys(np.arange(3)))
    for where in ("memory", str(tmp_path)):
        kept = Store()
        kept.put(Key("g", "0", (), ("a", "b")), where, [both])
        assert list((kept.get(Key("g", "0", (), ("b",)), where) or [])[0].columns) == ["b"]
        assert list((kept.get(Key("g", "0", (), ("b", "a")), where) or [])[0].columns) == ["b", "a"]
        assert kept.get(Key("g", "0", (), ("a", "c")), where) is None


def test_a_directory_keeps_to_its_budget_in_order_of_use(tmp_path: Path) -> None:
    first = Store()
    first.put(Key("old", "0"), str(tmp_path), [block()])
    size = entries(tmp_path)[0].stat().st_size
    for i in (1, 2):
        first.put(Key("old", str(i)), str(tmp_path), [block(i)])
    for i, used in ((0, 300), (1, 100), (2, 200)):
        os.utime(entry(tmp_path, f"old-{i}"), (used, 50))
    second = Store(disk=3 * size + 100)
    second.get(Key("new", "0"), str(tmp_path))
    for i in range(5):
        second.put(Key("new", str(i)), str(tmp_path), [block(i)])
        if i == 0:
            assert stored(tmp_path) == {"old-0", "old-2", "new-0"}
    assert stored(tmp_path) == {"new-0", "new-1", "new-2"}
    assert second.describe()[0].endswith("3 evicted")
    assert any("is full" in note for note in second.notes)
    assert Store(disk=size + 100).get(Key("new", "0"), str(tmp_path)), "a lower budget takes effect with the next entry"
    third = Store(disk=size + 100)
    third.get(Key("other", "0"), str(tmp_path))
    third.put(Key("other", "0"), str(tmp_path), [block()])
    assert stored(tmp_path) == {"other-0"}


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "other"])
def test_a_damaged_entry_is_said_once_and_removed(damage: str, tmp_path: Path, caplog: Any) -> None:
    keys = [Key("g", str(i)) for i in range(3)]
    writer = Store()
    for key in keys:
        writer.put(key, str(tmp_path), [block()])
        assert writer.get(key, str(tmp_path)), "its checksum is known to this process now"
    for path in entries(tmp_path):
        raw = bytearray(path.read_bytes())
        raw[40] ^= 4
        path.write_bytes({"flip": raw, "cut": raw[:-9], "empty": b"", "other": b"ARROW1" * 100}[damage])
    with caplog.at_level(logging.WARNING, "cedar"):
        assert [writer.get(key, str(tmp_path)) for key in keys] == [None] * 3
    assert writer.rejected == 3
    assert len(caplog.records) == len(writer.notes) == 1
    assert stored(tmp_path) == set()
    writer.put(keys[0], str(tmp_path), [block()])
    assert writer.get(keys[0], str(tmp_path))


def test_an_entry_under_the_name_of_another_is_removed(tmp_path: Path) -> None:
    kept = Store()
    for i in (0, 1):
        kept.put(Key("g", str(i)), str(tmp_path), [block(i)])
    entry(tmp_path, "g-1").write_bytes(entry(tmp_path, "g-0").read_bytes())
    assert kept.get(Key("g", "0"), str(tmp_path))
    assert kept.get(Key("g", "1"), str(tmp_path)) is None
    assert (kept.rejected, stored(tmp_path)) == (1, {"g-0"})


# ---- what is not ours ------------------------------------------------------------------------------------------------


def test_a_checksum_is_computed_once_per_process(tmp_path: Path, monkeypatch: Any) -> None:
    checked: list[bool] = []
    real = opened
    monkeypatch.setattr(place, "opened", lambda *given: checked.append(given[-1]) or real(*given))
    Store().put(Key("once", "0"), str(tmp_path), [block()])
    for _ in range(3):
        Store().get(Key("once", "0"), str(tmp_path))
    assert checked == [False, True, True]


def test_objects_are_kept_in_memory_instead(tmp_path: Path) -> None:
    kept = Store()
    kept.put(Key("g", "0"), str(tmp_path), [Block({"o": objects([{}, {}])}, Keys(np.arange(2)))])
    assert "holds Python objects" in kept.notes[0]
    assert not list(tmp_path.iterdir())


def test_memory_keeps_a_part_of_a_loop_over_more_than_fits() -> None:
    size = block().nbytes
    memory = Memory(3 * size)
    for _ in range(3):
        hits = 0
        for name in "abcdef":
            found = memory.get("g", name)
            hits += found is not None
            if found is None:
                memory.put("g", name, [block()])
    assert hits == 3, "least recently used alone would keep nothing"
    assert memory.evicted == 0


def test_memory_forgets_another_plan_in_order_of_use() -> None:
    ticks = iter(range(100))
    memory = Memory(3 * block().nbytes, clock=lambda: float(next(ticks)))
    for name in "abc":
        memory.put("old", name, [block()])
    memory.get("old", "a")
    memory.get("new", "d")
    assert memory.put("new", "d", [block()])
    assert [memory.holds(n) for n in "abcd"] == [True, False, True, True]
    assert not memory.put("new", "e", [block(rows=1000)]), "more than the budget"


def test_memory_is_not_reached_by_what_is_done_to_rows() -> None:
    memory = Memory(1 << 20)
    numbers = pa.array(np.zeros(2, dtype=np.int64))
    given = Block({"x": np.zeros((2, 2)), "o": objects([[1], [2]]), "a": numbers}, Keys(np.arange(2)))
    memory.put("g", "n", [given])
    for write in (True, False, False):
        if write:
            given.columns["x"][:] = 7
        else:
            with pytest.raises(ValueError, match="read-only"):
                given.columns["x"][:] = 7
        given.columns["o"][0].append(5)
        from_dlpack(given.columns["a"])[:] = 7
        (given,) = memory.get("g", "n") or []
        assert given.columns["x"].sum() == 0
        assert given.columns["o"].tolist() == [[1], [2]]
        assert given.columns["a"].to_pylist() == [0, 0]


@given(st.lists(toy_entries.blocks(), max_size=3))
def test_memory_gives_back_what_it_got(blocks: list[Block]) -> None:
    memory = Memory(1 << 30)
    memory.put("g", "n", blocks)
    for a, b in zip(blocks, memory.get("g", "n") or [], strict=True):
        assert_same(a, b)
