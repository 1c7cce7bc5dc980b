"""Calls of a user's function, once per row or once per batch.

A plain function is called with Python's built-in ``map`` on columns. Options add a random generator keyed by the row,
a time limit, or the collection of an iterable result. An ``async def`` function runs on many rows concurrently. A class
whose instances are callable is constructed once per worker. Any other class (``int``, ``str``) is called directly.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

from cedar.core.block import Block, named_values
from cedar.core.columns import UNKNOWN, Column, blank, read_only
from cedar.core.cursor import Hashes
from cedar.core.errors import VALUE, PipelineError, RowError, missing_column, raised, warn_user
from cedar.core.numeric import NumericEnvironment
from cedar.core.requests import CancellableArguments, request_owner
from cedar.operators import determinism
from cedar.operators.base import BlockKernel, Bound, Env, Mergeable, RowOperator
from cedar.operators.concurrent_calls import AsyncRows, Outcome, TimedCalls, as_items, new_runner
from cedar.operators.draws import seeded
from cedar.operators.failures import ErrorContext, Failure, error_text
from cedar.operators.functions import check_columns, check_fn, check_policy, fn_name, is_async, makes_instances
from cedar.operators.instances import constructed

if TYPE_CHECKING:
    import asyncio


@dataclass(frozen=True)
class Call:
    """A user's function and how to call it.

    Args:
        fn: a function, an ``async def`` function, or a class (or its partial) whose instances are called.
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
            before = determinism.generator_states()
            outcome = self._run(env, columns, n, hashes, keep)
            if determinism.generator_states() != before:
                outcome = determinism.GeneratorChanged(outcome[0]), outcome[1]
        if first:
            self._check_determinism(env, isinstance(outcome[0], determinism.GeneratorChanged), columns, hashes)
        return outcome

    def on_rows(
        self, block: Block, env: Env, columns: tuple[str, ...], keep: Callable[[int, Any], Any] | None = None
    ) -> Outcome:
        """Call the function once per live row of a block, on the values of ``columns``; see ``run``."""
        hashes = key_hashes(block, env, self.draw) if self.random else None
        return self.run(env, row_arguments(block, columns, self.blame), len(block), hashes, keep)

    def _check_determinism(self, env: Env, drew: bool, columns: list[list[Any]], hashes: Hashes | None) -> None:
        """Call the function again if it drew from a global random generator; warn if the results differ."""
        assert env.unsteady is not None
        env.unsteady[self.blame.index] = ""
        if not drew or is_async(self.fn):
            return
        twice = replace(self, twice=True)
        with determinism.preserve_generators():
            for row in range(min(len(columns[0]), determinism.ROWS)):
                one = slice(row, row + 1)
                again, _ = twice.run(
                    env, [column[one] for column in columns], 1, None if hashes is None else hashes[one]
                )
                if any(again):
                    env.unsteady[self.blame.index] = text = determinism.TEXT.format(self.blame.label)
                    warn_user(text, self.blame.site)
                    return

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
            limit = self.timeout if marks is not None and marks.watched else None  # another process ends long calls
            timed: AbstractContextManager[Callable[..., Any]] = nullcontext(self.callable(borrowed))
            if self.timeout is not None and limit is None:
                timed = TimedCalls(self, borrowed, self.timeout, env.numeric)
            with timed as fn:
                if keyed is not None:
                    fn, arguments = seeded(fn, seed, fresh=isinstance(timed, TimedCalls)), [keyed, *arguments]
                if marks is None:
                    return self._each(fn, arguments, n, self.blame.stops(env), keep)
                with marks.calls():
                    return self._each(marks.guard(fn, n, limit), arguments, n, self.blame.stops(env), keep)

    def describe(self, block: Block, env: Env) -> list[dict[str, Any]]:
        """Return a dict per live row with the call that recreates its random generator; [] without ``random``.

        The call is one of ``cedar.operators.draws.keyed_generator``, as a string.
        """
        if not self.random:
            return []
        keys, seed = key_hashes(block, env, self.draw).tolist(), env.draw_seed(self.draw)
        return [{"rng": f"keyed_generator({key:#x}, {seed:#x})"} for key in keys]

    def callable(self, borrowed: Callee) -> Callable[..., Any]:
        fn = partial(_call_and_collect, borrowed.fn) if self.items else borrowed.fn
        return partial(determinism.calls_differ, fn) if self.twice else fn

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

    def _borrow(self, env: Env) -> AbstractContextManager[Callee]:
        if not makes_instances(self.fn):
            return nullcontext(Callee(self.fn))

        def make() -> Callee:
            with nullcontext() if env.marks is None else env.marks.aside(self.blame.index):
                return Callee(self.instance(env.numeric), partial(self.instance, env.numeric))

        return env.instances.borrow(self.blame.index, make)

    def instance(self, numeric: NumericEnvironment | None = None) -> Any:
        """Construct a new instance of the class."""
        name = fn_name(self.fn)
        try:
            return constructed(self.fn, name, numeric)
        except raised() as error:
            raise self.blame.refusal(
                f"{name}() failed: {type(error).__name__}: {error_text(error)}",
                fix=f"each worker constructs {name} once: check its __init__, its arguments and what it loads",
            ) from error


