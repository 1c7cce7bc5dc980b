"""Processes that the kernel ended for memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from cedar.executors.processes import memory


def test_one_kill_for_memory_explains_one_death(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    events = tmp_path / "memory.events"
    monkeypatch.setattr(memory, "_count_files", lambda: [str(tmp_path / "missing"), str(events)])
    monkeypatch.setattr(memory, "_explained", [0])
    assert memory.kills() is None
    events.write_text("low 0\noom 4\noom_kill 5\n")
    before = memory.kills()
    assert before == 5
    assert not memory.was_killed(before)
    events.write_text("low 0\noom 4\noom_kill 6\n")
    assert memory.was_killed(before)
    assert not memory.was_killed(before)
    assert not memory.was_killed(None)


def test_how_a_process_ended_is_told_in_words() -> None:
    assert memory.ending(3, None) == "exit code 3"
    assert memory.ending(-11, 0) == "killed by SIGSEGV"
    assert memory.ending(-9, None) == "killed by SIGKILL (perhaps because memory ran out)"
    assert memory.ending(-1000, None) == "killed by signal 1000"
