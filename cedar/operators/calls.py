"""Calls of a user's function, once per row or once per batch.

A plain function is called with Python's built-in ``map`` on columns. Options add a random generator keyed by the row,
a time limit, or the collection of an iterable result. An ``async def`` function runs on many rows concurrently. A class
whose instances are callable is constructed once per worker. Any other class (``int``, ``str``) is called directly.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from cedar.core.block import Block
from cedar.core.cursor import Hashes
from cedar.core.errors import PipelineError, raised, warn_user
from cedar.core.numeric import NumericEnvironment
from cedar.core.request_owner import CancellableArguments, request_owner
from cedar.operators import unsteady
from cedar.operators.arguments import key_hashes
from cedar.operators.base import Bound, Env
from cedar.operators.constructing import constructed
from cedar.operators.draws import seeded
from cedar.operators.failures import ErrorContext, Failure, error_text
from cedar.operators.in_flight import AsyncRows, Outcome, as_items, new_runner, timeout_error
from cedar.operators.kernel import BlockKernel

if TYPE_CHECKING:
    import asyncio


@dataclass(frozen=True)
class Call:
    """A user's function and how to call it.

    Args:
        fn: a function, an ``async def`` function, or a class whose instances are called.
        blame: the operator that failures are attributed to.
        draw: the operator's own seed, for ``random``.
        random: True passes ``rng=``, a generator keyed by the row.
        timeout: the time limit of one call, in seconds.
        items: True if the function returns an iterable, whose items are collected as part of the call.
        twice: True calls the function twice per row and returns whether the two results differ.
    """

    fn: Callable[..., Any]
    blame: ErrorContext
    draw: int = 0
    random: bool = False
    timeout: float | None = None
    items: bool = False
    twice: bool = False

    def run(
        self,
        env: Env,
        arguments: Sequence[Iterable[Any]],
        n: int,
        hashes: Hashes | None = None,
        keep: Callable[[int, Any], Any] | None = None,
    ) -> Outcome:
        """Return the results of ``n`` calls, with None for each failed call, and the failures by call index.

        Args:
            env: the environment of the current block.
            arguments: an iterable of ``n`` values per parameter.
            n: the number of calls.
            hashes: the hash of each row's key, for ``random``.
            keep: called with each call's index and result as soon as the call ends; its return value replaces the
                result. Async calls, and calls in another process, do not use it.
        """
        first = bool(n) and env.unsteady is not None and self.blame.index not in env.unsteady
        if not first and not env.sampling and env.call_in_subprocess is None:
            return self._run(env, arguments, n, hashes, keep)
        columns = [list(column) for column in arguments]
        if env.call_in_subprocess is not None:
            outcome: Outcome = env.call_in_subprocess(self, env, columns, n, hashes)
        else:
            before = unsteady.generator_states()
            outcome = self._run(env, columns, n, hashes, keep)
            if unsteady.generator_states() != before:
                outcome = unsteady.GeneratorChanged(outcome[0]), outcome[1]
        if first:
            self._check_determinism(env, isinstance(outcome[0], unsteady.GeneratorChanged), columns, hashes)
        return outcome

    def _check_determinism(self, env: Env, drew: bool, columns: list[list[Any]], hashes: Hashes | None) -> None:
        """Call the function again if it drew from a global random generator; warn if the results differ."""
        assert env.unsteady is not None
        env.unsteady[self.blame.index] = ""
        few, seeds = [column[: unsteady.ROWS] for column in columns], None
        if not drew or is_async(self.fn):
            return
        if hashes is not None:
            seeds = hashes[: unsteady.ROWS]
        with unsteady.preserve_generators():
            again, _ = replace(self, twice=True).run(env, few, len(few[0]), seeds)
        if any(again):
            env.unsteady[self.blame.index] = text = unsteady.TEXT.format(self.blame.label)
            warn_user(text, self.blame.site)

    def _run(
        self,
        env: Env,
        arguments: Sequence[Iterable[Any]],
        n: int,
        hashes: Hashes | None,
        keep: Callable[[int, Any], Any] | None,
    ) -> Outcome:
        keyed = hashes.tolist() if hashes is not None and self.random else None
        seed = env.draw_seed(self.draw)
        with self._borrow(env) as borrowed:
            if is_async(self.fn):
                rows = AsyncRows(self.blame, keyed, seed, self.timeout, self.items, self.blame.stops(env))
                return borrowed.run_async(rows, arguments, n)
            marks = env.marks
            patient = self.timeout is not None and not (marks is not None and marks.watched)
            with _TimedCalls(self, borrowed, env.numeric) if patient else nullcontext(self.callable(borrowed)) as fn:
                if keyed is not None:
                    fn, arguments = seeded(fn, seed, fresh=patient), [keyed, *arguments]
                if marks is None:
                    return self._each(fn, arguments, n, self.blame.stops(env), keep)
                with marks.calls():
                    limit = None if patient else self.timeout
                    return self._each(marks.guard(fn, n, limit), arguments, n, self.blame.stops(env), keep)

    def describe(self, block: Block, env: Env) -> list[dict[str, Any]]:
        """Return a dict per live row with the call that recreates its random generator; [] without ``random``.

        The call is one of ``cedar.operators.draws.keyed_generator``, as a string.
        """
        if not self.random:
            return []
        keys, seed = key_hashes(block, env, self.draw).tolist(), env.draw_seed(self.draw)
        return [{"rng": f"keyed_generator({key:#x}, {seed:#x})"} for key in keys]

    def callable(self, borrowed: _Callee) -> Callable[..., Any]:
        fn = functools.partial(_call_and_collect, borrowed.fn) if self.items else borrowed.fn
        return functools.partial(unsteady.calls_differ, fn) if self.twice else fn

    def _each(
        self,
        fn: Callable[..., Any],
        arguments: Sequence[Iterable[Any]],
        n: int,
        stop: bool,
        keep: Callable[[int, Any], Any] | None,
    ) -> Outcome:
        results: list[Any] = []
        failures: dict[int, Failure] = {}
        with CancellableArguments(arguments, n) as wanted:
            calls: Iterator[Any] = map(fn, *wanted)
            if keep is not None:
                calls = map(keep, itertools.count(), calls)  # a call that raises also advances the counter
            while True:
                error: BaseException
                try:
                    results.extend(calls)  # after an exception, `results` has earlier results and `calls` can continue
                except PipelineError:  # a constructor failed, which no row caused
                    raise
                except raised() as failed:  # will be reported together with its row
                    error = failed
                else:
                    request_owner().check()
                    if len(results) >= n:
                        return results, failures
                    error = RuntimeError("the function raised StopIteration")  # the only reason for `map` to end early
                failures[len(results)] = self.blame.failure(error)
                if stop:
                    return results, failures
                results.append(None)

    def _borrow(self, env: Env) -> AbstractContextManager[_Callee]:
        if not makes_instances(self.fn):
            return nullcontext(_Callee(self.fn))
        return env.instances.borrow(self.blame.index, lambda: self._make(env))

    def _make(self, env: Env) -> _Callee:
        with nullcontext() if env.marks is None else env.marks.aside(self.blame.index):
            return _Callee(self.instance(env.numeric), partial(self.instance, env.numeric))

    def instance(self, numeric: NumericEnvironment | None = None) -> Any:
        """Construct a new instance of the class.

        Raises:
            PipelineError: the constructor failed.
        """
        name = getattr(self.fn, "__name__", "the class")
        try:
            return constructed(self.fn, name, numeric)
        except raised() as error:
            raise PipelineError(
                f"{self.blame.label}: {name}() failed: {type(error).__name__}: {error_text(error)}",
                site=self.blame.site,
                fix=f"each worker constructs {name} once, without arguments: check its __init__ and what it loads",
            ) from error


def call_of(fn: Callable[..., Any], bound: Bound, **options: Any) -> Call:
    """Return the ``Call`` for an operator's function."""
    return Call(fn, ErrorContext(bound.index, bound.label, bound.site, bound.on_error), bound.draw, **options)


