"""Buffers: memory is used again when nothing holds it, and not before."""

from __future__ import annotations

import gc
import random
import threading

import numpy as np
import pytest

from cedar.core import buffers
from cedar.core.columns import concat, take

SHAPE = (3, 1 << 20)


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_memory_that_was_let_go_serves_again():
    first = buffers.empty(SHAPE, "uint8")
    at = address(first)
    del first
    gc.collect()
    assert address(buffers.empty(SHAPE, "uint8")) == at


def test_memory_that_a_view_holds_does_not():
    first = buffers.empty(SHAPE, "uint8")
    first[...] = 7
    view = first[1:, 5:].reshape(2, -1).view("uint8")
    at = address(first)
    del first
    gc.collect()
    other = buffers.empty(SHAPE, "uint8")
    other[...] = 9
    assert address(other) != at
    assert (view == 7).all()


def test_small_arrays_and_objects_are_plain():
    assert buffers.empty((4,), "int64").flags.owndata
    assert buffers.empty((1 << 18,), object).dtype == object


def test_what_is_kept_is_bounded():
    arrays = [buffers.empty((40 << 20,), "uint8") for _ in range(10)]
    del arrays
    gc.collect()
    assert buffers._idle_memory._bytes <= buffers._MAX_IDLE_BYTES


def test_many_threads_share_it():
    wrong: list[int] = []

    def work(value: int) -> None:
        for _ in range(50):
            array = buffers.empty(SHAPE, "uint8")
            array[:, ::4096] = value
            wrong.extend([value] * int((array[:, ::4096] != value).any()))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


def test_large_columns_are_joined_and_taken_as_small_ones():
    parts = [np.random.default_rng(i).random((5 + i, 300, 200)) for i in range(3)]
    joined = concat(parts)
    assert (joined == np.concatenate(parts)).all()
    index = np.array([3, 0, 11, 3], dtype=np.int64)
    assert (take(joined, index) == joined[index]).all()
    assert (take(joined[:, ::2], index) == joined[:, ::2][index]).all()


def test_memory_that_nobody_wants_any_more_is_let_go(monkeypatch):
    monkeypatch.setattr(buffers, "_TRIM_INTERVAL_BYTES", 1 << 20)
    spare = buffers._IdleMemory()
    burst = [spare.take(1 << 16) for _ in range(3)] + [spare.take(1 << 17)]
    for memory in burst:
        spare.give_back(memory)
    for _ in range(3 * 16):
        spare.give_back(spare.take(1 << 16))
    assert {size: len(there) for size, there in spare._idle.items()} == {1 << 16: 1}
    assert spare._bytes == 1 << 16


def test_no_more_is_kept_than_was_in_use_at_once():
    spare = buffers._IdleMemory()
    size = 1 << 20
    for memory in [spare.take(4 * size) for _ in range(2)]:
        spare.give_back(memory)
    assert spare._bytes == 8 * size
    others = [spare.take(size) for _ in range(6)]  # of another size: they push out what lies idle
    assert spare._used + spare._bytes <= 8 * size
    for memory in others:
        spare.give_back(memory)
    assert spare._bytes <= 8 * size
    assert len(spare._idle[size]) == 6, "and what was used last stays"


class Ring:
    """Refers to itself, so that a collection alone releases what it holds."""

    def __init__(self, held: object) -> None:
        self.held, self.itself = held, self


@pytest.mark.heavy
@pytest.mark.parametrize("where", ["_pop", "_shrink", "_trim"])
def test_a_collection_in_the_middle_gives_back_in_order(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spare = buffers._IdleMemory()
    monkeypatch.setattr(buffers, "_idle_memory", spare)
    monkeypatch.setattr(buffers, "_TRIM_INTERVAL_BYTES", 20 << 20)
    step = getattr(buffers._IdleMemory, where)

    def collect_first(self: buffers._IdleMemory, *size: int) -> object:
        gc.collect()
        return step(self, *size)

    monkeypatch.setattr(buffers._IdleMemory, where, collect_first)
    draw = random.Random(7)
    gc.collect()
    gc.freeze()  # what other tests hold is not looked through each time
    gc.disable()
    try:
        held: list[np.ndarray] = []
        for _ in range(60):
            array = buffers.empty(((1 << 20) * draw.choice((1, 2, 3, 5, 9)),), "uint8")
            if draw.random() < 0.5:
                Ring(array)
            else:
                held.append(array)
            if len(held) > 3:
                held.pop(draw.randrange(4))
        del array
    finally:
        gc.enable()
        gc.collect()
        gc.unfreeze()
    spare._sort_in()
    assert spare._bytes == sum(len(memory) for there in spare._idle.values() for memory in there)
    assert spare._used == sum(buffers._rounded(array.nbytes) for array in held)
