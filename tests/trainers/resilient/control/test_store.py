"""The store: it answers who holds the key, and counts for many at once."""

import threading

import pytest

from cedar.trainers.resilient.control import store
from cedar.trainers.resilient.control.board import Board
from tests.trainers.toy_store import KEY


def test_the_store_answers_who_holds_the_key(served):
    board = Board(store.connect("127.0.0.1", served, KEY))
    board.put("a", [1, "x"])
    assert board.get("a") == [1, "x"]
    assert board.get("b") is None
    assert board.put_if_absent("c", 1) == board.put_if_absent("c", 2) == 1
    assert [board.increment("n"), board.increment("n", 2), board.increment("n", 0)] == [1, 3, 3]
    assert board.get_all(["a", "c"]) == [[1, "x"], 1]
    board.delete("a")
    assert board.get("a") is None


def test_many_threads_count_each_once(served):
    boards = [Board(store.connect("127.0.0.1", served, KEY)) for _ in range(4)]
    found = []
    work = lambda board: found.extend(board.increment("n") for _ in range(50))
    threads = [threading.Thread(target=work, args=(board,)) for board in boards]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(1, 201))


def test_a_client_whose_store_has_ended_raises_an_error_of_its_own():
    process, port = store.start("127.0.0.1", 0, KEY)
    client = store.connect("127.0.0.1", port, KEY)
    process.kill()
    process.join()
    with pytest.raises(store.StoreLost, match="the connection to the store is lost"):
        client.call("get", ["a"])
