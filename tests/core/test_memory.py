"""What this process holds of the machine's memory, as /proc tells it."""

from __future__ import annotations

import mmap
import os
from typing import Any

import pytest

from cedar.core import memory


def test_what_is_taken_is_seen() -> None:
    if not os.path.exists("/proc/self/status"):
        pytest.skip("there is no /proc")
    before = memory.by_process()[os.getpid()]
    size = 64 << 20
    with mmap.mmap(-1, size) as pages:  # an array might be put where this process has memory to spare
        pages.write(bytes([1]) * size)
        assert memory.by_process()[os.getpid()] - before > (48 << 20)
        assert memory.resident() >= size


def test_pages_of_files_are_counted_once_and_processes_that_ended_not_at_all(monkeypatch: Any) -> None:
    sizes = {os.getpid(): (5, 30), 7: (2, 40)}
    monkeypatch.setattr(memory, "_process_bytes", lambda process: sizes.get(process, (1, 20)))  # another test's may run
    found = memory.by_process()
    assert {process: found[process] for process in (os.getpid(), memory.FILES)} == {os.getpid(): 5, memory.FILES: 30}

    def gone(_: int) -> Any:
        raise FileNotFoundError

    monkeypatch.setattr(memory, "_process_bytes", gone)
    assert memory.by_process() == {}
    assert memory.resident() == 0
