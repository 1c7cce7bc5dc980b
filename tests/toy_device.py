"""A device that keeps a log, in the place of one that is not there."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest

import cedar
from cedar.engine.delivery import parts
from cedar.engine.delivery.device_prefetch import AHEAD
from cedar.engine.delivery.formats import on_tensors


class Toy:
    """A device whose memory is the host's: a copy is begun in one thread, and ended in the caller's."""

    def __init__(self) -> None:
        self.log: list[tuple[str, int]] = []
        self.threads: dict[str, set[str]] = {"begin": set(), "end": set()}
        self.fails: dict[str, int] = {}
        self._lock = threading.Condition()  # around a lock that may be taken twice

    def note(self, what: str, number: int) -> None:
        with self._lock:
            self.log.append((what, number))
            self.threads[what].add(threading.current_thread().name)
            self._lock.notify_all()
        if self.fails.get(what) == number:
            raise RuntimeError("the device is full")

    def count(self, what: str) -> int:
        with self._lock:
            return sum(1 for done, _ in self.log if done == what)

    def wait(self, what: str, number: int) -> None:
        with self._lock:
            assert self._lock.wait_for(lambda: (what, number) in self.log, timeout=60)

    def settle(self) -> None:
        """Give the copying thread the time for what it may do, without success if nothing is left to copy."""
        with self._lock:
            self._lock.wait_for(lambda: self.count("begin") - self.count("end") == AHEAD, timeout=0.02)

    def begin(self, columns: dict[str, Any]) -> Any:
        number = self.count("begin")

        def copy(tensor: Any) -> Any:
            if tensor.numel() and self.fails.get("column") == number:
                raise TypeError("no float64 here")
            return tensor.clone()

        moved = on_tensors(columns, copy, "toy")
        self.note("begin", number)
        return number, moved

    def end(self, begun: Any) -> dict[str, Any]:
        self.note("end", begun[0])
        return begun[1]  # type: ignore[no-any-return]


def put_in(monkeypatch: pytest.MonkeyPatch) -> Toy:
    """Every device of a loader is this one from now on."""
    _before.clear()
    _before.update(threading.enumerate())
    made = Toy()

    def make(device: Any) -> Toy | None:
        return None if device is None else made

    monkeypatch.setattr(parts, "make_mover", make)
    return made


def left_threads() -> list[str]:
    """The threads of cedar that run, but for those that ran when the toy was put in: another test left them."""
    threads = [t for t in threading.enumerate() if t not in _before and t.is_alive()]
    return [t.name for t in threads if t.name.startswith("cedar")]


_before: set[threading.Thread] = set()


def numbers(n: int = 40) -> cedar.Pipeline:
    return cedar.from_arrow(pa.table({"x": pa.array(range(n), pa.int64()), "y": [i / 8 for i in range(n)]}))


def xs(batches: list[Any]) -> list[list[int]]:
    return [batch["x"].tolist() for batch in batches]
