"""Watch: checks once a second, while tasks are in progress, whether workers or the scheduler are silent."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cedar.cluster.dask.clients import ask
from cedar.cluster.dask.limits import seconds
from cedar.executors.recovery.waiting import StallTimer

if TYPE_CHECKING:
    from cedar.cluster.dask.executor import DaskExecutor
    from cedar.cluster.dask.tasks import ClusterTask

_log = logging.getLogger("cedar")
_TICK = 1.0  # seconds between two checks
_MAX_TRIES = 4


@dataclass(frozen=True)
class ClusterView:
    """The scheduler's view of workers and tries.

    Args:
        silent: seconds since the last heartbeat, by worker address.
        threads: number of threads, by worker address.
        places: for each try, its state and the workers that run it or have its result.
    """

    silent: dict[str, float]
    threads: dict[str, int]
    places: dict[Any, tuple[str, list[str]]]


def look(keys: list[Any], signal: Any, dask_scheduler: Any) -> ClusterView:
    """Return the scheduler's view of the tries ``keys``, and pass ``signal`` to the service. Runs in the scheduler."""
    service = dask_scheduler.extensions.get("cedar")
    if service is not None and signal is not None:
        service.hear(signal)
    now = time.time()
    workers = dask_scheduler.workers
    places = {}
    for key in keys:
        state = dask_scheduler.tasks.get(key)
        if state is not None:
            at = [w.address for w in state.who_has or ()] or [w.address for w in (state.processing_on,) if w]
            places[key] = (state.state, at)
    return ClusterView(
        {at: now - each.last_seen for at, each in workers.items()},
        {at: each.nthreads for at, each in workers.items()},
        places,
    )


def is_service(dask_scheduler: Any) -> bool:
    """Return whether the scheduler is a service. Runs in the scheduler."""
    return "cedar" in dask_scheduler.extensions


class Watch:
    """Watches the cluster for one executor."""

    def __init__(self, executor: DaskExecutor) -> None:
        self._executor = executor
        self.threads = sum(ask(executor.client, executor.client.nthreads).values())  # of all workers that answer
        self.service: bool = ask(executor.client, executor.client.run_on_scheduler, is_service)  # jobs share results
        self._silent: set[str] = set()
        self._all: set[str] = set()
        self._still = StallTimer(time.monotonic, _TICK)
        self._watching: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start checking, until no task is in progress. Call this in the client's event loop."""
        if self._watching is None or self._watching.done():
            self._watching = asyncio.ensure_future(self._watch())

    def live_workers(self) -> list[str] | None:
        """Return the workers that are not silent, or None if all are heard from (or none is)."""
        return sorted(self._all - self._silent) or None if self._silent else None

    async def _watch(self) -> None:
        executor = self._executor
        while executor.pending():
            await asyncio.sleep(_TICK)
            if executor.client.status != "running":
                executor.lose("the connection to it is lost")
                return
            try:
                if await self._check(executor.pending()):
                    return
            except OSError as error:
                _log.info("the Dask scheduler could not be reached: %s", error)
            except Exception:  # noqa: BLE001 - checking must continue
                _log.warning("checking the Dask cluster failed", exc_info=True)

    async def _check(self, tasks: list[ClusterTask]) -> bool:
        """Check once; return True if all tasks have failed and checking can stop."""
        executor, limit = self._executor, seconds("scheduler-silent")
        try:
            view = await asyncio.wait_for(self._ask_scheduler(tasks), limit)
        except TimeoutError:
            executor.lose(f"it has not answered for {limit:g} s")
            return True
        self._note_silent_workers(view)
        needy = self._tasks_in_need(tasks, view)
        if needy is None:
            executor.fail_without_workers(seconds("workers"))
            return True
        for task in needy:
            if len(task.tries) < _MAX_TRIES:
                _log.warning("a task is retried, because its worker is silent or its result does not arrive")
                await executor.again(task)
            else:
                executor.give_up(task)
        return False

    async def _ask_scheduler(self, tasks: list[ClusterTask]) -> ClusterView:
        keys = [one.future.key for task in tasks for one in task.tries]
        view: ClusterView = await self._executor.client.run_on_scheduler(look, keys, self._executor.signal())
        return view

    def _note_silent_workers(self, view: ClusterView) -> None:
        limit = seconds("worker-silent")
        silent = {at for at, silence in view.silent.items() if silence > limit}
        for at in sorted(silent - self._silent):
            _log.warning(
                "the Dask worker %s has been silent for %.1f s: other workers run its tasks", at, view.silent[at]
            )
        self._silent, self._all = silent, set(view.silent)
        self.threads = sum(n for at, n in view.threads.items() if at not in silent) or self.threads

    def _tasks_in_need(self, tasks: list[ClusterTask], view: ClusterView) -> list[ClusterTask] | None:
        """Return the tasks that need another try; None if there have been no workers for too long.

        A call that runs on a worker that is not silent has no time limit. A finished result has time to arrive before
        the next try, twice as long after each try; results of earlier tries are still used.
        """
        heard = bool(self._all - self._silent)
        tried = {task.number: self._states_if_stuck(task, view) for task in tasks}
        seen_now: dict[Hashable, object] = {
            task.number: (heard, tried[task.number] != [], len(task.tries)) for task in tasks
        }
        still = self._still.look(seen_now | {"workers": heard})
        if not heard:  # without a live worker, another try cannot help
            return None if still["workers"] > seconds("workers") else []
        return [task for task in tasks if self._needs_another_try(task, tried[task.number], still[task.number])]

    def _needs_another_try(self, task: ClusterTask, states: list[str], still: float) -> bool:
        at_once = set(states) == {"silent"} and len(task.tries) < _MAX_TRIES
        return bool(states) and (at_once or still >= seconds("stuck") * 2 ** (len(task.tries) - 1))

    def _states_if_stuck(self, task: ClusterTask, view: ClusterView) -> list[str]:
        """Return each try's state ("silent" worker, or "done" but not fetched) if no try makes progress, else []."""
        tries = [one for one in task.tries if not one.following.done()]
        places = [view.places[one.future.key] for one in tries if one.future.key in view.places]
        states = [
            "silent" if at and self._silent.issuperset(at) else "done" if state == "memory" else ""
            for state, at in places
        ]
        return states if all(states) and not task.over and not self._executor.waits_for_room(task) else []
