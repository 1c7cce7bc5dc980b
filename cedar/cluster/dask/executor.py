"""DaskExecutor: a ``concurrent.futures.Executor`` that runs calls on a Dask cluster.

The executor sends each call as a pickled parcel, and code only once. It fetches finished blocks directly from their
workers. A call whose worker died fails with ``WorkerDied``, so that the run retries it. If a worker is silent, its call
also runs on another worker, and the first result counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_all
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from cedar.cluster.dask.clients import client_again, end_clients
from cedar.cluster.dask.kept import SharedFailed, SharedResult, read_shared, run_on_shared, run_shared, shared
from cedar.cluster.dask.limits import seconds
from cedar.cluster.dask.remote import Done, MissingCode, keep, run, stamp
from cedar.cluster.dask.signals import Signal, job_and_rank
from cedar.cluster.dask.tasks import ClusterTask, DaskCall, Meter, PackedCall, pack
from cedar.cluster.dask.watch import Watch
from cedar.core.errors import WorkerError
from cedar.datasets.base import Split
from cedar.executors.base import TaskExecutor
from cedar.executors.processes.pool import WorkerDied
from cedar.operators.base import Env
from cedar.tasks.cached import KeptReader
from cedar.tasks.code import Code
from cedar.tasks.reading import SplitReader

_log = logging.getLogger("cedar")
_LARGE = 1 << 20  # bytes; larger messages are unpickled outside the client's event loop
_ROOM_SECONDS = 0.05  # seconds between two checks of whether another result may be fetched
_MAX_FETCHED_BYTES = 256 << 20  # max bytes of fetched results that the run has not consumed; others stay on workers


class DaskExecutor(TaskExecutor):
    """A run's use of a cluster. Shutting it down removes only the run's own tasks from the cluster.

    Args:
        client: a ``distributed.Client``, which stays open.
        workers: how many tasks run concurrently. None means one per cluster thread, as the cluster grows or shrinks.
        local: whether the workers are on this machine, so that they can change to the caller's directory.
        limit: seconds to wait for a lost scheduler to return.
    """

    ended = False

    def __init__(self, client: Any, workers: int | None = None, *, local: bool = False, limit: float = 0.0) -> None:
        self.client = client
        self.address: str = client.scheduler.address
        self.meter = Meter()
        self.lost: str | WorkerError = ""  # why the cluster is lost, or ""
        self._loop: asyncio.AbstractEventLoop = client.loop.asyncio_loop
        self._workers = workers
        self._local = local
        self._run = uuid.uuid4().hex[:12]
        self._numbers = itertools.count()
        self._tasks: dict[int, ClusterTask] = {}  # tasks in progress, by number
        self._code: dict[str, asyncio.Future[None]] = {}  # for each piece of code sent to all workers, by key
        self._shut = threading.Event()
        self._limit = limit
        self._lock = threading.Lock()
        self._reconnecting = False  # whether the executor waits for a lost scheduler; new tasks wait too
        _running.add(self)
        self._room = asyncio.Event()
        self._shared_code: dict[int, tuple[Any, Code]] = {}  # shared readers and their code, by id of the reader
        self._held_back: set[int] = set()  # tasks whose results are not fetched because of _MAX_FETCHED_BYTES
        self._sent: tuple[float, float, float, int] | None = None  # time, and totals, at the last signal
        self.watch = Watch(self)

    # ---- called by runs ----------------------------------------------------------------------------------------------

    @property
    def concurrency(self) -> int:
        return self._workers or max(1, self.watch.threads)

    @property
    def ahead(self) -> int:  # type: ignore[override]
        """The number of tasks to keep in flight, which follows the size of the cluster."""
        return 2 * self.concurrency

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See ``concurrent.futures.Executor``. A ``Code`` argument is sent to the cluster only once.

        Raises:
            WorkerError: the scheduler is gone.
        """
        return self._submit(fn, args, kwargs)

    def submit_first(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        return self._submit(fn, args, {}, urgent=True)

    def awaited(self) -> AbstractContextManager[object]:
        return self.meter.waited()

    def read_kept(
        self, code: Code, env: Env, split: Split, lap: int, first: int, reader: SplitReader
    ) -> Future[Any] | None:
        if not self.watch.service or not isinstance(reader, KeptReader):
            return None
        if id(reader) not in self._shared_code:  # referring to the reader keeps its id unique
            self._shared_code[id(reader)] = (reader, Code.of((reader.reader, reader.program)))
        before = shared(reader, split, env, self._shared_code[id(reader)][1])
        return None if before is None else self._submit(read_shared, (code, env, split, lap, first), {}, before)

    def _submit(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        before: SharedResult | None = None,
        urgent: bool = False,
    ) -> Future[Any]:
        if self._shut.is_set():
            raise RuntimeError("cannot schedule new futures after shutdown")
        if self.client.status not in ("running", "connecting"):
            self.lose("the connection to it is closed")
        if self.lost:
            raise self.lost_error()
        folder = os.getcwd() if self._local else None
        delivery: Future[Any] = Future()
        task = ClusterTask(next(self._numbers), delivery, lambda: pack(fn, args, kwargs, folder), before, urgent)
        self._tasks[task.number] = task
        delivery.add_done_callback(partial(self._on_done, task.number))  # the task would keep the result alive
        heavy = any(hasattr(argument, "blocks") for argument in args)
        with self._lock:
            if not self._reconnecting:
                self._in_loop(self._begin(task, heavy))
        return delivery

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the run's use of the cluster."""
        self._shut.set()
        deliveries = [task.delivery for task in list(self._tasks.values())]
        for delivery in deliveries if cancel_futures else []:
            delivery.cancel()
        if wait:
            wait_for_all(deliveries)

    def lost_error(self) -> WorkerError:
        """Return the error for a lost scheduler."""
        if isinstance(self.lost, WorkerError):
            return self.lost
        return WorkerError(
            f"the Dask scheduler at {self.address} is gone{': ' if self.lost else ''}{self.lost}",
            done="the epoch was stopped; the state is that of the last batch received",
            fix="start the cluster again, then load the state into a new loader",
        )

    def pending(self) -> list[ClusterTask]:
        """Return the calls in progress, in order of submission."""
        return [task for task in list(self._tasks.values()) if not task.over]

    def lose(self, why: str) -> None:
        """Handle the loss of the cluster: calls in progress wait for the cluster to return, or fail."""
        with self._lock:
            if self._reconnecting:
                return
            if not self._limit or self._shut.is_set():
                self.lost = self.lost or why
            self._reconnecting = not self.lost
        if self._reconnecting:
            threading.Thread(target=self._reconnect, args=(why,), name="cedar-reconnect", daemon=True).start()
        for task in self.pending() if self.lost else []:
            _settle(task.delivery, error=self.lost_error())

    @property
    def waits(self) -> float:
        """The current time while waiting for a lost scheduler, so that the wait counts as progress; otherwise 0."""
        return time.monotonic() if self._reconnecting else 0.0

    def _reconnect(self, why: str) -> None:
        """Reconnect, and submit the calls in progress to the new scheduler."""
        lost_error = WorkerError(f"the Dask scheduler at {self.address} is gone: {why}")
        try:
            client = client_again(self.address, lost_error, self._limit, self._shut)
            if client is None:
                return
            for task in self.pending():
                task.tries = []
            with self._lock:
                self.client, self._loop, self._room = client, client.loop.asyncio_loop, asyncio.Event()
                self._code.clear()
                self._held_back.clear()
                self.watch = Watch(self)
                self._reconnecting = False
        except Exception as error:  # noqa: BLE001 - no other code would report an error of this thread
            self.lost = error if isinstance(error, WorkerError) else f"{type(error).__name__}: {error}"
            self._reconnecting = False
            self.lose("")
            return
        for task in self.pending():
            self._in_loop(self._begin(task, heavy=True))

    def fail_without_workers(self, limit: float) -> None:
        """Fail all calls in progress, because the cluster has no workers."""
        error = WorkerError(
            f"the Dask cluster at {self.address} has had no worker for {limit:g} s",
            done="the epoch was stopped; the state is that of the last batch received",
            fix="start workers, then load the state into a new loader; cedar.dask.workers in Dask's configuration "
            "sets the time limit",
        )
        for task in self.pending():
            _settle(task.delivery, error=error)

    def signal(self) -> Signal | None:
        """Return the run's figures since the last call of this method; None on the first call."""
        meter, now = self.meter, time.monotonic()
        before, self._sent = self._sent, (now, meter.waiting, meter.busy, meter.rows)
        if before is None:
            return None
        span = max(now - before[0], 1e-6)
        return Signal(
            self._run, *job_and_rank(), buffered=meter.buffered, ahead=self.ahead,
            waiting=min(1.0, (meter.waiting - before[1]) / span), rows_per_second=(meter.rows - before[3]) / span,
            busy=(meter.busy - before[2]) / span,
        )  # fmt: skip

    # ---- in the client's event loop ----------------------------------------------------------------------------------

    def _in_loop(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _begin(self, task: ClusterTask, heavy: bool) -> None:
        try:
            packed = await _offload(task.make) if heavy else task.make()
            await self._try(task, packed)
            self.watch.begin()
        except BaseException as error:  # noqa: BLE001 - the future reports any error
            self._fail(task, error)

    async def again(self, task: ClusterTask) -> None:
        """Try a call again, on a worker that is not silent. If an earlier try finishes first, its result is used."""
        try:
            await self._try(task, await _offload(task.make))
        except Exception:  # noqa: BLE001 - an earlier try may still succeed
            _log.warning("a second try of a task could not be submitted", exc_info=True)

    def give_up(self, task: ClusterTask) -> None:
        """Fail a call because none of its tries returned a result; the run then retries the call."""
        why = "no worker of the Dask cluster returned the result of a task"
        _settle(task.delivery, error=WorkerDied(why, ended=False))

    async def _try(self, task: ClusterTask, packed: PackedCall) -> None:
        for code in packed.code:
            if code.key not in self._code:
                self._code[code.key] = asyncio.ensure_future(self._send_code(code, self.watch.live_workers()))
            await self._code[code.key]
        if task.over:
            return
        live_workers = self.watch.live_workers()
        number, task.sent = task.sent, task.sent + 1  # so that each try has a new key
        key = (f"cedar-{self._run}", task.number, number)
        options = {"pure": False, "retries": 0, "workers": live_workers, "allow_other_workers": bool(live_workers)}
        options["priority"] = int(task.urgent or number > 0)
        if task.before is None:
            future = self.client.submit(run, stamp(), packed.parcel, key=key, **options)
        else:
            shared_key = task.before.key + f"-{number}" * bool(number)
            made = self.client.submit(run_shared, stamp(), task.before.call, key=shared_key, **options)
            future = self.client.submit(run_on_shared, stamp(), packed.parcel, made, key=key, **options)
        task.tries.append(DaskCall(future, asyncio.ensure_future(self._await_try(task, future))))

    async def _send_code(self, code: Code, workers: list[str] | None) -> None:
        """Send code to workers, by default to all. A worker that does not get the code asks for it later."""
        with contextlib.suppress(TimeoutError, OSError):
            sent = self.client.run(keep, code.key, code.pickled, workers=workers, on_error="ignore")
            await asyncio.wait_for(sent, seconds("worker-silent"))

    async def _send_missing_code(self, task: ClusterTask, future: Any, wanted: MissingCode) -> None:
        """Send missing code to a worker, such as a new one, and replace this try by another one."""
        try:
            packed = await _offload(task.make)
            for code in packed.code:
                if code.key == wanted.key:
                    await self._send_code(code, [wanted.worker])
            await self._try(task, packed)
            task.tries[:] = [one for one in task.tries if one.future is not future]  # this try is over
            future.release()
        except Exception as error:  # noqa: BLE001 - the future reports any error
            self._fail(task, error)

    async def _await_try(self, task: ClusterTask, future: Any) -> None:
        """Wait for one try and deliver its result, unless another try was faster."""
        try:
            await _finished(future)
            await self._await_room(task)
            if task.over:
                return
            try:
                parcel = await self._fetch(future)
            except SharedFailed as error:
                parcel = error.parcel
            answer: Any = await _offload(parcel.open) if len(memoryview(parcel.parts[0])) > _LARGE else parcel.open()
        except BaseException as error:  # noqa: BLE001 - distributed also raises errors that are not Exceptions
            self._failed(task, future, error)
            return
        if isinstance(answer, MissingCode):
            await self._send_missing_code(task, future, answer)
        elif isinstance(answer, Done):
            self.meter.arrived(answer.value, parcel.nbytes, answer.seconds)
            _settle(task.delivery, answer.value)
        else:
            _settle(task.delivery, error=answer.error)

    async def _fetch(self, future: Any) -> Any:
        """Fetch a result directly from its worker, or through the scheduler if the worker cannot be reached.

        The client's own ``gather`` merges fetches, and canceling one can end the others, or all later ones:
        https://github.com/dask/distributed, ``Client._gather``.

        Raises:
            Exception: the call failed; its error is raised.
        """
        from distributed.utils_comm import gather_from_workers

        scheduler = self.client.scheduler
        while True:
            await _finished(future)
            if future.status != "finished":
                return await future._result()  # raises the call's error
            places = await scheduler.who_has(keys=[future.key])
            fetch = asyncio.ensure_future(gather_from_workers(places, rpc=self.client.rpc))
            fetch.add_done_callback(_ignore_error)
            found, *_ = await asyncio.shield(fetch)  # canceling a fetch that is connecting would leak its socket
            if future.key not in found:
                found = (await scheduler.gather(keys=[future.key])).get("data", {})
            if future.key in found:
                return found[future.key]
            await asyncio.sleep(_ROOM_SECONDS)  # the result's worker is gone; the scheduler will notice

    async def _await_room(self, task: ClusterTask) -> None:
        """Apply backpressure: wait until a result may be fetched, or the consumer waits for this result."""
        patience = time.monotonic() + seconds("stuck")
        try:
            while self.meter.bytes > _MAX_FETCHED_BYTES and not task.over:
                first = next(iter(self.pending()), task) is task
                if first and (self.meter.starving or time.monotonic() > patience):
                    break
                self._held_back.add(task.number)
                self._room.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._room.wait(), _ROOM_SECONDS)
        finally:  # this coroutine may be canceled while it waits
            self._held_back.discard(task.number)

    def waits_for_room(self, task: ClusterTask) -> bool:
        """Return whether a finished result stays on its worker because too many bytes of results were fetched."""
        return task.number in self._held_back

    def _failed(self, task: ClusterTask, future: Any, error: BaseException) -> None:
        if task.over or all(one.future is not future for one in task.tries):
            return
        others = any(one.future is not future and not one.following.done() for one in task.tries)
        if others and isinstance(self._translate_error(error), WorkerDied):
            return  # another try is still in progress
        self._fail(task, error)

    def _fail(self, task: ClusterTask, error: BaseException) -> None:
        reported = self._translate_error(error)
        if reported is not None:
            _settle(task.delivery, error=reported)

    def _translate_error(self, error: BaseException) -> BaseException | None:
        """Return the error to report to the run; None if the run waits for the cluster to return."""
        from distributed.scheduler import KilledWorker

        if isinstance(error, KilledWorker):
            return WorkerDied(f"a worker of the Dask cluster died: {_worker_address(error)}")
        if self._reconnecting or self.client.status != "running":
            self.lose("the connection to it is closed")
            return self.lost_error() if self.lost else None
        if isinstance(error, WorkerError):
            return error
        if isinstance(error, (asyncio.CancelledError, OSError)) or type(error).__name__ == "FutureCancelledError":
            return WorkerDied(f"the Dask cluster lost the task: {type(error).__name__}: {error}")
        return WorkerError(
            f"the Dask cluster cannot run a task: {type(error).__name__}: {error}",
            done="the epoch was stopped",
            fix="check the log of the scheduler and of the workers",
        )

    def _on_done(self, number: int, _delivery: Future[Any]) -> None:
        """Release a call's tries once its future is done."""
        task = self._tasks.pop(number)
        if task.delivery.cancelled():
            _start_delivery(task.delivery)  # notifies waiters of the cancellation
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._release_task, task)

    def _release_task(self, task: ClusterTask) -> None:
        self._room.set()
        for one in task.tries:
            one.following.cancel()
            if one.future.status == "pending":
                self._loop.create_task(self._release(one.future))
            else:
                one.future.release()

    async def _release(self, future: Any) -> None:
        """Release a future once the scheduler knows its task; otherwise the task would stay in the scheduler."""
        try:
            while future.status == "pending":
                known = await self.client.scheduler.get_task_status(keys=[future.key])
                if known[future.key] is not None:
                    break
                await asyncio.sleep(_ROOM_SECONDS)
        except OSError:  # the scheduler is gone, with all its tasks
            pass
        finally:
            future.release()


