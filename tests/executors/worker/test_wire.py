"""Wires: messages between two processes, whose large buffers nothing copies in between."""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.block import Block
from cedar.executors.worker.wire import Wire, decode, encode
from tests.executors.worker.shared_memory import LARGE, mapped, shares


@pytest.fixture
def wires() -> Iterator[tuple[Wire, Wire]]:
    """Both know each other's arena."""
    here, there = (Wire(end) for end in socket.socketpair())
    for one, other in ((here, there), (there, here)):
        one.send(encode(None))
        other.receive()
    yield here, there
    here.close()
    there.close()


def passed(wires: tuple[Wire, Wire], message: Any) -> Any:
    """A message as the other end has it."""
    sender = threading.Thread(target=wires[0].send, args=(encode(message),))
    sender.start()
    got = decode(wires[1].receive())
    sender.join()
    return got


@shares
def test_large_buffers_are_read_where_they_lie(wires: tuple[Wire, Wire]) -> None:
    message = {"a": np.arange(LARGE), "b": pa.array(range(LARGE)), "c": np.arange(10), "d": np.arange(3000)}
    got = passed(wires, message)
    assert [mapped(got[name]) for name in "abcd"] == [True, True, False, False]
    assert got["a"].ctypes.data % 64 == 0
    assert got["b"].equals(message["b"])
    assert all(got[name].tolist() == message[name].tolist() for name in "acd")


def test_arrays_may_be_written_to_as_far_as_they_could_before(wires: tuple[Wire, Wire]) -> None:
    fixed = np.ones(LARGE)
    fixed.flags.writeable = False
    free, frozen = passed(wires, [np.ones(LARGE), fixed])
    free += 1
    assert free[-1] == 2
    assert not frozen.flags.writeable


@shares
def test_a_slot_is_used_again_when_the_last_view_of_it_died(wires: tuple[Wire, Wire]) -> None:
    torch = pytest.importorskip("torch")
    held: list[Any] = []
    addresses = set()
    for number in range(6):
        got = passed(wires, np.full(LARGE, number))
        addresses.add(got.ctypes.data)
        if number == 0:
            held.append(torch.from_numpy(got[7:9]))
        elif number == 1:
            held.append(pa.array(got).slice(5, 2))
        del got
        wires[1].send(encode("what is free"))
        wires[0].receive()
    assert len(addresses) == 3
    assert [value.tolist() for value in held] == [[0, 0], [1, 1]]


@given(st.lists(st.tuples(st.integers(0, 300_000), st.integers(0, 5)), min_size=1, max_size=25))
def test_whatever_is_kept_stays_as_it_was(steps: list[tuple[int, int]]) -> None:
    here, there = (Wire(end) for end in socket.socketpair())
    there.send(encode(None))
    here.receive()
    kept: deque[tuple[int, Any]] = deque()
    for number, (size, drop) in enumerate(steps):
        kept.append((number, passed((here, there), [np.full(size, number, np.uint8), np.full(size // 2, number)])))
        for _ in range(min(drop, len(kept))):
            kept.popleft()
        there.send(encode(None))
        here.receive()
        assert all((array == value).all() for value, arrays in kept for array in arrays)
    kept.clear()
    there.send(encode(None))
    here.receive()
    here._apply_updates()
    assert here._outbox is None or here._outbox._ranges.end == 0
    here.close()
    there.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@shares
def test_after_a_fork_another_arena_is_used(wires: tuple[Wire, Wire]) -> None:
    first = passed(wires, np.full(LARGE, 1))
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    between = passed(wires, np.full(LARGE, 2))
    wires[1].send(encode("another"))
    wires[0].receive()
    after = passed(wires, np.full(LARGE, 3))
    assert [int(array[-1]) for array in (first, between, after)] == [1, 2, 3]
    assert [inbox.number for inbox in wires[1]._inboxes.values()] == [2]
    del first, between, after
    wires[1].send(encode("what is free"))
    wires[0].receive()
    wires[0]._apply_updates()
    assert wires[0]._outbox is not None
    assert wires[0]._outbox._ranges.end == 0


@pytest.mark.parametrize(
    "whole",
    [
        pa.array(range(100_000)),
        pa.array(["text"] * 100_000, pa.large_string()),
        pa.array([[1, 2]] * 100_000, pa.large_list(pa.int64())),
        pa.array([{"a": 1, "b": None}] * 100_000),
    ],
    ids=str,
)
def test_a_slice_leaves_the_rest_behind(whole: pa.Array) -> None:
    piece = whole.slice(500, 20)
    parts = encode(piece)
    assert sum(part.nbytes for part in parts) < 8_000
    assert decode(parts).equals(piece)


def test_a_closed_wire_ends_the_other() -> None:
    here, there = (Wire(end) for end in socket.socketpair())
    here.close()
    with pytest.raises(EOFError):
        there.receive()
    there.close()


def test_functions_that_a_module_of_ours_makes_travel_by_value() -> None:
    module: dict[str, Any] = {"__name__": "cedar.core.stream"}
    exec("def outer(x):\n    def inner(): return x\n    return inner", module)
    assert bytes(encode(Block)[0]).count(b"cedar.core.block") == 1
    assert decode(encode(module["outer"](7)))() == 7
