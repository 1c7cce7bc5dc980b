"""All transports keep the one contract: order per pair and direction, bounded buffers, nothing waits forever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from cedar.trainers.resilient.control.board import Board
from cedar.trainers.resilient.control.store import Values
from cedar.trainers.resilient.executor import Lost, Superseded, Transport, Waiting
from cedar.trainers.resilient.executor.network import SocketTransport
from cedar.trainers.resilient.schedule import Worker
from tests.trainers.resilient.toy_transport import AHEAD, StrictNetwork, StrictTransport

ONE, TWO = Worker(0, 0), Worker(1, 0)
Make = Callable[[Worker, Waiting], Transport]


@pytest.fixture(params=["strict", "sockets"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    network, values = StrictNetwork(), Values()
    made: list[Any] = []

    def one(me: Worker, waiting: Waiting) -> Any:
        kinds: dict[str, Callable[[], Any]] = {
            "strict": lambda: StrictTransport(network, me, waiting),
            "sockets": lambda: SocketTransport(Board(values), "127.0.0.1", b"k" * 32, (ONE, TWO), me, waiting, 1),
        }
        made.append(kinds[request.param]())
        return made[-1]

    yield one
    for transport in made:
        transport.close()
    for thread in threading.enumerate():
        if thread.name.startswith("messages"):
            thread.join(60)


def patient(newest: Callable[[], int] = lambda: 0, patience: float = 20.0) -> Waiting:
    return Waiting(0, newest, patience)


def test_the_nth_receive_gets_the_nth_send_in_both_directions_at_once(make: Make) -> None:
    """Both announce everything and send everything, megabytes, before either takes a message: as an executor does."""
    size, count = 1 << 18, 12

    def work(me: Worker, other: Worker) -> list[float]:
        transport = make(me, patient())
        for _ in range(count):
            transport.expect(other, (size,), torch.float32)
        for number in range(count):
            transport.send(other, torch.full((size,), 100.0 * me.stage + number))
        return [float(transport.receive(other)[-1]) for _ in range(count)]

    with ThreadPoolExecutor(2) as pool:
        one, two = pool.submit(work, ONE, TWO), pool.submit(work, TWO, ONE)
        assert two.result() == list(range(count))
        assert one.result() == [100.0 + number for number in range(count)]


def test_a_queue_that_waits_holds_up_no_other(make: Make) -> None:
    """A receive is announced for which nothing ever comes; what goes the other way arrives all the same."""
    one, two = make(ONE, patient()), make(TWO, patient())
    one.expect(TWO, (3,), torch.float32)
    two.expect(ONE, (1,), torch.int64)
    one.send(TWO, torch.tensor([7]))
    assert int(two.receive(ONE)) == 7


def test_who_waits_for_the_dead_is_freed_by_a_new_generation_and_by_closing(make: Make) -> None:
    """It would have waited for its patience: 600 s."""
    generation = [0]
    one = make(ONE, patient(lambda: generation[0], 600.0))
    make(TWO, patient())
    for free, error in ((lambda: generation.__setitem__(0, 1), Superseded), (one.close, Lost)):
        generation[0] = 0
        one.expect(TWO, (1,), torch.float32)
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(one.receive, TWO)
            time.sleep(0.05)
            assert not waits.done()
            free()
            with pytest.raises(error):
                waits.result(60)


def test_the_strict_one_holds_senders_to_the_rules() -> None:
    network = StrictNetwork()
    one, two = StrictTransport(network, ONE, patient()), StrictTransport(network, TWO, patient())
    message = torch.zeros(2)
    one.send(TWO, message)
    message += 1  # nothing has received it yet
    two.expect(ONE, (2,), torch.float32)
    with pytest.raises(Lost, match="was changed before it was sent"):
        two.receive(ONE)
    for _ in range(5):
        two.expect(ONE, (2,), torch.float32)
    assert len(network.queues[ONE, TWO].posted) == AHEAD
    with pytest.raises(Lost, match="not announced"):
        one.receive(TWO)


class Meanwhile(threading.Condition):
    """One at whose release something happens once, as if another thread had been waiting for it."""

    happens: Callable[[], None] | None = None

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[arg-type]
        happens, self.happens = self.happens, None
        if happens:
            happens()


def test_a_message_that_arrives_as_it_is_asked_for_was_announced() -> None:
    network = StrictNetwork()
    network.changed = meanwhile = Meanwhile()
    one, two = StrictTransport(network, ONE, patient()), StrictTransport(network, TWO, patient())
    two.expect(ONE, (1,), torch.float32)
    meanwhile.happens = lambda: one.send(TWO, torch.tensor([7.0]))
    assert float(two.receive(ONE)) == 7


def test_a_message_of_another_shape_is_told() -> None:
    fifo, waiting = StrictNetwork(), Waiting(0, lambda: 0, 5)
    one, two = (StrictTransport(fifo, worker, waiting) for worker in (Worker(0, 0), Worker(1, 0)))
    one.send(Worker(1, 0), torch.zeros(2))
    two.expect(Worker(0, 0), (3,), torch.float32)
    with pytest.raises(Lost, match=r"expected \[3\]"):
        two.receive(Worker(0, 0))


def test_a_wait_has_an_end() -> None:
    waiting = Waiting(0, lambda: 0, patience=0.05)
    transport = StrictTransport(StrictNetwork(), Worker(1, 0), waiting)
    transport.expect(Worker(0, 0), (1,), torch.float32)
    with pytest.raises(Lost, match="waited"):
        transport.receive(Worker(0, 0))
