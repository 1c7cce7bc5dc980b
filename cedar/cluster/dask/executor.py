"""DaskExecutor: a cluster's workers behind the interface of ``concurrent.futures.Executor``.

Calls travel as parcels and code once for each executor. A finished block is fetched from the worker that holds it, and
nothing else moves. A call whose worker died fails with ``WorkerDied``, for the run to submit it again; one whose worker
is silent gets a second try elsewhere, and the first result counts.
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
from concurrent.futures import Executor, Future
from concurrent.futures import wait as wait_for_all
from functools import partial
from typing import Any

from cedar.cluster.dask.clients import client_again, end_clients
from cedar.cluster.dask.kept import SharedResult, Unmade, code_of, read_shared, run_behind, run_shared, shared
from cedar.cluster.dask.limits import seconds
from cedar.cluster.dask.remote import Done, Wanted, keep, run, stamp
from cedar.cluster.dask.signals import Signal, whose
from cedar.cluster.dask.tasks import ClusterTask, DaskCall, Meter, PackedCall, pack
from cedar.cluster.dask.watch import Watch
from cedar.core.errors import WorkerError
from cedar.executors.processes.process import WorkerDied
from cedar.operators.base import Env
from cedar.tasks.code import Code

_log = logging.getLogger("cedar")
_LARGE = 1 << 20  # bytes; what is larger is pickled and unpickled next to the loop that talks to the cluster
_ROOM_SECONDS = 0.05  # between two looks at whether there is room
_HELD = 256 << 20  # bytes of results that lie here untaken; others stay on their workers until they are next


class DaskExecutor(Executor):
    """A run's use of a cluster. Shutting it down takes from the cluster what the run has there, and nothing else.

    Args:
        client: a ``distributed.Client``, which stays open.
        workers: tasks at once; None takes the threads that the cluster has, and follows them.
        local: the workers are on this machine, and may enter the caller's folder.
        limit: seconds to wait for a scheduler that is gone.
    """

    def __init__(self, client: Any, workers: int | None = None, *, local: bool = False, limit: float = 0.0) -> None:
        self.client = client
        self.address: str = client.scheduler.address
        self.meter = Meter()
        self.lost: str | WorkerError = ""  # why the cluster is gone
        self._loop: asyncio.AbstractEventLoop = client.loop.asyncio_loop
        self._asked = workers
        self._local = local
        self._run = uuid.uuid4().hex[:12]
        self._numbers = itertools.count()
        self._tasks: dict[int, ClusterTask] = {}  # in progress, by number
        self._code: dict[str, asyncio.Future[None]] = {}  # sent to all workers, by key
        self.ended = False
        self._shut = threading.Event()
        self._limit = limit
        self._lock = threading.Lock()
        self._returning = False  # it is waited for, and what is submitted waits, too
        _running.add(self)
        self._room = asyncio.Event()
        self._makers: dict[int, tuple[Any, Code]] = {}  # of kept blocks, by the id of their reader
        self._held_back: set[int] = set()  # numbers of tasks whose results wait for room
        self._sent: tuple[float, float, float, int] | None = None  # when, and what the meter said
        self.watch = Watch(self)

    # ---- what a run sees ---------------------------------------------------------------------------------------------

    @property
    def _max_workers(self) -> int:
        return self._asked or max(1, self.watch.threads)

    @property
    def ahead(self) -> int:
        """Tasks to keep in flight: they grow with the cluster."""
        return 2 * self._max_workers

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See ``concurrent.futures.Executor``; ``Code`` among the arguments is sent to the cluster once.

        Raises:
            WorkerError: the scheduler is gone.
        """
        return self._submit(fn, args, kwargs)

    def submit_first(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        """The same, before what was submitted earlier and has not begun: others wait for it."""
        return self._submit(fn, args, {}, urgent=True)

    def read_kept(self, code: Code, env: Env, split: Any, lap: int, first: int, reader: Any) -> Future[Any] | None:
        """Read a split whose blocks are kept for all jobs of a service; None if they are not.

        Args:
            code: the task's program and reader.
            reader: the latter.
        """
        made = code_of(reader) if self.watch.service else None
        if made is None:
            return None
        if id(reader) not in self._makers:
            self._makers[id(reader)] = (reader, Code.of(made))  # held, so that no other reader gets its id
        before = shared(reader, split, env, self._makers[id(reader)][1])
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
            raise self.gone()
        folder = os.getcwd() if self._local else None
        delivery: Future[Any] = Future()
        task = ClusterTask(next(self._numbers), delivery, lambda: pack(fn, args, kwargs, folder), before, urgent)
        self._tasks[task.number] = task
        delivery.add_done_callback(partial(self._over, task.number))  # which must not keep the result alive
        heavy = any(hasattr(argument, "blocks") for argument in args)
        with self._lock:
            if not self._returning:
                self._in_loop(self._begin(task, heavy))
        return delivery

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """The run is over."""
        self._shut.set()
        deliveries = [task.delivery for task in list(self._tasks.values())]
        for delivery in deliveries if cancel_futures else []:
            delivery.cancel()
        if wait:
            wait_for_all(deliveries)

    def gone(self) -> WorkerError:
        """The error for a scheduler that is not there any more."""
        if isinstance(self.lost, WorkerError):
            return self.lost
        return WorkerError(
            f"the Dask scheduler at {self.address} is gone{': ' if self.lost else ''}{self.lost}",
            done="the epoch was stopped; the state is that of the last batch received",
            fix="start the cluster again, then load the state into a new loader",
        )

    def pending(self) -> list[ClusterTask]:
        """Calls in progress, the earliest first."""
        return [task for task in list(self._tasks.values()) if not task.over]

    def lose(self, why: str) -> None:
        """The cluster is gone: everything in progress waits for it to come back, or fails."""
        with self._lock:
            if self._returning:
                return
            if not self._limit or self._shut.is_set():
                self.lost = self.lost or why
            self._returning = not self.lost
        if self._returning:
            threading.Thread(target=self._return, args=(why,), name="cedar-reconnect", daemon=True).start()
        for task in self.pending() if self.lost else []:
            _settle(task.delivery, error=self.gone())

    @property
    def waits(self) -> float:
        """Changes as time passes while it is waited for: that has its own limit."""
        return time.monotonic() if self._returning else 0.0

    def _return(self, why: str) -> None:
        """Connect again, and submit what is in progress to the scheduler that is there now."""
        gone = WorkerError(f"the Dask scheduler at {self.address} is gone: {why}")
        try:
            client = client_again(self.address, gone, self._limit, self._shut)
            if client is None:
                return
            for task in self.pending():
                task.tries = []
            with self._lock:
                self.client, self._loop, self._room = client, client.loop.asyncio_loop, asyncio.Event()
                self._code.clear()
                self._held_back.clear()
                self.watch = Watch(self)
                self._returning = False
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing else looks
            self.lost = error if isinstance(error, WorkerError) else f"{type(error).__name__}: {error}"
            self._returning = False
            self.lose("")
            return
        for task in self.pending():
            self._in_loop(self._begin(task, heavy=True))

    def desert(self, limit: float) -> None:
        """There are no workers: everything in progress fails."""
        error = WorkerError(
            f"the Dask cluster at {self.address} has had no worker for {limit:g} s",
            done="the epoch was stopped; the state is that of the last batch received",
            fix="start workers, then load the state into a new loader; cedar.dask.workers in Dask's configuration "
            "is how long to wait",
        )
        for task in self.pending():
            _settle(task.delivery, error=error)

    def signal(self) -> Signal | None:
        """How the run has done since it was asked last; None the first time."""
        meter, now = self.meter, time.monotonic()
        before, self._sent = self._sent, (now, meter.waiting, meter.busy, meter.rows)
        if before is None:
            return None
        span = max(now - before[0], 1e-6)
        return Signal(
            self._run, *whose(), buffered=meter.buffered, ahead=self.ahead,
            waiting=min(1.0, (meter.waiting - before[1]) / span), rows_per_second=(meter.rows - before[3]) / span,
            busy=(meter.busy - before[2]) / span,
        )  # fmt: skip

    # ---- in the client's loop ----------------------------------------------------------------------------------------

    def _in_loop(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _begin(self, task: ClusterTask, heavy: bool) -> None:
        try:
            packed = await _aside(task.make) if heavy else task.make()
            await self._try(task, packed)
            self.watch.begin()
        except BaseException as error:  # noqa: BLE001 - the code that waits for the result gets it
            self._fail(task, error)

    async def again(self, task: ClusterTask) -> None:
        """One more try, on a worker that is heard of; what the others bring counts, too, if it comes first."""
        try:
            await self._try(task, await _aside(task.make))
        except Exception:  # noqa: BLE001 - the try that there is may still end well
            _log.warning("a second try of a task could not be submitted", exc_info=True)

    def give_up(self, task: ClusterTask) -> None:
        """No try brings a result: the run sends the task again, or does it here."""
        why = "no worker of the Dask cluster brings the result of a task"
        _settle(task.delivery, error=WorkerDied(why, ended=False))

    async def _try(self, task: ClusterTask, packed: PackedCall) -> None:
        for code in packed.code:
            if code.key not in self._code:
                self._code[code.key] = asyncio.ensure_future(self._place(code, self.watch.loud()))
            await self._code[code.key]
        if task.over:
            return
        loud = self.watch.loud()
        number, task.sent = task.sent, task.sent + 1  # no key comes twice
        key = (f"cedar-{self._run}", task.number, number)
        how = {"pure": False, "retries": 0, "workers": loud, "allow_other_workers": bool(loud)}
        how["priority"] = int(task.urgent or number > 0)
        if task.before is None:
            future = self.client.submit(run, stamp(), packed.parcel, key=key, **how)
        else:
            shared_key = task.before.key + f"-{number}" * bool(number)
            made = self.client.submit(run_shared, stamp(), task.before.call, key=shared_key, **how)
            future = self.client.submit(run_behind, stamp(), packed.parcel, made, key=key, **how)
        task.tries.append(DaskCall(future, asyncio.ensure_future(self._follow(task, future))))

    async def _place(self, code: Code, workers: list[str] | None) -> None:
        """Put code into workers, all by default; one that did not hear of it will ask."""
        with contextlib.suppress(TimeoutError, OSError):
            sent = self.client.run(keep, code.key, code.pickled, workers=workers, on_error="ignore")
            await asyncio.wait_for(sent, seconds("worker-silent"))

    async def _give(self, task: ClusterTask, future: Any, wanted: Wanted) -> None:
        """A worker has no code, such as a new one: it gets it, and the task is retried in place of this try."""
        try:
            packed = await _aside(task.make)
            for code in packed.code:
                if code.key == wanted.key:
                    await self._place(code, [wanted.worker])
            await self._try(task, packed)
            task.tries[:] = [one for one in task.tries if one.future is not future]  # it was answered
            future.release()
        except Exception as error:  # noqa: BLE001 - the code that waits for the result gets it
            self._fail(task, error)

    async def _follow(self, task: ClusterTask, future: Any) -> None:
        """Deliver what one try brings, unless another one was first."""
        try:
            await _finished(future)
            await self._await_room(task)
            if task.over:
                return
            try:
                parcel = await self._fetched(future)
            except Unmade as error:
                parcel = error.parcel
            answer: Any = await _aside(parcel.open) if len(memoryview(parcel.parts[0])) > _LARGE else parcel.open()
        except BaseException as error:  # noqa: BLE001 - distributed raises many kinds, some of them no Exception
            self._failed(task, future, error)
            return
        if isinstance(answer, Wanted):
            await self._give(task, future, answer)
        elif isinstance(answer, Done):
            self.meter.arrived(answer.value, parcel.nbytes, answer.seconds)
            _settle(task.delivery, answer.value)
        else:
            _settle(task.delivery, error=answer.error)

    async def _fetched(self, future: Any) -> Any:
        """A result, straight from the worker that has it, or through the scheduler where that one is out of reach.

        The client's own ``gather`` puts several fetches into one, and one that is given up ends those next to it, or
        all that ever come after it: https://github.com/dask/distributed, ``Client._gather``.

        Raises:
            Exception: the call's.
        """
        from distributed.utils_comm import gather_from_workers

        scheduler = self.client.scheduler
        while True:
            await _finished(future)
            if future.status != "finished":
                return await future._result()  # raises
            places = await scheduler.who_has(keys=[future.key])
            fetch = asyncio.ensure_future(gather_from_workers(places, rpc=self.client.rpc))
            fetch.add_done_callback(_heard)
            found, *_ = await asyncio.shield(fetch)  # one that is cancelled while it connects leaves its socket open
            if future.key not in found:
                found = (await scheduler.gather(keys=[future.key])).get("data", {})
            if future.key in found:
                return found[future.key]
            await asyncio.sleep(_ROOM_SECONDS)  # its worker is gone, which the scheduler will see

    async def _await_room(self, task: ClusterTask) -> None:
        """Back-pressure: the results that are next come first, others when there is room for them."""
        patience = time.monotonic() + seconds("stuck")
        try:
            while self.meter.bytes > _HELD and not task.over:
                first = next(iter(self.pending()), task) is task
                if first and (self.meter.hungry or time.monotonic() > patience):
                    break
                self._held_back.add(task.number)
                self._room.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._room.wait(), _ROOM_SECONDS)
        finally:  # it may be cancelled as it waits
            self._held_back.discard(task.number)

    def waits_for_room(self, task: ClusterTask) -> bool:
        """Its result is finished and stays where it is, because enough of them are here."""
        return task.number in self._held_back

    def _failed(self, task: ClusterTask, future: Any, error: BaseException) -> None:
        if task.over or all(one.future is not future for one in task.tries):
            return
        others = any(one.future is not future and not one.following.done() for one in task.tries)
        if others and isinstance(self._told(error), WorkerDied):
            return  # another try is still in progress
        self._fail(task, error)

    def _fail(self, task: ClusterTask, error: BaseException) -> None:
        reported = self._told(error)
        if reported is not None:
            _settle(task.delivery, error=reported)

    def _told(self, error: BaseException) -> BaseException | None:
        """What the run is to make of an error of the cluster's; None if the cluster is waited for."""
        from distributed.scheduler import KilledWorker

        if isinstance(error, KilledWorker):
            return WorkerDied(f"a worker of the Dask cluster died: {_where(error)}")
        if self._returning or self.client.status != "running":
            self.lose("the connection to it is closed")
            return self.gone() if self.lost else None
        if isinstance(error, WorkerError):
            return error
        if isinstance(error, (asyncio.CancelledError, OSError)) or type(error).__name__ == "FutureCancelledError":
            return WorkerDied(f"the Dask cluster lost the task: {type(error).__name__}: {error}")
        return WorkerError(
            f"the Dask cluster cannot run a task: {type(error).__name__}: {error}",
            done="the epoch was stopped",
            fix="check the log of the scheduler and of the workers",
        )

    def _over(self, number: int, _delivery: Future[Any]) -> None:
        """Nothing waits for it any more: the cluster forgets its tries."""
        task = self._tasks.pop(number)
        if task.delivery.cancelled():
            _begins(task.delivery)  # which tells those who wait for it among others
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._drop, task)

    def _drop(self, task: ClusterTask) -> None:
        self._room.set()
        for one in task.tries:
            one.following.cancel()
            if one.future.status == "pending":
                self._loop.create_task(self._release(one.future))
            else:
                one.future.release()

    async def _release(self, future: Any) -> None:
        """Once the scheduler knows of it: it takes up new tasks aside, and one let go of before stays permanently."""
        try:
            while future.status == "pending":
                known = await self.client.scheduler.get_task_status(keys=[future.key])
                if known[future.key] is not None:
                    break
                await asyncio.sleep(_ROOM_SECONDS)
        except OSError:  # the scheduler is gone, and what it had with it
            pass
        finally:
            future.release()


