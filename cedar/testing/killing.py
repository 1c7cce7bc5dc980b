"""kill_workers: ends worker processes at random times while something runs."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from cedar.core.errors import PipelineError, user_site
from cedar.executors import processes

_GONE = 2.0  # seconds for the last one that was killed to be seen to be dead


@dataclass
class Kills:
    """What was killed so far: process ids, and when, by ``time.monotonic()``."""

    pids: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.pids)


@contextmanager
def kill_workers(rate: float, seed: int = 0, most: int | None = None) -> Iterator[Kills]:
    """Within it, SIGKILL random workers: of executor "processes", and of Dask clusters on this machine.

    At its end no worker is about to die any more: what runs next loses none.

    Args:
        rate: kills per second on average; the times between them are exponentially distributed.
        seed: of the times and the choices.
        most: the number of kills after which it leaves them alone.

    Raises:
        PipelineError: the rate is not above 0.

    Example:
        >>> import cedar, cedar.testing
        >>> numbers = cedar.from_items([{"x": i} for i in range(1000)]).map(abs, "x", dtype=int).batch(10)
        >>> loader = numbers.loader(executor="processes", workers=1)
        >>> with cedar.testing.kill_workers(rate=20, seed=1, most=3), loader:
        ...     sum(int(batch["x"].sum()) for batch in loader)
        499500
    """
    if not rate > 0:
        raise PipelineError(f"kill_workers(rate={rate}): a number of kills per second, above 0", site=user_site())
    kills, over = Kills(), threading.Event()
    thread = threading.Thread(target=_kill, args=(rate, seed, most, kills, over), name="cedar-killer", daemon=True)
    thread.start()
    try:
        yield kills
    finally:
        over.set()
        thread.join()
        late = time.monotonic() + _GONE
        while not set(kills.pids).isdisjoint(_workers()) and time.monotonic() < late:
            time.sleep(0.002)


def _kill(rate: float, seed: int, most: int | None, kills: Kills, over: threading.Event) -> None:
    draw = random.Random(seed)
    while (most is None or kills.count < most) and not over.wait(draw.expovariate(rate)):
        pids = _workers()
        if not pids:
            continue
        pid = draw.choice(pids)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            kills.pids.append(pid)
            kills.times.append(time.monotonic())


def _workers() -> list[int]:
    """Their process ids: those that are ready to work, lowest first."""
    pids = [pid for pool in processes.pools() for pid in pool.pids()]
    if "cedar.executors.dask.clients" in sys.modules:
        pids += _of_dask()
    return sorted(set(pids) - {os.getpid()})


def _of_dask() -> list[int]:
    """Of the clusters that this process is a client of, as far as they are on this machine."""
    from cedar.executors.dask import clients
    from cedar.plan.places import given_clients

    found: list[int] = []
    for client in [*clients._clients.values(), *given_clients()]:
        with suppress(Exception):  # a worker may be starting, or ending
            workers = client.scheduler_info(n_workers=-1)["workers"]
            here = [address for address, worker in workers.items() if worker["host"] in ("127.0.0.1", "localhost")]
            told = client.run(os.getpid, workers=here, on_error="ignore")
            found += [pid for pid in told.values() if isinstance(pid, int)]
    return found
