"""What workers tell each other: the first writer wins, and no report waits for another."""

from __future__ import annotations

from cedar.trainers.resilient.control.board import Board, Mailbox
from cedar.trainers.resilient.control.store import Values


def test_a_report_that_was_never_written_holds_up_no_other() -> None:
    board = Board(Values())
    mailbox = Mailbox(board, patience=5.0)
    board.increment("reports")  # its sender was killed here
    board.report("machine", machine="a")
    board.increment("reports")  # this one is only slow
    assert [report["machine"] for report in mailbox.read_new(0.0)] == ["a"]
    board.put("report/3", {"what": "machine", "machine": "b"})
    assert [report["machine"] for report in mailbox.read_new(1.0)] == ["b"]
    assert mailbox.read_new(7.0) == []
    board.report("machine", machine="c")
    assert [report["machine"] for report in mailbox.read_new(8.0)] == ["c"]


def test_of_commit_and_abort_the_first_counts() -> None:
    board = Board(Values())
    assert board.put_if_absent("decision/1/0", "commit") == "commit"
    assert board.put_if_absent("decision/1/0", "abort") == "commit"