# ---- kinds of functions --------------------------------------------------------------------------------------------


def makes_instances(fn: Any) -> bool:
    """Return True for a class whose instances are callable."""
    return isinstance(fn, type) and any("__call__" in vars(base) for base in fn.__mro__)


def is_async(fn: Any) -> bool:
    """Return True for ``async def`` functions, their partials, and classes and objects with an async ``__call__``."""
    asynchronous = inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn)
    if asynchronous or inspect.isroutine(fn) or isinstance(fn, functools.partial):
        return asynchronous
    if isinstance(fn, type) and not makes_instances(fn):
        return False
    call = getattr(fn, "__call__", None)  # noqa: B004 - inspected, not tested for callability
    return inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call)


def fn_name(fn: Any) -> str:
    """Return the name of a function for labels."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return str(getattr(fn, "__name__", None) or type(fn).__name__)


# ---- wrappers around a function ------------------------------------------------------------------------------------


def _call_and_collect(fn: Callable[..., Any], *args: Any, **named: Any) -> list[Any]:
    return as_items(fn(*args, **named))


_stuck: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_MAX_STUCK_THREADS = 64


def left_behind() -> int:
    """Return the number of threads that are still running a call that timed out."""
    return sum(thread.is_alive() for thread in list(_stuck))


class CallKernel(BlockKernel):
    """Base class of kernels that call a user's function."""

    call: Call

    @property
    def timeout(self) -> float | None:
        return self.call.timeout

    def describe(self, block: Block, env: Env) -> list[dict[str, Any]]:
        """Describe the random generator of each live row."""
        return self.call.describe(block, env)


