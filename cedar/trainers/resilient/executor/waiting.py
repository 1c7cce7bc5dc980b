"""Waits that end when a newer generation begins: no call into the network is ever waited for by itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from cedar.trainers.resilient.executor.transport import Lost, Superseded

T = TypeVar("T")
POLL = 0.005  # seconds between two looks for a newer generation: in memory, so it costs next to nothing
_LONGEST = 0.004  # seconds between two questions: what a step's end may be noticed late


class Waiting:
    """How the threads of one worker wait.

    Args:
        generation: the one that the worker is in.
        newest: the newest there is; cheap to ask.
        patience: seconds after which a wait is given up.
    """

    def __init__(self, generation: int, newest: Callable[[], int], patience: float = 600.0) -> None:
        self.generation, self.newest, self.patience = generation, newest, patience

    def check(self) -> None:
        """Raises Superseded if a newer generation has begun."""
        if self.newest() > self.generation:
            raise Superseded

    def until(self, ready: Callable[[float], bool], what: str) -> None:
        """Wait until ``ready(seconds)``, which may block for so long, says yes.

        Raises:
            Superseded: a newer generation has begun.
            Lost: the patience is over.
        """
        end = time.monotonic() + self.patience
        while not ready(POLL):
            self.check()
            if time.monotonic() > end:
                raise Lost(f"waited {self.patience:g} s for {what}", fix="see who is slow in the run's report")

    def poll(self, ready: Callable[[], T | None], what: str) -> T:
        """Ask again and again, at growing distances, until the answer is not None."""
        found: list[T] = []
        pause = [0.0005]

        def ask(longest: float) -> bool:
            answer = ready()
            if answer is not None:
                found.append(answer)
                return True
            time.sleep(min(pause[0], longest))
            pause[0] = min(1.5 * pause[0], _LONGEST)
            return False

        self.until(ask, what)
        return found[0]
