"""ServicePlugin: a Dask scheduler that hears loaders, keeps shared results, and says how many workers it needs."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin

from cedar.cluster.dask.kept import KEPT
from cedar.cluster.dask.signals import Signal
from cedar.cluster.service.policy import Policy
from cedar.cluster.service.ranks import Listener
from cedar.cluster.service.status import JobStatus, ServiceStatus, WorkerStatus

_HOLDER = "cedar-service"  # the client that a scheduler takes it for, which wants those results
_EXPIRES = 10.0  # seconds after which a loader that says nothing is gone


class ServicePlugin(SchedulerPlugin):
    """Of one scheduler.

    Args:
        policy: how many workers there should be.
        keep_bytes: of shared results, in the memory of the workers.
    """

    name = "cedar"

    def __init__(self, policy: Policy, keep_bytes: int) -> None:
        self.policy = policy
        self.keep_bytes = keep_bytes
        self.asked = self.made = self.evicted = 0  # shared results
        self._signals: dict[str, tuple[float, Signal]] = {}
        self._kept: OrderedDict[str, int] = OrderedDict()  # key to bytes, the one used longest ago first

    async def start(self, scheduler: Any) -> None:
        """Called by ``Client.register_plugin``."""
        self.attach(scheduler)

    def attach(self, scheduler: Any) -> None:
        """Make the scheduler a service."""
        self.scheduler, self.listener = scheduler, Listener()
        scheduler.extensions[self.name] = self
        scheduler.handlers["cedar_target"] = self.target
        scheduler.allowed_failures = 0  # runs find the row that ends workers by themselves

    async def close(self) -> None:
        """The scheduler ends."""
        self.listener.close()

    # ---- signals -----------------------------------------------------------------------------------------------------

    def hear(self, signal: Signal) -> None:
        """A loader says how it does."""
        self._signals[signal.run] = (time.monotonic(), signal)

    def signals(self) -> list[Signal]:
        """The last one of each loader that runs."""
        now = time.monotonic()
        self._signals = {run: each for run, each in self._signals.items() if now - each[0] < _EXPIRES}
        return [signal for _, signal in self._signals.values()]

    async def target(self) -> int:
        """How many workers there should be; asked for by whatever scales the cluster."""
        return self.policy.wanted(self.signals(), len(self.scheduler.workers))

    # ---- shared results ----------------------------------------------------------------------------------------------

    def update_graph(self, scheduler: Any, *, keys: Any = (), **_: Any) -> None:
        """A job asks for results; those to be shared are wanted by the service, too, and so outlive the job's use."""
        for key in keys:
            if isinstance(key, str) and key.startswith(KEPT):
                self.asked += 1
                self._kept[key] = self._kept.pop(key, 0)
                scheduler.client_desires_keys(keys=[key], client=_HOLDER)

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Results come, fail, or go with their worker."""
        if not isinstance(key, str) or key not in self._kept:
            return
        if finish == "memory" and start == "processing":
            self.made += 1
            state = self.scheduler.tasks.get(key)
            self._kept[key] = state.nbytes if state is not None and state.nbytes > 0 else 0
            self._later(self._make_room)
        elif finish == "erred" or start == "memory":
            self._later(lambda: self._release(key))

    def _later(self, work: Any) -> None:
        """Not in the middle of the scheduler's own changes."""
        self.scheduler.loop.add_callback(work)

    def _make_room(self) -> None:
        while sum(self._kept.values()) > self.keep_bytes:
            oldest = next(key for key, size in self._kept.items() if size)
            self.evicted += 1
            self._release(oldest)

    def _release(self, key: str) -> None:
        if self._kept.pop(key, None) is not None:
            self.scheduler.client_releases_keys(keys=[key], client=_HOLDER, stimulus_id=f"cedar-{time.time()}")

    # ---- status ------------------------------------------------------------------------------------------------------

    def status(self) -> ServiceStatus:
        """What there is to see."""
        now = time.time()
        workers = [
            WorkerStatus(at, each.nthreads, len(each.processing), each.nbytes, now - each.last_seen)
            for at, each in sorted(self.scheduler.workers.items())
        ]
        jobs = [
            JobStatus(s.job, s.rank, s.buffered, s.ahead, s.waiting, s.rows_per_second, s.busy)
            for s in sorted(self.signals(), key=lambda s: (s.job, s.rank))
        ]
        return ServiceStatus(
            self.scheduler.address, tuple(jobs), tuple(workers), (self.policy.least, self.policy.most),
            shared=len(self._kept), shared_bytes=sum(self._kept.values()), reused=max(0, self.asked - self.made),
        )  # fmt: skip


def status(dask_scheduler: Any) -> ServiceStatus | None:
    """Runs in the scheduler; None if it is not a service."""
    plugin = dask_scheduler.extensions.get(ServicePlugin.name)
    return None if plugin is None else plugin.status()
