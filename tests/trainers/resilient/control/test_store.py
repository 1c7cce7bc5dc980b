"""The store: it answers who holds the key, and counts for many at once."""

import threading
from types import SimpleNamespace

import pytest

from cedar.core.errors import CedarError
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


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("127.0.0.1", 70000, "70000 is not a port"),
        ("0.0.0.0", 0, r"cannot listen on 0\.0\.0\.0: other machines need one address"),
    ],
)
def test_an_address_that_no_worker_could_publish_is_refused(host, port, message):
    """Other machines were to reach the workers of the first one at 127.0.0.1."""
    with pytest.raises(CedarError, match=message):
        store.start(host, port, KEY)


def test_a_run_at_a_port_that_cannot_be_is_refused():
    with pytest.raises(CedarError, match="70000 is not a port"):
        store.connect("127.0.0.1", 70000, KEY)


def test_a_failed_accept_does_not_end_the_store(monkeypatch):
    results = iter([OSError("too many open files")])

    def accept():
        raise next(results)

    monkeypatch.setattr(store, "_CHECK_INTERVAL", 0.0)
    with pytest.raises(StopIteration):
        store._accept(SimpleNamespace(accept=accept), KEY, store.Values())


def test_a_thread_that_cannot_start_does_not_end_the_store(monkeypatch):
    """No client was accepted any more."""
    closed = []
    connections = iter([(SimpleNamespace(close=lambda: closed.append(True)), None)])

    def start(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(store, "_CHECK_INTERVAL", 0.0)
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(StopIteration):
        store._accept(SimpleNamespace(accept=lambda: next(connections)), KEY, store.Values())
    assert closed == [True]
