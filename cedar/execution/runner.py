"""Runner: submits tasks to an executor, and knows how many to keep in flight."""

from __future__ import annotations

import itertools
import logging
import os
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ThreadPoolExecutor
from typing import Any, TypeVar

from cedar.datasets.base import Split
from cedar.errors import WorkerError
from cedar.execution.chain import Result, Step, read_split, run_block
from cedar.execution.executors import EXECUTORS, InlineExecutor, available_cpus
from cedar.operators.base import Env
from cedar.stream import Rows

_codes = itertools.count()
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
        self._here = InlineExecutor()
        self._shipped: dict[tuple[int, ...], tuple[str, bytes]] = {}
        self._kept: list[Any] = []  # what was shipped, so that no other code gets its id

    def submit(self, fn: Callable[..., Any], *args: Any) -> Future[Any]:
        """Work on rows that are already here."""
        return self._guard(self.executor if self.local else self._here, fn, *args)

    def run(self, steps: Sequence[Step], rows: Rows, env: Env) -> Future[Result]:
        """Gather the rows and run the steps."""
        if self.local:
            return self._guard(self.executor, _gather_and_run, steps, rows, env)
        return self._guard(self.executor, _run_shipped, *self._ship((steps,), env), rows.gather())

    def read(self, steps: Sequence[Step], reader: Any, split: Split, lap: int, env: Env) -> Future[Result]:
        """Read a split and run the steps."""
        if self.local:
            return self._guard(self.executor, read_split, steps, reader, split, lap, env)
        return self._guard(self.executor, _read_shipped, *self._ship((steps, reader), env), split, lap)

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

    def _ship(self, code: tuple[Any, ...], env: Env) -> tuple[str, bytes, Env]:
        """Code travels by value, pickled once; workers keep it under its key."""
        import cloudpickle

        key = tuple(id(part) for part in code)
        if key not in self._shipped:
            try:
                pickled = cloudpickle.dumps(code)
            except Exception as error:
                raise WorkerError(
                    f"a function of the pipeline cannot be sent to another process: {error}",
                    done="nothing was run",
                    fix='make what it closes over picklable, or use executor="threads"',
                ) from error
            self._shipped[key] = (f"{os.getpid()}-{next(_codes)}", pickled)
            self._kept.append(code)
        return (*self._shipped[key], env)

    def close(self) -> None:
        """Drop what has not started; threads end with the tasks they are in."""
        if self.owned:
            self.executor.shutdown(wait=False, cancel_futures=True)


def _gather_and_run(steps: Sequence[Step], rows: Rows, env: Env) -> Result:
    return run_block(steps, rows.gather(), env)


_loaded: dict[str, Any] = {}


def _load(key: str, code: bytes) -> Any:
    if key not in _loaded:
        if len(_loaded) > 32:
            _loaded.clear()
        _loaded[key] = pickle.loads(code)  # noqa: S301 - made by this job, never read from disk
    return _loaded[key]


_env: dict[str, Env] = {}


def _keep_instances(key: str, env: Env) -> Env:
    """One set of instances for each plan in this process, whatever the epoch."""
    kept = _env.setdefault(key, env)
    return Env(env.seed, env.epoch, kept.instances, env.sampling)


def _run_shipped(key: str, code: bytes, env: Env, block: Any) -> Result:
    (steps,) = _load(key, code)
    return run_block(steps, block, _keep_instances(key, env))


def _read_shipped(key: str, code: bytes, env: Env, split: Split, lap: int) -> Result:
    steps, reader = _load(key, code)
    return read_split(steps, reader, split, lap, _keep_instances(key, env))