class FunctionOperator(RowOperator, Mergeable):
    """Base class of operators that call a user's function on rows."""

    fn: Callable[..., Any]
    columns: tuple[str, ...]
    timeout: float | None = None
    random: bool = False

    def check(self) -> None:
        """Raise PipelineError if the function cannot be called on rows, or an option is invalid."""
        check_columns(self.name, self.columns)
        check_fn(self.name, self.fn, len(self.columns) or 1, random=self.random)
        check_policy(self.label(), self.on_error, self.timeout)

    def label(self) -> str:
        return f"{self.name}({fn_name(self.fn)})"

    def code(self) -> tuple[Any, ...]:
        return (self.fn,)

    def call(self, bound: Bound, items: bool = False) -> Call:
        """Return how to call the function."""
        return Call(self.fn, ErrorContext.at(bound), bound.draw, self.random, self.timeout, items)


def _call_and_collect(fn: Callable[..., Any], *args: Any, **named: Any) -> list[Any]:
    return as_items(fn(*args, **named))


class CallKernel(BlockKernel):
    """Base class of kernels that call a user's function."""

    call: Call

    @property
    def timeout(self) -> float | None:
        return self.call.timeout

    def describe(self, block: Block, env: Env) -> list[dict[str, Any]]:
        """Describe the random generator of each live row."""
        return self.call.describe(block, env)


class Callee:
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


# ---- the arguments of a function ------------------------------------------------------------------------------------


def row_arguments(block: Block, columns: tuple[str, ...], blame: ErrorContext) -> list[Iterable[Any]]:
    """Return one iterable of values per column, for calls per row; without column names, one iterable of row dicts."""
    values = [
        read_only(named_values(name, pick(block, name, blame), blame.refusal)) for name in columns or block.columns
    ]
    if columns:
        return list(values)
    names = list(block.columns)
    if not names:
        return [({} for _ in range(len(block)))]
    return [map(dict, map(zip, repeat(names), zip(*values, strict=True)))]  # these iterators all run in C


def batch_arguments(block: Block, columns: tuple[str, ...], blame: ErrorContext) -> list[Any]:
    """Return a batch's arrays, one per name in ``columns``; without names, a dict of all columns or the batch value."""
    if VALUE in block.columns and not columns:
        return [block.columns[VALUE][0]]
    arrays = numpy_columns(block, columns or tuple(block.columns), blame)
    return [arrays[name] for name in columns] if columns else [arrays]


def numpy_columns(block: Block, columns: tuple[str, ...], blame: ErrorContext) -> dict[str, Any]:
    """Return columns as ndarrays (read-only views of the block's memory), JaggedTensors or dicts of them."""
    from cedar.core.convert import to_numpy

    keys = block.live_keys() if block.aligned else None
    try:
        return {name: read_only(to_numpy(pick(block, name, blame), name, keys)) for name in columns}
    except RowError as error:
        error.site = error.site or blame.site
        raise


def pick(block: Block, name: str, blame: ErrorContext) -> Column:
    """Return the column of a block with this name."""
    try:
        return blank(UNKNOWN, 0) if block.is_nothing else block.columns[name]
    except KeyError:
        raise missing_column(name, list(block.columns), blame.label, blame.site) from None


def key_hashes(block: Block, env: Env, draw: int) -> Hashes:
    """Return the hash of each live row's key, which seeds that row's random draws."""
    return block.live_keys().hash(env.draw_seed(draw))
