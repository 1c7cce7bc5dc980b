"""A machine's supervisor: it says when it comes, and when it leaves."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from cedar.core.errors import CedarError
from cedar.trainers.common import links
from cedar.trainers.resilient import run as resilient_run
from cedar.trainers.resilient.control import store
from cedar.trainers.resilient.control.board import Board
from cedar.trainers.resilient.control.protocol import REPORT
from cedar.trainers.resilient.options import DataOptions, Options, RunOptions
from cedar.trainers.resilient.pipeline import Workers
from cedar.trainers.resilient.run import KEY, join
from cedar.trainers.resilient.text import text_pipeline
from tests.waiting import eventually


def test_a_supervisor_that_joined_says_when_it_leaves(tmp_path: Path) -> None:
    made = text_pipeline(Options(DataOptions("none.txt", 8, 8), run=RunOptions(folder=str(tmp_path))), 2, Workers())
    key = b"k" * links.KEY
    links.write_key(str(tmp_path / KEY), key)
    process, port = store.start("127.0.0.1", 0, key)
    try:
        board = Board(store.connect("127.0.0.1", port, key))
        board.put("setup", made.description)
        board.put("over", True)
        join(made, "127.0.0.1", port)
        name = (board.get(REPORT(1)) or {})["machine"]
        assert board.increment(f"left/{name}", 0) == 1
    finally:
        process.kill()
        process.join()


def test_a_supervisor_that_starts_first_waits_for_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun starts all supervisors at once; the key of a run that was killed may also be there."""
    made = text_pipeline(Options(DataOptions("none.txt", 8, 8), run=RunOptions(folder=str(tmp_path))), 2, Workers())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    links.write_key(str(tmp_path / KEY), b"o" * links.KEY)
    said: list[str] = []
    monkeypatch.setattr(resilient_run, "print_lines", said.extend)
    joining = threading.Thread(target=join, args=(made, "127.0.0.1", port))
    joining.start()
    assert eventually(lambda: said)
    assert "waiting up to 600 s for the run at 127.0.0.1" in said[0]
    key = b"k" * links.KEY
    process, _ = store.start("127.0.0.1", port, key)
    try:
        board = Board(store.connect("127.0.0.1", port, key))
        board.put("over", True)
        links.write_key(str(tmp_path / KEY), key)
        board.put("setup", made.description)
        joining.join(60)
        assert not joining.is_alive()
        assert board.increment(f"left/{(board.get(REPORT(1)) or {})['machine']}", 0) == 1
    finally:
        process.kill()
        process.join()


def test_a_supervisor_does_not_wait_forever_for_a_run(tmp_path: Path) -> None:
    run = RunOptions(folder=str(tmp_path), patience=0.1)
    made = text_pipeline(Options(DataOptions("none.txt", 8, 8), run=run), 2, Workers())
    with pytest.raises(CedarError, match="the key .*run.key cannot be read"):
        join(made, "127.0.0.1", 1)
    with pytest.raises(CedarError, match="65536 is not a port"):
        join(made, "127.0.0.1", 65536)