_running: weakref.WeakSet[DaskExecutor] = weakref.WeakSet()
_parents: list[DaskExecutor] = []  # the parent's executors, so that their finalizers do not run in a forked child


def _after_fork() -> None:
    """In a forked child, ignore the executors, whose tasks belong to the parent."""
    global _running  # noqa: PLW0603 - another thread may have been changing it
    _parents.extend(_running)
    _running = weakref.WeakSet()


os.register_at_fork(after_in_child=_after_fork)


def _end() -> None:
    """Close all executors at program exit, before the thread pools that distributed needs are shut down."""
    for executor in list(_running):
        executor.ended = True
        executor.shutdown(wait=False, cancel_futures=True)
    end_clients()


threading._register_atexit(_end)  # type: ignore[attr-defined] # runs before the exit handler of concurrent.futures


async def _finished(future: Any) -> None:
    """Wait until a future has a result or an error, or is canceled."""
    await future._state.wait()  # a callback would need distributed's thread pool, which ends first


async def _offload(work: Callable[[], Any]) -> Any:
    """Run work in Dask's offload thread, outside the event loop."""
    from distributed.utils import offload

    return await offload(work)


def _ignore_error(fetch: asyncio.Future[Any]) -> None:
    """Retrieve the error of a fetch whose result is no longer needed, so that asyncio does not log the error."""
    if not fetch.cancelled():
        fetch.exception()


def _start_delivery(delivery: Future[Any]) -> bool:
    """Mark a future as running; return False if it was canceled, perhaps just now by another thread."""
    try:
        return delivery.set_running_or_notify_cancel()
    except RuntimeError:  # another thread was faster
        return False


def _settle(delivery: Future[Any], value: Any = None, error: BaseException | None = None) -> None:
    """Set a future's result or error, unless it is already done or canceled."""
    if delivery.done() or not _start_delivery(delivery):
        return
    if error is not None:
        delivery.set_exception(error)
    else:
        delivery.set_result(value)


def _worker_address(error: Any) -> str:
    worker = getattr(error, "last_worker", None)
    return str(getattr(worker, "address", "") or error)
