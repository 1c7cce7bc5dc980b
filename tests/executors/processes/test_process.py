"""Worker processes: started, and seen to end."""

from __future__ import annotations

from typing import Any

import pytest

from cedar.executors.processes import forkserver, process
from cedar.executors.worker import arena


def test_no_process_is_forked_while_a_worker_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[bool] = []

    def refuses(*_: Any, **__: Any) -> Any:
        held.append(arena.fork_lock.locked())
        raise OSError("no more processes")

    monkeypatch.setattr(forkserver.ForkServer, "fork", refuses)
    with pytest.raises(OSError, match="no more processes"):
        process.WorkerProcess()
    assert held == [True]
    assert not arena.fork_lock.locked()


def test_an_exit_code_that_another_thread_has_received_stays_known() -> None:
    worker = object.__new__(process.WorkerProcess)

    class OtherThreadIsFaster:
        def exit_code_of(self, _pid: int, _seconds: float) -> int | None:
            worker._exit_code = 3
            return None

    worker.pid, worker._exit_code, worker._server = 1, None, OtherThreadIsFaster()  # type: ignore[assignment]
    assert not worker.alive
    assert worker._exit_code == 3
