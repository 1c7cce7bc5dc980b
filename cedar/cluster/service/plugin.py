"""ServicePlugin: turns a Dask scheduler into a service. Tracks loaders' signals, shared results and worker needs."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin

from cedar.cluster.dask.kept import KEPT
from cedar.cluster.dask.signals import Signal
from cedar.cluster.service.policy import Policy
from cedar.cluster.service.ranks import Listener
from cedar.cluster.service.status import ServiceStatus, WorkerStatus

_HOLDING_CLIENT = "cedar-service"  # name of a pseudo client that makes the scheduler keep shared results
_EXPIRY_SECONDS = 10.0  # seconds after which a loader that sends no signal counts as gone


class ServicePlugin(SchedulerPlugin):
    """The state of a service, in its scheduler.

    Args:
        policy: decides how many workers there should be.
        keep_bytes: max bytes of shared results in the memory of all workers.
    """

    name = "cedar"

    def __init__(self, policy: Policy, keep_bytes: int) -> None:
        self.policy = policy
        self.keep_bytes = keep_bytes
        self.asked = self.made = 0  # how many shared results were requested and computed
        self._signals: dict[str, tuple[float, Signal]] = {}
        self._kept: OrderedDict[str, int] = OrderedDict()  # bytes by key, least recently used first

    async def start(self, scheduler: Any) -> None:
        """Called by ``Client.register_plugin``."""
        self.attach(scheduler)

    def attach(self, scheduler: Any) -> None:
        """Turn the scheduler into a service."""
        self.scheduler, self.listener = scheduler, Listener()
        scheduler.extensions[self.name] = self
        scheduler.handlers["cedar_target"] = self.target
        scheduler.allowed_failures = 0  # cedar itself retries tasks, to find the row that crashes workers

    async def close(self) -> None:
        """Stop accepting ranks when the scheduler closes."""
        self.listener.close()

    # ---- signals -----------------------------------------------------------------------------------------------------

    def hear(self, signal: Signal) -> None:
        """Store a loader's signal."""
        self._signals[signal.run] = (time.monotonic(), signal)

    def signals(self) -> list[Signal]:
        """Return the latest signal of each running loader."""
        now = time.monotonic()
        self._signals = {run: each for run, each in self._signals.items() if now - each[0] < _EXPIRY_SECONDS}
        return [signal for _, signal in self._signals.values()]

    async def target(self) -> int:
        """Return how many workers there should be. ``ServiceScaling`` calls this."""
        return self.policy.wanted(self.signals(), len(self.scheduler.workers))

    # ---- shared results ----------------------------------------------------------------------------------------------

    def update_graph(self, scheduler: Any, *, keys: Any = (), **_: Any) -> None:
        """Record which shared results a job requests, and keep these results after the job has ended."""
        for key in keys:
            if isinstance(key, str) and key.startswith(KEPT):
                self.asked += 1
                self._kept[key] = self._kept.pop(key, 0)
                scheduler.client_desires_keys(keys=[key], client=_HOLDING_CLIENT)

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Track shared results that have been computed, have failed, or were lost with their worker."""
        if not isinstance(key, str) or key not in self._kept:
            return
        if finish == "memory" and start == "processing":
            self.made += 1
            state = self.scheduler.tasks.get(key)
            self._kept[key] = state.nbytes if state is not None and state.nbytes > 0 else 0
            self._schedule(self._make_room)
        elif finish == "erred" or start == "memory":
            self._schedule(lambda: self._release(key))

    def _schedule(self, work: Any) -> None:
        """Run work after the scheduler's current transition."""
        self.scheduler.loop.add_callback(work)

    def _make_room(self) -> None:
        while sum(self._kept.values()) > self.keep_bytes:
            oldest = next(key for key, size in self._kept.items() if size)
            self._release(oldest)

    def _release(self, key: str) -> None:
        if self._kept.pop(key, None) is not None:
            self.scheduler.client_releases_keys(keys=[key], client=_HOLDING_CLIENT, stimulus_id=f"cedar-{time.time()}")

    # ---- status ------------------------------------------------------------------------------------------------------

    def status(self) -> ServiceStatus:
        """Return the service's current status."""
        now = time.time()
        workers = [
            WorkerStatus(at, each.nthreads, len(each.processing), each.nbytes, now - each.last_seen)
            for at, each in sorted(self.scheduler.workers.items())
        ]
        jobs = sorted(self.signals(), key=lambda signal: (signal.job, signal.rank))
        return ServiceStatus(
            self.scheduler.address, tuple(jobs), tuple(workers), (self.policy.least, self.policy.most),
            shared=len(self._kept), shared_bytes=sum(self._kept.values()), reused=max(0, self.asked - self.made),
        )  # fmt: skip


def status(dask_scheduler: Any) -> ServiceStatus | None:
    """Return the service's status, or None if the scheduler is not a service. Runs in the scheduler."""
    plugin = dask_scheduler.extensions.get(ServicePlugin.name)
    return None if plugin is None else plugin.status()
