"""Fault injection: kill workers at random times, and crash or hang a worker from inside a function."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal, NoReturn

from cedar.core.errors import invalid_call
from cedar.executors import processes

_WAIT_SECONDS = 2.0  # maximum seconds to wait until killed workers are dead


@dataclass
class Kills:
    """The workers killed so far: process ids, and times by ``time.monotonic()``.

    Examples:
        >>> Kills().pids
        []
    """

    pids: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.pids)


@contextmanager
def kill_workers(rate: float, seed: int = 0, most: int | None = None) -> Iterator[Kills]:
    """Inside the ``with`` block, send SIGKILL to random workers of executor "processes" and of local Dask clusters.

    At the end, the block waits until killed workers are dead, so that later code does not lose a worker.

    Args:
        rate: average kills per second; the times between kills are exponentially distributed.
        seed: seed of the times and the choice of workers.
        most: maximum number of kills.

    Raises:
        PipelineError: the rate is not above 0.

    Examples:
        >>> import cedar, cedar.testing
        >>> numbers = cedar.from_items([{"x": i} for i in range(1000)]).map(abs, "x", dtype=int).batch(10)
        >>> loader = numbers.loader(executor="processes", workers=1)
        >>> with cedar.testing.kill_workers(rate=20, seed=1, most=3), loader:
        ...     sum(int(batch["x"].sum()) for batch in loader)
        499500
    """
    if not rate > 0:
        raise invalid_call(f"kill_workers(rate={rate}): expected kills per second, above 0")
    kills, stop = Kills(), threading.Event()
    thread = threading.Thread(target=_kill, args=(rate, seed, most, kills, stop), name="cedar-killer", daemon=True)
    thread.start()
    try:
        yield kills
    finally:
        stop.set()
        thread.join()
        late = time.monotonic() + _WAIT_SECONDS
        while not set(kills.pids).isdisjoint(_worker_pids()) and time.monotonic() < late:
            time.sleep(0.002)


def _kill(rate: float, seed: int, most: int | None, kills: Kills, stop: threading.Event) -> None:
    draw = random.Random(seed)
    while (most is None or kills.count < most) and not stop.wait(draw.expovariate(rate)):
        pids = _worker_pids()
        if not pids:
            continue
        pid = draw.choice(pids)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            kills.pids.append(pid)
            kills.times.append(time.monotonic())


def _worker_pids() -> list[int]:
    """Return the process ids of all workers, lowest first."""
    pids = [pid for pool in processes.pools() for pid in pool.pids()]
    if "cedar.cluster.dask.clients" in sys.modules:
        pids += _dask_pids()
    return sorted(set(pids) - {os.getpid()})


def _dask_pids() -> list[int]:
    """Return the process ids of local workers of the Dask clusters to which this process has a client."""
    from cedar.cluster.dask import clients
    from cedar.plan.places import given_clients

    pids: list[int] = []
    for client in [*clients._clients.values(), *given_clients()]:
        with suppress(Exception):  # a worker may be starting or ending
            workers = client.scheduler_info(n_workers=-1)["workers"]
            here = [address for address, worker in workers.items() if worker["host"] in ("127.0.0.1", "localhost")]
            reported = client.run(os.getpid, workers=here, on_error="ignore")
            pids += [pid for pid in reported.values() if isinstance(pid, int)]
    return pids


How = Literal["segfault", "exit", "kill", "memory"]


def crash(how: How = "segfault") -> NoReturn:
    """Crash this process. Only call this in a pipeline function that runs in a worker.

    Args:
        how: "segfault" reads address 0; "exit" calls ``os._exit(3)``; "kill" sends SIGKILL; "memory" allocates
            memory up to a limit that it sets, and then sends SIGKILL, as the kernel would.

    Raises:
        PipelineError: ``how`` is unknown.

    Examples:
        >>> import cedar, cedar.testing
        >>> def decode(x: int) -> int:
        ...     return cedar.testing.crash("exit") if x == 7 else x
        >>> some = cedar.from_items([{"x": i} for i in range(10)]).map(decode, "x", on_error=cedar.Skip())
        >>> with some.batch(10).loader(executor="processes", workers=1, plan="off") as loader:
        ...     print([batch["x"].tolist() for batch in loader])
        [[0, 1, 2, 3, 4, 5, 6, 8, 9]]
    """
    if how == "segfault":
        ctypes.string_at(0)
    elif how == "exit":
        os._exit(3)
    elif how == "memory":
        _take_all_memory()
    elif how != "kill":
        raise invalid_call(f"crash({how!r}): unknown way", fix="segfault, exit, kill or memory")
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a process does not live on")


def hang(how: Literal["sleep", "spin", "lock"] = "sleep") -> NoReturn:
    """Never return: sleep, run an endless Python loop ("spin"), or block in C while holding the GIL ("lock").

    Raises:
        PipelineError: ``how`` is unknown.

    Examples:
        >>> slow = cedar.from_items([{"x": 1}]).map(lambda x: hang(), "x", dtype=int)
    """
    if how == "lock":
        ctypes.PyDLL(None).pause()  # a PyDLL call does not release the GIL
    if how not in ("sleep", "spin", "lock"):
        raise invalid_call(f"hang({how!r}): unknown way", fix="sleep, spin or lock")
    while True:
        if how == "sleep":
            time.sleep(1000)


def _take_all_memory() -> None:
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), most))
    blocks = []
    try:
        while True:
            blocks.append(bytearray(8 << 20))
    except MemoryError:
        return