_running: weakref.WeakSet[DaskExecutor] = weakref.WeakSet()
_parents: list[DaskExecutor] = []  # kept in a forked child, if nothing of them is to be ended or collected


def _after_fork() -> None:
    """Tasks in progress are the parent's, and so is who waits for them."""
    global _running  # noqa: PLW0603 - another thread may have been at it
    _parents.extend(_running)
    _running = weakref.WeakSet()


os.register_at_fork(after_in_child=_after_fork)


def _end() -> None:
    """The program ends: before the pools of threads that distributed uses do, which it does not bear."""
    for executor in list(_running):
        executor.ended = True
        executor.shutdown(wait=False, cancel_futures=True)
    end_clients()


threading._register_atexit(_end)  # type: ignore[attr-defined] # as concurrent.futures does; the last one comes first


async def _finished(future: Any) -> None:
    """Until there is a result or an error, or it was cancelled."""
    await future._state.wait()  # a callback would go through a pool of distributed's, which ends before the program


async def _aside(work: Callable[[], Any]) -> Any:
    """Next to the loop, in the thread that Dask has for that."""
    from distributed.utils import offload

    return await offload(work)


def _heard(fetch: asyncio.Future[Any]) -> None:
    """Any code that wanted it may be gone: an error of it is no news."""
    if not fetch.cancelled():
        fetch.exception()


def _begins(delivery: Future[Any]) -> bool:
    """Whether it may get an answer; not where it was cancelled, maybe by another thread right now."""
    try:
        return delivery.set_running_or_notify_cancel()
    except RuntimeError:  # another process asked first
        return False


def _settle(delivery: Future[Any], value: Any = None, error: BaseException | None = None) -> None:
    """Give the caller what there is, unless it has something or wants nothing."""
    if delivery.done() or not _begins(delivery):
        return
    if error is not None:
        delivery.set_exception(error)
    else:
        delivery.set_result(value)


def _where(error: Any) -> str:
    worker = getattr(error, "last_worker", None)
    return str(getattr(worker, "address", "") or error)
