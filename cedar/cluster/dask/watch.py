"""Watch: looks at the cluster once a second while tasks are in progress, for workers and schedulers that fall
silent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cedar.cluster.dask.clients import ask
from cedar.cluster.dask.limits import seconds

if TYPE_CHECKING:
    from cedar.cluster.dask.executor import DaskExecutor
    from cedar.cluster.dask.tasks import Task

_log = logging.getLogger("cedar")
_TICK = 1.0  # seconds
_MOST_TRIES = 4


@dataclass(frozen=True)
class View:
    """What the scheduler knows.

    Args:
        silent: seconds since each worker was heard of.
        threads: of each worker.
        places: where the tries of the run are worked on, or their results lie.
    """

    silent: dict[str, float]
    threads: dict[str, int]
    places: dict[Any, tuple[str, list[str]]]


def look(keys: list[Any], signal: Any, dask_scheduler: Any) -> View:
    """Runs in the scheduler; leaves word of how the run does, where a service wants to know."""
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
    return View(
        {at: now - each.last_seen for at, each in workers.items()},
        {at: each.nthreads for at, each in workers.items()},
        places,
    )


def serves(dask_scheduler: Any) -> bool:
    """Runs in the scheduler."""
    return "cedar" in dask_scheduler.extensions


class Watch:
    """Of one executor."""

    def __init__(self, executor: DaskExecutor) -> None:
        self._executor = executor
        self.threads = sum(ask(executor.client, executor.client.nthreads).values())  # that are heard of
        self.service: bool = ask(executor.client, executor.client.run_on_scheduler, serves)  # jobs share results
        self._silent: set[str] = set()
        self._all: set[str] = set()
        self._empty_since: float | None = None
        self._watching: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Look, as long as anything is in progress; called in the client's loop."""
        if self._watching is None or self._watching.done():
            self._watching = asyncio.ensure_future(self._watch())

    def loud(self) -> list[str] | None:
        """The workers that are heard of, where others are not; None where there is nothing to avoid."""
        return sorted(self._all - self._silent) or None if self._silent else None

    async def _watch(self) -> None:
        executor = self._executor
        while executor.pending():
            await asyncio.sleep(_TICK)
            if executor.client.status != "running":
                executor.lose("the connection to it is lost")
                return
            try:
                if await self._look_after(executor.pending()):
                    return
            except OSError as error:
                _log.info("the Dask scheduler could not be asked: %s", error)
            except Exception:  # noqa: BLE001 - the next look may be a better one, and nothing else looks
                _log.warning("checking the Dask cluster failed", exc_info=True)

    async def _look_after(self, tasks: list[Task]) -> bool:
        """Once; whether nothing is left to look after."""
        executor, limit = self._executor, seconds("scheduler-silent")
        try:
            view = await asyncio.wait_for(self._look(tasks), limit)
        except TimeoutError:
            executor.lose(f"it has not answered for {limit:g} s")
            return True
        self._heed(view)
        if self._deserted():
            return True
        for task in tasks:
            if not self._needs_help(task, view):
                continue
            if len(task.tries) < _MOST_TRIES:
                _log.warning("a task is computed once more: its worker is silent, or its result does not arrive")
                await executor.again(task)
            else:
                executor.give_up(task)
        return False

    async def _look(self, tasks: list[Task]) -> View:
        keys = [one.future.key for task in tasks for one in task.tries]
        view: View = await self._executor.client.run_on_scheduler(look, keys, self._executor.signal())
        return view

    def _heed(self, view: View) -> None:
        limit = seconds("worker-silent")
        silent = {at for at, silence in view.silent.items() if silence > limit}
        for at in sorted(silent - self._silent):
            _log.warning(
                "the Dask worker %s has been silent for %.1f s: other workers run its tasks", at, view.silent[at]
            )
        self._silent, self._all = silent, set(view.silent)
        self.threads = sum(n for at, n in view.threads.items() if at not in silent) or self.threads

    def _deserted(self) -> bool:
        """There has been no worker for too long: everything in progress fails."""
        if self._all - self._silent:
            self._empty_since = None
            return False
        now, limit = time.monotonic(), seconds("workers")
        self._empty_since = self._empty_since or now
        if now - self._empty_since <= limit:
            return False
        self._executor.desert(limit)
        return True

    def _needs_help(self, task: Task, view: View) -> bool:
        """All of its tries are with silent workers, or have been finished for long and nothing arrives.

        A try that a worker is heard to work on may take its time. So may a result on its way: each further try waits
        twice as long as the one before, while all are still fetched.
        """
        tries = [one for one in task.tries if not one.following.done()]
        places = [view.places[one.future.key] for one in tries if one.future.key in view.places]
        if not places or task.over:
            return False
        silent = [bool(at) and self._silent.issuperset(at) for _, at in places]
        finished = [state == "memory" for state, _ in places]
        helpless = all(map(any, zip(silent, finished, strict=True))) and not self._executor.waits_for_room(task)
        if not helpless or not self._all - self._silent:  # where nothing is heard of, nothing can help
            task.stuck_since = None
            return False
        now = time.monotonic()
        task.stuck_since = task.stuck_since or now
        at_once = all(silent) and len(task.tries) < _MOST_TRIES
        if not at_once and now - task.stuck_since < seconds("stuck") * 2 ** (len(task.tries) - 1):
            return False
        task.stuck_since = now
        return True
