"""Runner: submits tasks to an executor, and knows how many to keep in flight."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from cedar.block import Block
from cedar.datasets.base import Split
from cedar.errors import WorkerError
from cedar.execution.chain import Program, Result, read_split, run_block
from cedar.execution.code import Code
from cedar.execution.executors import EXECUTORS, InlineExecutor, available_cpus, check_executor
from cedar.operators.base import Env
from cedar.stream import Rows

_log = logging.getLogger("cedar")
_PATIENCE = 60  # seconds
T = TypeVar("T")


class Runner:
    """One for each run of an epoch; closed with it.

    Args:
        executor: a name, or any ``concurrent.futures.Executor``, which is then not shut down here.
        workers: how many tasks run at once; None takes the cores there are.
    """

    def __init__(self, executor: str | Executor, workers: int | None) -> None:
        self.owned = isinstance(executor, str)
        name = "threads" if executor == "auto" else executor
        self.name = name if isinstance(name, str) else type(executor).__name__
        given = getattr(executor, "_max_workers", None)
        self.workers = 1 if name == "inline" else workers or given or available_cpus()
        self.executor = EXECUTORS[name](self.workers) if isinstance(name, str) else name
        self.inline = isinstance(self.executor, InlineExecutor)
        # Threads share our memory; anything else gets pickled code and gathered blocks.
        self.local = self.inline or isinstance(self.executor, ThreadPoolExecutor)
        self.ahead = 1 if self.inline else 2 * self.workers
        self.others: Runners | None = None  # of other places, where a plan may want some
        # For work on what stays here; a pool of threads starts none before it is asked to.
        self._here = self.executor if self.local else ThreadPoolExecutor(self.workers, thread_name_prefix="cedar")
        self._former: list[Executor] = []  # of other sizes; they finish what they have
        self._shipped: dict[tuple[int, ...], Code] = {}
        self._kept: list[Any] = []  # what was shipped, so that no other code gets its id

    def resize(self, workers: int, ahead: int | None = None) -> bool:
        """Run so many tasks at once from now on; those submitted go on. False for an executor whose size is fixed.

        Args:
            workers: threads or processes; above 0.
            ahead: tasks to keep in flight; None is twice the workers.

        To be called by the thread that submits.
        """
        if not self.owned or self.inline:
            return False
        if workers != self.workers:
            self._former.append(self.executor)
            self.workers, self.executor = workers, EXECUTORS[self.name](workers)
            self._former[-1].shutdown(wait=False)
        self._here = self.executor if self.local else self._here
        self.ahead = ahead or 2 * workers
        return True

    def submit(self, fn: Callable[..., Any], *args: Any) -> Future[Any]:
        """Work on rows that are already here."""
        return self._guard(self._here, fn, *args)

    def run(self, program: Program, rows: Rows, env: Env) -> Future[Result]:
        """Gather the rows and run the program."""
        if self.local:
            return self._guard(self.executor, _gather_and_run, program, rows, env)
        return self._guard(self.executor, _run_shipped, self._ship((program,)), env, Gathering(rows))

    def read(self, program: Program, reader: Any, split: Split, lap: int, env: Env, first: int = 0) -> Future[Result]:
        """Read a split, from row number ``first`` on, and run the program."""
        if self.local:
            return self._guard(self.executor, read_split, program, reader, split, lap, env, first)
        return self._guard(self.executor, _read_shipped, self._ship((program, reader)), env, split, lap, first)

    def result(self, future: Future[T], what: str) -> T:
        """A task's result; says so in the log when it lets itself be waited for.

        Raises:
            WorkerError: the worker died, or the executor was shut down.
        """
        while True:
            try:
                return future.result(_PATIENCE)
            except TimeoutError:
                if future.done():  # the task's own
                    return future.result()
                _log.warning("no result for %d s from %s; timeout= of map ends a call that hangs", _PATIENCE, what)
            except (BrokenExecutor, CancelledError) as error:
                raise WorkerError(
                    f"a worker died, or its executor was shut down, while at work on {what}: {error}",
                    done="the epoch was stopped; the state is that of the last batch received",
                    fix="look for a crash or too little memory in the worker, then resume from a checkpoint",
                ) from error

    def _guard(self, executor: Executor, fn: Callable[..., Any], *args: Any) -> Future[Any]:
        try:
            return executor.submit(fn, *args)
        except (RuntimeError, BrokenExecutor) as error:
            raise WorkerError(
                f"the executor takes no more tasks: {error}",
                done="the epoch was stopped",
                fix="give an executor that is running, or leave executor= out",
            ) from error

    def _ship(self, code: tuple[Any, ...]) -> Code:
        """Code travels by value, pickled once; workers keep it under its key."""
        key = tuple(id(part) for part in code)
        if key not in self._shipped:
            self._shipped[key] = Code.of(code)
            self._kept.append(code)
        return self._shipped[key]

    def close(self) -> None:
        """Drop what has not started; threads end with the tasks they are in, and worker processes stay warm."""
        if not self.local:
            self._here.shutdown(wait=False, cancel_futures=True)
        for executor in [self.executor, *self._former] if self.owned else []:
            executor.shutdown(wait=False, cancel_futures=True)


class Runners:
    """The runners of a run: one by default, others where a plan places work elsewhere; closed together.

    Args:
        default: where everything runs that is not placed.
        workers: of the others; None takes as many as the default has, or the cores there are.
    """

    def __init__(self, default: Runner, workers: int | None = None) -> None:
        self.default = default
        self._workers = workers if default.inline or not default.owned else workers or default.workers
        self._others: dict[str, Runner] = {}

    def of(self, place: str) -> Runner:
        """The runner of an executor's name, made when first asked for; the default one for ``""`` and its own name.

        Raises:
            PlanError: there is no such executor.
        """
        if place in ("", "auto") or (self.default.owned and place == self.default.name):
            return self.default
        if place not in self._others:
            check_executor(place)
            self._others[place] = Runner(place, self._workers)
        return self._others[place]

    def __iter__(self) -> Iterator[Runner]:
        return iter([self.default, *self._others.values()])

    def close(self) -> None:
        """End all; they cannot be used again."""
        for runner in self:
            runner.close()


@dataclass(frozen=True)
class Gathering:
    """Rows that are gathered when they are pickled: in the thread that sends them, not in the loader's loop."""

    rows: Rows

    @property
    def blocks(self) -> tuple[Block, ...]:
        return self.rows.blocks

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self.rows.gather(),)


def _itself(block: Block) -> Block:
    return block


def _gather_and_run(program: Program, rows: Rows, env: Env) -> Result:
    return run_block(program, rows.gather(), env)


def _run_shipped(code: Code, env: Env, block: Any) -> Result:
    (program,) = code.load()
    return run_block(program, block, code.env(env))


def _read_shipped(code: Code, env: Env, split: Split, lap: int, first: int) -> Result:
    program, reader = code.load()
    return read_split(program, reader, split, lap, code.env(env), first)
