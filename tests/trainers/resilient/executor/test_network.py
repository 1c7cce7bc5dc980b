"""Messages by sockets: in order, until a newer generation begins or the other end is gone."""

from __future__ import annotations

import re
import threading

import pytest
import torch

from cedar.trainers.common import links
from cedar.trainers.resilient.control.board import Board
from cedar.trainers.resilient.control.store import Values
from cedar.trainers.resilient.executor import Lost, Superseded, Waiting
from cedar.trainers.resilient.executor.network import SocketTransport
from cedar.trainers.resilient.schedule import Worker, grid

ALL = tuple(grid(2, 2))


def test_messages_come_in_order_and_a_newer_generation_ends_a_wait() -> None:
    board, key = Board(Values()), b"k" * links.KEY
    newest = 1
    members = ALL[:2]
    ends: dict[Worker, SocketTransport] = {}

    def connect(me: Worker) -> None:
        waiting = Waiting(1, lambda: newest, 60)
        ends[me] = SocketTransport(board, "127.0.0.1", key, members, me, waiting, 1)
        ends[me].warm_up([other for other in members if other != me])

    threads = [threading.Thread(target=connect, args=(me,)) for me in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    one, two = members
    for number in range(20):
        ends[two].expect(one, (3,), torch.float32)
        ends[one].send(two, torch.full((3,), float(number)))
    assert [int(ends[two].receive(one)[0]) for _ in range(20)] == list(range(20))
    ends[two].expect(one, (3,), torch.float32)
    newest = 2
    with pytest.raises(Superseded):
        ends[two].receive(one)
    newest = 1
    ends[one].close()
    with pytest.raises(Lost, match="lost the connection"):  # the waits of others, too, and at once
        ends[two].receive(one)
    ends[two].close()


def test_a_message_that_cannot_be_sent_ends_the_next_wait() -> None:
    """The error was dropped, and both workers waited until their patience ended."""
    board, key, (one, two) = Board(Values()), b"k" * links.KEY, ALL[:2]
    transport = SocketTransport(board, "127.0.0.1", key, ALL[:2], one, Waiting(1, lambda: 1, 60), 1)
    with links.listen("127.0.0.1") as closed:
        board.put(f"listens/1/{two}", list(closed.getsockname()))
    transport.expect(two, (3,), torch.float32)
    transport.send(two, torch.zeros(3))
    with pytest.raises(Lost, match=re.escape(f"{one} lost the connection to {two}: ")):
        transport.receive(two)
    transport.close()
