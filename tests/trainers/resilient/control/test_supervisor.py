"""A machine's supervisor: it says when it comes, and when it leaves."""

from __future__ import annotations

from pathlib import Path

from cedar.trainers.common import links
from cedar.trainers.resilient.control import store
from cedar.trainers.resilient.control.board import Board
from cedar.trainers.resilient.control.protocol import REPORT
from cedar.trainers.resilient.options import DataOptions, Options, RunOptions
from cedar.trainers.resilient.pipeline import Workers
from cedar.trainers.resilient.run import KEY, join
from cedar.trainers.resilient.text import text_pipeline


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
