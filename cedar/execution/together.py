"""Calls made again to learn more of them: who holds the GIL, and what a call costs by itself."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

_ROUNDS = 3
_LEAST = 0.002  # seconds: shorter calls are repeated until they take as long


def gil_share(call: Callable[[], Any], seconds: float, deadline: float) -> float | None:
    """The share of a call's time in which it keeps other threads from running Python, 0 to 1.

    Two threads that make the call at once need as long as one where it lets go of the GIL, and twice as long where it
    does not. Needs two cores. The median of three rounds; fewer where the time is short.

    Args:
        call: takes the same time whenever it is made, by whichever thread.
        seconds: what it takes, roughly.
        deadline: of ``time.perf_counter()``, kept as far as calls end in time.

    Returns:
        None where there is no time for a round, or the call fails.
    """
    try:
        # The second thread may need an instance, or a model, of its own: the first call of each does not count.
        if time.perf_counter() + 4 * seconds > deadline:
            return None
        together(call, 1)
        start = time.perf_counter()
        call()
        alone = time.perf_counter() - start
        times = max(1, int(_LEAST / max(alone, 1e-7)))
        shares: list[float] = []
        while len(shares) < _ROUNDS and (not shares or time.perf_counter() + 3 * alone * times < deadline):
            start = time.perf_counter()
            for _ in range(times):
                call()
            one = time.perf_counter() - start
            shares.append(min(max(together(call, times) / one - 1, 0.0), 1.0))
        return statistics.median(shares)
    except Exception:  # noqa: BLE001 - it worked in the run; that is where errors are told
        return None


def together(call: Callable[[], Any], times: int) -> float:
    """Seconds until two threads that start at once have each made the call so many times."""
    gate = threading.Barrier(3)
    errors: list[Exception] = []

    def work() -> None:
        gate.wait()
        try:
            for _ in range(times):
                call()
        except Exception as error:  # noqa: BLE001 - told by the caller
            errors.append(error)

    threads = [threading.Thread(target=work, name="cedar-gil") for _ in range(2)]
    for thread in threads:
        thread.start()
    gate.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return time.perf_counter() - start


def shortest(call: Callable[[], Any], deadline: float) -> float:
    """Seconds of the shortest of three calls; 0 where there is no time, or the call fails."""
    best = math.inf
    try:
        for _ in range(_ROUNDS):
            start = time.perf_counter()
            if start > deadline:
                break
            call()
            best = min(best, time.perf_counter() - start)
    except Exception:  # noqa: BLE001 - it worked in the run; that is where errors are told
        return 0.0
    return best if best < math.inf else 0.0