class _TimedCalls:
    """Calls a function in a helper thread and stops waiting after the timeout; the thread ends after its current call.

    It is used if workers cannot be killed, because they are threads or run on other machines.
    """

    def __init__(self, call: Call, borrowed: _Callee, numeric: NumericEnvironment | None) -> None:
        assert call.timeout is not None
        self._numeric = numeric
        self._call, self._held, self._timeout = call, borrowed, call.timeout
        self._fn = call.callable(borrowed)
        self._start()

    def _start(self) -> None:
        self._jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=_run_jobs, args=(self._jobs, self._done, self._numeric), name="cedar-timeout", daemon=True
        )
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


def _run_jobs(jobs: queue.SimpleQueue[Any], done: queue.SimpleQueue[Any], numeric: NumericEnvironment | None) -> None:
    if numeric is not None:
        numeric.set()  # a new thread starts with the libraries' default numeric settings
    while (job := jobs.get()) is not None:
        fn, args, named = job
        outcome: tuple[Any, BaseException | None]
        try:
            outcome = fn(*args, **named), None
        except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
            outcome = None, error
        done.put(outcome)
        del job, fn, args, named, outcome


class _Callee:
    """A user's function, or an instance of a user's class and the event loop for its async calls."""

    def __init__(self, fn: Callable[..., Any], make: Callable[[], Any] | None = None) -> None:
        self.fn = fn
        self._make = make
        self._runner: asyncio.Runner | None = None

    def renew(self) -> None:
        if self._make is not None:
            self.fn = self._make()

    def run_async(self, rows: AsyncRows, arguments: Sequence[Iterable[Any]], n: int) -> Outcome:
        if self._make is None:
            return rows.run(None, self.fn, arguments, n)
        if self._runner is None:
            self._runner = new_runner()
            weakref.finalize(self, self._runner.get_loop().close)
        return rows.run(self._runner, self.fn, arguments, n)
