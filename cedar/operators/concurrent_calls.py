"""Calls that run concurrently: ``async def`` functions on many rows, and calls with a time limit in another thread.

asyncio is imported only when a pipeline has an ``async def`` function, because the import takes 0.1 s.
"""

from __future__ import annotations

import inspect
import queue
import threading
import weakref
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from cedar.core.errors import PipelineError, raised
from cedar.core.numeric import NumericEnvironment
from cedar.core.requests import request_owner
from cedar.operators.draws import keyed_generator
from cedar.operators.failures import BadResult, ErrorContext, Failure

if TYPE_CHECKING:
    import asyncio

    from cedar.operators.calls import Call, Callee

LIMIT = 64  # the maximum number of concurrent calls

Outcome: TypeAlias = "tuple[list[Any], dict[int, Failure]]"


@dataclass(frozen=True)
class AsyncRows:
    """Runs an ``async def`` function on the rows of a block; the fields are described in ``Call``."""

    blame: ErrorContext
    keys: list[int] | None
    seed: int
    timeout: float | None
    items: bool
    stop: bool

    def run(
        self, runner: asyncio.Runner | None, fn: Callable[..., Any], arguments: Sequence[Iterable[Any]], n: int
    ) -> Outcome:
        """Return the results and the failures; use the event loop of ``runner``, or a new one if it is None."""

        def work() -> Outcome:
            if runner is not None:
                return runner.run(self._gather(fn, arguments, n))
            with new_runner() as own:
                return own.run(self._gather(fn, arguments, n))

        return _run_outside_event_loop(work)

    async def _gather(self, fn: Callable[..., Any], arguments: Sequence[Iterable[Any]], n: int) -> Outcome:
        import asyncio

        results: list[Any] = [None] * n
        run = request_owner()
        failures: dict[int, Failure] = {}
        rows = enumerate(zip(*arguments, strict=True))

        async def work(rows: Iterator[tuple[int, tuple[Any, ...]]]) -> None:
            for i, args in rows:  # rows start in order, so the first failure is known once all running calls end
                try:
                    results[i] = await self._once(fn, i, args)
                except raised() as error:  # will be reported with its row
                    failures[i] = self.blame.failure(error)
                if run.over or (self.stop and failures):
                    return

        async with asyncio.TaskGroup() as group:
            for _ in range(min(n, LIMIT)):
                group.create_task(work(rows))
        run.check()
        return results, failures

    async def _once(self, fn: Callable[..., Any], i: int, args: tuple[Any, ...]) -> Any:
        named = {} if self.keys is None else {"rng": keyed_generator(self.keys[i], self.seed)}
        if self.timeout is None:
            return await self._result(fn(*args, **named))
        import asyncio

        limit = asyncio.timeout(self.timeout)
        try:
            async with limit:
                return await self._result(fn(*args, **named))
        except TimeoutError as error:
            if limit.expired():
                raise timeout_error(self.timeout) from error
            raise

    async def _result(self, value: Any) -> Any:
        if isinstance(value, AsyncIterable):
            if self.items:
                return [item async for item in value]
            raise BadResult("returned an async generator", "use flat_map for several rows, or return one value")
        value = await value if inspect.isawaitable(value) else value
        return as_items(value) if self.items else value


def as_items(value: Any) -> list[Any]:
    """Return the items of a ``flat_map`` function's result as a list."""
    if isinstance(value, (str, bytes, Mapping)):
        raise BadResult(
            f"returned a {type(value).__name__}, not an iterable of rows",
            f"return [{'row' if isinstance(value, Mapping) else 'value'}] for one row, [] for none",
        )
    if value is None or not hasattr(value, "__iter__"):
        kind = "None" if value is None else f"a {type(value).__name__}"
        fix = "did it forget to return? " if value is None else ""
        raise BadResult(f"returned {kind}, not an iterable of rows", f"{fix}return a list, or yield: [] for no row")
    return list(value)


def timeout_error(timeout: float) -> TimeoutError:
    """Return the error for a call that exceeds its time limit."""
    return TimeoutError(f"no result within timeout={timeout:g} s")


def new_runner() -> asyncio.Runner:
    """Return a runner that does not change the thread's current event loop."""
    import asyncio

    return asyncio.Runner(loop_factory=asyncio.new_event_loop)


def _run_outside_event_loop(work: Callable[[], Outcome]) -> Outcome:
    """Run ``work()``; use a new thread if this one already runs an event loop, as in notebooks."""
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    outcome: list[Any] = []

    def attempt() -> None:
        try:
            outcome.append((work(), None))
        except BaseException as error:  # noqa: BLE001 - raised again below
            outcome.append((None, error))

    thread = threading.Thread(target=attempt, name="cedar-async", daemon=True)
    thread.start()
    thread.join()
    result, error = outcome[0]
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]


_stuck: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_MAX_STUCK_THREADS = 64


def left_behind() -> int:
    """Return the number of threads that are still running a call that timed out."""
    return sum(thread.is_alive() for thread in list(_stuck))


class TimedCalls:
    """Calls a function in a helper thread and stops waiting after the timeout; the thread ends after its current call.

    It is used if workers cannot be killed, because they are threads or run on other machines.
    """

    def __init__(self, call: Call, borrowed: Callee, timeout: float, numeric: NumericEnvironment | None) -> None:
        self._numeric = numeric
        self._call, self._held, self._timeout = call, borrowed, timeout
        self._fn = call.callable(borrowed)
        self._start()

    def _start(self) -> None:
        jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        done: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def work() -> None:
            if self._numeric is not None:
                self._numeric.set()  # a new thread starts with the libraries' default numeric settings
            while (job := jobs.get()) is not None:
                fn, args, named = job
                outcome: tuple[Any, BaseException | None]
                try:
                    outcome = fn(*args, **named), None
                except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
                    outcome = None, error
                done.put(outcome)
                del job, fn, args, named, outcome

        self._jobs, self._done = jobs, done
        self._thread = threading.Thread(target=work, name="cedar-timeout", daemon=True)
        self._thread.start()

    def __enter__(self) -> Callable[..., Any]:
        return self._call_with_timeout

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._jobs.put(None)
        if kind is None or issubclass(kind, Exception):  # on an interrupt, do not wait for the running call
            self._thread.join()

    def _call_with_timeout(self, *args: Any, **named: Any) -> Any:
        self._jobs.put((self._fn, args, named))
        try:
            value, error = self._done.get(timeout=self._timeout)
        except queue.Empty:
            self._jobs.put(None)
            _stuck.add(self._thread)
            self._held.renew()  # the stuck call still uses the old instance
            self._fn = self._call.callable(self._held)
            self._start()
            if (left := left_behind()) > _MAX_STUCK_THREADS:
                blame = self._call.blame
                raise PipelineError(
                    f"{blame.label}: {left} calls continue beyond timeout={self._timeout:g} s, each in its own thread",
                    site=blame.site,
                    done="the run was stopped before they use up the machine",
                    fix='use executor="processes", which ends a call that hangs, or give the function a limit inside',
                ) from None
            raise timeout_error(self._timeout) from None
        if error is not None:
            raise error
        return value
