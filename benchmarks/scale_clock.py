"""A simulated clock for code that waits, and a store of torch.distributed that is modeled in its seconds.

Each rank is a thread, of which one runs at a time: that whose time comes next. So code that sleeps and looks again
runs as it is, thousands of ranks in one process, and the outcome is the same in every run.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_STACK = 256 << 10


class _Over(BaseException):
    """Another thread failed: this one ends where it waits."""


class Clock:
    """What ``time`` is to the threads of ``run``: ``monotonic`` and ``sleep``."""

    def __init__(self) -> None:
        self.now = 0.0
        self._later: list[tuple[float, int, threading.Lock]] = []
        self._count = 0
        self._owed = 0.0  # of the thread that runs, since the others last did
        self._waiting: set[threading.Lock] = set()
        self._over = threading.Event()
        self._failed: BaseException | None = None

    def monotonic(self) -> float:
        """Seconds since the beginning."""
        return self.now + self._owed

    def owe(self, seconds: float) -> None:
        """The thread is that much later, once it sleeps."""
        self._owed += seconds

    def sleep(self, seconds: float) -> None:
        """Let the others run until then."""
        until, self._owed = self.now + self._owed + seconds, 0.0
        if not self._later or until < self._later[0][0]:
            self.now = until
            return
        turn = self.turn()
        self.at(until, turn)
        self.wait(turn)

    def turn(self) -> threading.Lock:
        """What a thread waits for; ``at`` gives it to it."""
        turn = threading.Lock()
        turn.acquire()
        self._waiting.add(turn)
        return turn

    def at(self, when: float, turn: threading.Lock) -> None:
        """Give something the turn at some time."""
        self._count += 1
        heapq.heappush(self._later, (when, self._count, turn))

    def wait(self, turn: threading.Lock) -> None:
        """The others run until this turn comes."""
        self._hand_over()
        self._began(turn)

    def _began(self, turn: threading.Lock) -> None:
        turn.acquire()
        if self._failed is not None:
            raise _Over
        self._waiting.discard(turn)

    def _hand_over(self) -> None:
        """To whom comes next."""
        if self._later:
            self.now, _, turn = heapq.heappop(self._later)
            turn.release()
        else:
            self._over.set()

    def run(self, works: Sequence[Callable[[], None]]) -> float:
        """Runs all of these; the simulated seconds that took.

        Raises:
            BaseException: that of the first that failed; the others are ended.
            RuntimeError: all of them wait for each other.
        """
        before = threading.stack_size(_STACK)
        try:
            turns = [self.turn() for _ in works]
            threads = [threading.Thread(target=self._work, args=each) for each in zip(works, turns, strict=True)]
            for thread, turn in zip(threads, turns, strict=True):
                self.at(0.0, turn)
                thread.start()
        finally:
            threading.stack_size(before)
        self._hand_over()
        self._over.wait()
        if self._waiting and self._failed is None:
            self._failed = RuntimeError(f"{len(self._waiting)} threads wait for each other")
        for turn in self._waiting:
            turn.release()
        for thread in threads:
            thread.join()
        if self._failed is not None:
            raise self._failed
        return self.now

    def _work(self, work: Callable[[], None], turn: threading.Lock) -> None:
        try:
            self._began(turn)
            work()
            self.sleep(0.0)
        except _Over:
            return
        except BaseException as error:  # noqa: BLE001 - raised by ``run``
            self._failed = error
            self._over.set()
            return
        self._hand_over()


class Barrier:
    """A collective: nothing continues before all are there."""

    def __init__(self, clock: Clock, ranks: int) -> None:
        self._clock, self._ranks = clock, ranks
        self._waiting: list[threading.Lock] = []

    def wait(self) -> None:
        self._clock.sleep(0.0)  # what a thread owes is over
        if len(self._waiting) == self._ranks - 1:
            waiting, self._waiting = self._waiting, []
            for turn in waiting:
                self._clock.at(self._clock.now, turn)
            return
        turn = self._clock.turn()
        self._waiting.append(turn)
        self._clock.wait(turn)


@dataclass(frozen=True)
class Board:
    """The store of torch.distributed, as it is modeled.

    Args:
        latency: seconds of a request, there and back.
        rate: requests that its one server answers in a second.
    """

    latency: float = 0.0002
    rate: float = 50_000.0


class Store:
    """What ``StoreBoard`` and ``TorchKeyValues`` ask of a store."""

    def __init__(self, clock: Clock, model: Board) -> None:
        self._clock, self._model = clock, model
        self._kept: dict[str, Any] = {}
        self._free = 0.0
        self.requests = 0

    def _request(self) -> None:
        """Arrives, waits for those before it, and is answered."""
        self._clock.sleep(self._model.latency / 2)
        now = self._clock.now
        self._free = max(self._free, now) + 1 / self._model.rate
        self.requests += 1
        self._clock.owe(self._free - now + self._model.latency / 2)

    def set(self, key: str, value: str) -> None:
        self._request()
        self._kept[key] = value.encode()

    def compare_set(self, key: str, expected: str, _desired: str) -> bytes:
        self._request()
        return bytes(self._kept.get(key, expected.encode()))  # what is expected is never there: see ``TorchKeyValues``

    def add(self, key: str, number: int) -> int:
        self._request()
        self._kept[key] = self._kept.get(key, 0) + number
        return int(self._kept[key])

    def delete_key(self, key: str) -> bool:
        self._request()
        return self._kept.pop(key, None) is not None
