"""Call user functions on sample rows in a worker process, so that a crash does not end the program.

These calls are supervised like other tasks: ``Recovery`` finds a row that crashes workers, and kills hanging workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cedar.core.block import Block
from cedar.core.cursor import Hashes, Keys
from cedar.core.errors import WorkerError, portable
from cedar.executors.recovery.recovery import Recovery, WorkersDied
from cedar.executors.recovery.task import Deaths, Submit, TaskWork
from cedar.executors.recovery.waiting import Patience, Waiting
from cedar.operators.base import BlockKernel, Env
from cedar.operators.calls import Call
from cedar.operators.concurrent_calls import Outcome
from cedar.operators.marks import Marks, each_key
from cedar.tasks.chain import KernelStep, Program
from cedar.tasks.code import Code, Survived, run_trial

_NO_SOURCE = -1  # source number in keys that are made up for rows without keys
_MAX_BAD_ROWS = 8  # maximum number of sample rows per function that may crash workers


class IsolatedCalls:
    """Runs calls on sample rows in worker processes, for a run whose tasks run in processes.

    Args:
        workers: number of workers in the pool.
        deaths: records the workers that died.
        patience: how long to wait for a call that makes no progress.
    """

    def __init__(self, workers: int, deaths: Deaths, patience: Patience | None = None) -> None:
        self._workers = workers
        self._deaths = deaths
        self._patience = patience or Patience()
        self._next_block: Block | None = None
        self._last_outcome: tuple[Call, Block, Outcome] | None = None

    def enter(self, block: Block) -> None:
        """Set the block whose rows are the arguments of the next call."""
        self._next_block = block

    def __call__(
        self, call: Call, env: Env, arguments: Sequence[Iterable[Any]], n: int, hashes: Hashes | None
    ) -> Outcome:
        """Run the call in a worker process; see ``Call.run``.

        Raises:
            WorkerError: the function crashes its worker on too many rows, or for reasons that no single row explains.
        """
        block, self._next_block = self._next_block, None
        if block is not None and len(block.live_keys()) != n:  # the arguments are batches, not the rows of the block
            block = None
        last = self._last_outcome
        if block is not None and last is not None and last[0] is call and last[1] is block:
            return last[2]  # samples are used twice: to infer types, and to compute rows
        columns = [list(column) for column in arguments]
        made_up = Keys(np.arange(n, dtype=np.int64), source=_NO_SOURCE)
        rows = Block({}, made_up if block is None else block.live_keys())
        outcome = self._outcome(call, replace(env, call_in_subprocess=None), rows, columns, hashes)
        if block is not None:
            self._last_outcome = call, block, outcome
        return outcome

    def _outcome(self, call: Call, env: Env, rows: Block, columns: list[list[Any]], hashes: Hashes | None) -> Outcome:
        from cedar.executors.processes import warm

        blame = call.blame
        kernel = _SomeRowsKernel(call, rows.keys, columns, hashes)
        program = Program((KernelStep(kernel, (blame.index,), blame.label, blame.site),))

        def send(submit: Submit, marks: Marks | None) -> Future[Any]:
            return submit(_run_call, code, env, marks, rows, columns, hashes)

        recovery = Recovery(lambda: warm(self._workers), self._deaths, True, self._patience)
        try:
            code = Code.of((call,))
            limits = () if call.timeout is None else (call.timeout,)
            task = recovery.submit(TaskWork(program, send, limits=limits, fine=True, most=_MAX_BAD_ROWS))
            Waiting(self._patience, recovery.progress, recovery.at_work, lambda: True).wait([task], blame.label)
            outcome: Any = task.result()
        except WorkersDied as error:
            raise WorkerError(
                f"{blame.label} crashes every worker on the first rows ({error.what})",
                site=blame.site,
                done="nothing was run",
                fix="check what crashes the process in the function, or in the constructor of its class",
            ) from error
        except WorkerError:
            return call.run(env, columns, len(rows), hashes)  # the call cannot be pickled, so run it in this process
        finally:
            recovery.close()
        return outcome  # type: ignore[no-any-return]


def _run_call(
    code: Code, env: Env, marks: Marks | None, rows: Block, columns: list[list[Any]], hashes: Hashes | None
) -> Outcome | Survived:
    (call,) = code.load()
    blame, env = call.blame, replace(env, marks=marks)
    if marks is not None and marks.trial is not None:
        kernel = _SomeRowsKernel(call, rows.keys, columns, hashes)
        return run_trial([KernelStep(kernel, (blame.index,), blame.label, blame.site)], [rows], env, marks.trial)
    if marks is not None:
        marks.enter(blame.index, rows, divisible=True)
        if (bad := marks.known()) is not None and bad.block:
            failure = blame.failure(bad.error(0, len(rows) - 1))
            return [None] * len(rows), dict.fromkeys(range(len(rows)), failure)

    def work() -> Outcome:
        results, failures = call.run(env, columns, len(rows), hashes)
        return results, {i: replace(f, cause=f.cause and portable(f.cause)) for i, f in failures.items()}

    return work() if env.numeric is None else env.numeric.run(work, again=False)


@dataclass(frozen=True)
class _SomeRowsKernel(BlockKernel):
    """Kernel that runs the call on the rows of a block, and ignores the results."""

    call: Call
    keys: Keys
    columns: list[list[Any]]
    hashes: Hashes | None

    def __call__(self, block: Block, env: Env, /) -> Block:
        places = {key: i for i, key in enumerate(each_key(self.keys))}
        chosen = [places[key] for key in each_key(block.keys)]
        arguments = [[column[i] for i in chosen] for column in self.columns]
        self.call.run(env, arguments, len(chosen), None if self.hashes is None else self.hashes[chosen])
        return block
