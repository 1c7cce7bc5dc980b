"""The arena: slots against a model, buffers that lie where they were put, a full file system, forks."""

from __future__ import annotations

import errno
import gc
import os
import resource
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cedar.executors.worker import arena
from cedar.executors.worker.arena import Inbox, Outbox, RangeAllocator

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems use pipes")


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 700)), max_size=60), st.integers(0, 40))
def test_slots_never_overlap_and_all_come_back(steps: list[tuple[bool, int]], capacity: int) -> None:
    capacity *= 64
    slots = RangeAllocator(capacity)
    live: dict[int, int] = {}
    for frees, number in steps:
        if frees and live:
            start = sorted(live)[number % len(live)]
            slots.free(start)
            del live[start]
            continue
        used = {cell for start, size in live.items() for cell in range(start // 64, (start + size + 63) // 64)}
        cells = -(-number // 64)
        fits = [c for c in range(capacity // 64 - cells + 1) if used.isdisjoint(range(c, c + cells))]
        found = slots.take(number)
        assert found == (64 * fits[0] if fits else None), "the first place that fits"
        if found is not None:
            live[found] = number
        assert slots.end == max((start + size + -size % 64 for start, size in live.items()), default=0)
    for start in live:
        slots.free(start)
    assert slots.end == 0
    assert slots.take(capacity or 1) == (0 if capacity else None)


@given(st.lists(st.integers(1, 400), max_size=20), st.data())
def test_a_shrunken_arena_stays_below(sizes: list[int], data: st.DataObject) -> None:
    slots = RangeAllocator(6400)
    taken = [start for size in sizes if (start := slots.take(size)) is not None]
    capacity = slots.end + 64 * data.draw(st.integers(0, (6400 - slots.end) // 64))
    slots.shrink(capacity)
    while (start := slots.take(64)) is not None:
        assert start + 64 <= capacity
        taken.append(start)
    for start in taken:
        slots.free(start)
    assert slots.end == 0
    assert capacity == 0 or slots.take(capacity) == 0
    assert slots.take(1) is None


@pytest.fixture
def ends() -> Iterator[tuple[Inbox, Outbox]]:
    inbox = Inbox(1, 1 << 20)
    outbox = Outbox(1, os.dup(inbox.file), inbox.capacity)
    yield inbox, outbox
    outbox.close()


def describe(inbox: Inbox) -> list[int]:
    return [inbox.released.popleft() for _ in range(len(inbox.released))]


def numbers(n: int, value: int) -> memoryview:
    return memoryview(np.full(n, value, dtype=np.uint8))


def test_what_is_put_lies_there_until_the_last_view_dies(ends: tuple[Inbox, Outbox]) -> None:
    inbox, outbox = ends
    places = [outbox.put(numbers(1000, value)) for value in range(3)]
    assert places == [0, 1024, 2048]
    first, second, _ = (np.frombuffer(inbox.view(place or 0, 1000), dtype=np.uint8) for place in places)
    assert (first == 0).all()
    assert second.ctypes.data % 64 == 0
    assert second.flags.writeable
    piece = second[500:600]
    del second, _
    assert describe(inbox) == [2048]
    del piece
    assert describe(inbox) == [1024]
    assert inbox.read
    del first
    assert not inbox.read


def test_a_full_arena_takes_no_more_until_something_is_free(ends: tuple[Inbox, Outbox]) -> None:
    _, outbox = ends
    half = numbers(1 << 19, 7)
    assert [outbox.put(half) for _ in range(3)] == [0, 1 << 19, None]
    outbox.free([0])
    assert outbox.put(half) == 0


def reserved(outbox: Outbox, size: int, value: int) -> npt.NDArray[np.uint8]:
    memory = outbox.reserve(size)
    assert memory is not None
    array = np.frombuffer(memory, dtype=np.uint8)
    array[:] = value
    return array


def test_arrays_in_the_arena_are_sent_without_a_copy(ends: tuple[Inbox, Outbox]) -> None:
    inbox, outbox = ends
    array = reserved(outbox, 1000, 1)
    place = outbox.put(array.data)
    view = np.frombuffer(inbox.view(place or 0, 1000), dtype=np.uint8)
    array[:] = 2
    assert (view == 2).all(), "the same memory"
    again = outbox.put(array.data)
    assert again != place, "the reader uses it"
    del array, view
    outbox.free([*describe(inbox), again or 0])
    assert outbox.put(numbers(1 << 20, 3)) == 0, "all of it is free"
    assert outbox.reserve(1) is None


def test_a_full_file_system_provides_no_memory_for_arrays(
    ends: tuple[Inbox, Outbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, outbox = ends

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert outbox.reserve(100) is None
    monkeypatch.undo()
    assert (reserved(outbox, 1 << 20, 1) == 1).all(), "nothing stayed reserved"


STEPS = st.sampled_from(["reserve", "put", "part", "drop", "release", "fork"])


@settings(deadline=None)
@given(st.lists(st.tuples(STEPS, st.integers(0, 99)), max_size=80))
@example([("reserve", 1), ("put", 1), ("drop", 0), ("reserve", 1)])  # only the reader uses it
@example([("reserve", 1), ("put", 1), ("release", 0), ("reserve", 1)])  # only the writer does
@example([("reserve", 1), ("fork", 0), ("drop", 0), ("reserve", 1)])  # only the child does
@example([("reserve", 1), ("put", 1), ("fork", 0), ("drop", 0), ("reserve", 1), ("release", 0), ("reserve", 1)])
def test_memory_in_use_is_never_written_again(steps: list[tuple[str, int]]) -> None:
    inbox = Inbox(1, 1 << 16)
    outbox = Outbox(1, os.dup(inbox.file), inbox.capacity)
    first = reserved(outbox, 64, 255)
    arrays: list[tuple[npt.NDArray[np.uint8], int]] = [(first, 255)]
    views: list[tuple[npt.NDArray[np.uint8], int]] = []
    of_child: list[tuple[int, int, int]] = []  # offset, size and value of arrays that were alive at a fork
    for count, (step, number) in enumerate(steps):
        if step == "reserve" and (memory := outbox.reserve(100 * number + 1)) is not None:
            arrays.append((np.frombuffer(memory, dtype=np.uint8), count))
            arrays[-1][0][:] = count
            del memory
        elif step in ("put", "part"):
            array, value = arrays[number % len(arrays)]
            part = array[len(array) // 3 :] if step == "part" else array
            if (place := outbox.put(part.data)) is not None:
                views.append((np.frombuffer(inbox.view(place, len(part)), dtype=np.uint8), value))
            del array, part
        elif step == "drop" and len(arrays) > 1:
            arrays.pop(1 + number % (len(arrays) - 1))
        elif step == "release" and views:
            views.pop(number % len(views))
            outbox.free(describe(inbox))
        elif step == "fork":
            outbox.keep_for_child()
            of_child += [(a.ctypes.data - first.ctypes.data, len(a), v) for a, v in arrays]
        assert all((held == value).all() for held, value in (*arrays, *views))
        assert all(os.pread(inbox.file, size, start) == bytes([value]) * size for start, size, value in of_child)
    outbox.close()


def test_memory_outlives_both_ends() -> None:
    inbox = Inbox(1, 1 << 20)
    outbox = Outbox(1, os.dup(inbox.file), inbox.capacity)
    values = np.frombuffer(inbox.view(outbox.put(numbers(1000, 5)) or 0, 1000), dtype=np.uint8)
    outbox.close()
    del inbox, outbox
    gc.collect()
    assert (values == 5).all()


def blocks_of(file: int) -> int:
    return os.fstat(file).st_blocks * 512


def test_memory_that_is_no_longer_needed_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "_MAX_UNUSED_BYTES", 1 << 18)
    inbox = Inbox(1, 4 << 20)
    outbox = Outbox(1, os.dup(inbox.file), inbox.capacity)
    places = [outbox.put(numbers(1 << 20, 1)) for _ in range(4)]
    assert blocks_of(inbox.file) == 4 << 20
    outbox.free(place for place in places[1:] if place is not None)
    for _ in range(200):
        place = outbox.put(numbers(1000, 2))
        assert place is not None
        outbox.free([place])
    assert blocks_of(inbox.file) <= 2 << 20
    assert (np.frombuffer(inbox.view(0, 1 << 20), dtype=np.uint8) == 1).all()
    assert outbox.put(numbers(2 << 20, 3)) == 1 << 20
    assert (np.frombuffer(inbox.view(1 << 20, 2 << 20), dtype=np.uint8) == 3).all()
    outbox.close()


def test_a_full_file_system_bounds_the_arena(ends: tuple[Inbox, Outbox]) -> None:
    inbox, outbox = ends
    assert outbox.put(numbers(100_000, 1)) == 0
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (250_000, before[1]))
    try:
        assert outbox.put(numbers(100_000, 2)) == 100_032
        with pytest.raises(OSError, match="large"):
            outbox.put(numbers(100_000, 3))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert outbox.put(numbers(100_000, 3)) is None
    outbox.free([0])
    assert outbox.put(numbers(100_000, 4)) == 0
    assert outbox.put(numbers(1000, 5)) is None
    assert (np.frombuffer(inbox.view(100_032, 100_000), dtype=np.uint8) == 2).all()


def test_without_memfd_there_is_a_file_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    before = os.listdir("/dev/shm")
    inbox = Inbox(1, 1 << 20)
    outbox = Outbox(1, os.dup(inbox.file), inbox.capacity)
    assert os.fstat(inbox.file).st_nlink == 0
    assert os.listdir("/dev/shm") == before
    assert (np.frombuffer(inbox.view(outbox.put(numbers(1000, 8)) or 0, 1000), dtype=np.uint8) == 8).all()
    outbox.close()


def in_child(check: Any) -> bool:
    """What a forked child finds."""
    pid = os.fork()
    if not pid:
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_arrays_that_a_fork_found_are_not_written_again(ends: tuple[Inbox, Outbox]) -> None:
    _, outbox = ends
    held = {"x": reserved(outbox, 1000, 1)}
    assert in_child(lambda: bool((held["x"] == 1).all()))
    held.clear()
    assert outbox.put(numbers(1000, 2)) == 1024


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_keeps_what_its_parent_lets_go(ends: tuple[Inbox, Outbox]) -> None:
    inbox, outbox = ends
    assert in_child(lambda: True)
    assert not inbox.retired, "nothing of it was in use"
    held = {"x": np.frombuffer(inbox.view(outbox.put(numbers(1000, 1)) or 0, 1000), dtype=np.uint8)}
    ready, go = os.pipe(), os.pipe()

    def reads() -> bool:
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        return bool((held["x"] == 1).all())

    pid = os.fork()
    if not pid:
        os._exit(0 if reads() else 1)
    os.read(ready[0], 1)
    held.clear()
    freed = describe(inbox)
    outbox.free(freed)
    assert outbox.put(numbers(1000, 2)) is not None
    os.write(go[1], b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert freed == []
    assert inbox.retired
    for file in (*ready, *go):
        os.close(file)
