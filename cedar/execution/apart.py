"""Apart: functions called on sample rows in a worker process, which may die of them, where the program must not."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from cedar.block import Block
from cedar.cursor import Hashes, Keys
from cedar.errors import WorkerError, portable
from cedar.execution.code import Code
from cedar.execution.executors import available_cpus
from cedar.execution.processes import warm
from cedar.execution.recovery.board import the_board
from cedar.execution.recovery.deaths import Death, Deaths
from cedar.execution.recovery.lost import is_lost
from cedar.operators.base import Env
from cedar.operators.calls import Call
from cedar.operators.in_flight import Outcome
from cedar.operators.marks import BadRow, Marks, Place, Written

_NOBODY = -1  # the source of rows without a key
_MOST = 8  # deaths over the sample rows of one function


class Apart:
    """Given to the calls on sample rows of a run whose rows are worked on by processes.

    Args:
        workers: of the pool.
        deaths: where those of its workers are written down.
    """

    def __init__(self, workers: int, deaths: Deaths) -> None:
        self._workers = workers
        self._deaths = deaths
        self._at: Block | None = None
        self._last: tuple[Call, Block, Outcome] | None = None

    def enter(self, block: Block) -> None:
        """The calls to come are made for the rows of this block."""
        self._at = block

    def __call__(
        self, call: Call, env: Env, arguments: Sequence[Iterable[Any]], n: int, hashes: Hashes | None
    ) -> Outcome:
        """See ``Call.run``.

        Raises:
            WorkerError: the function ends every process, whatever the row.
        """
        block, self._at = self._at, None
        if block is not None and len(block) != n:  # of batches
            block = None
        if block is not None and self._last is not None and self._last[0] is call and self._last[1] is block:
            return self._last[2]  # first for the types, then for the rows
        columns = [list(column) for column in arguments]
        rows = Block({}, _numbered(n) if block is None else block.live_keys())
        outcome = self._outcome(call, replace(env, apart=None), rows, columns, hashes)
        if block is not None:
            self._last = call, block, outcome
        return outcome

    def _outcome(self, call: Call, env: Env, rows: Block, columns: list[list[Any]], hashes: Hashes | None) -> Outcome:
        bad: list[BadRow] = []
        while True:
            place = the_board().take()
            marks = None if place is None else Marks(place, fine=True, bad=tuple(bad))
            try:
                code = Code.of((call,))
                task = warm(self._workers).submit(_call, code, env, marks, rows, columns, hashes)
                return _wait(task, place, call.timeout)
            except Exception as error:
                if not is_lost(error):
                    if isinstance(error, WorkerError):  # what it takes or makes does not go to another process
                        return call.run(env, columns, len(rows), hashes)
                    raise
                seen = None if place is None else the_board().read(place)
                found = _bad_row(seen, str(error))
                self._record(call, str(error), found)
                if found is None or found.mark in {row.mark for row in bad} or len(bad) == _MOST:
                    raise _unfit(call, str(error)) from error
                bad.append(found)
            finally:
                if place is not None:
                    the_board().give(place)

    def _record(self, call: Call, how: str, found: BadRow | None) -> None:
        named = found is not None and found.mark.key[0] != _NOBODY
        row = found.mark.ref if found is not None and named else None
        if found is not None and named:
            self._deaths.known.add(found.mark)
        self._deaths.add(Death(how, call.blame.label, row, 0 if row is None else 1, "run again"))


def _numbered(rows: int) -> Keys:
    """Keys of rows that nobody named."""
    return Keys(np.arange(rows, dtype=np.int64), source=_NOBODY)


def apart_for(executor: Any, workers: int | None, deaths: Deaths) -> Apart | None:
    """What a loader on this executor gives its samples; None where its tasks run in this process, or far away."""
    return Apart(workers or available_cpus(), deaths) if executor == "processes" else None


def _wait(task: Future[Outcome], place: Place | None, timeout: float | None) -> Outcome:
    """The outcome; a process whose row takes too long is ended."""
    if timeout is None or place is None:
        return task.result()
    while True:
        try:
            return task.result(timeout / 4)
        except TimeoutError:
            seen = the_board().read(place)
            if not task.done() and seen is not None and seen.overdue(time.monotonic()):
                with suppress(ProcessLookupError):
                    os.kill(seen.pid, signal.SIGKILL)


def _bad_row(seen: Written | None, how: str) -> BadRow | None:
    """The row that a worker was at when it ended, if that is known."""
    if seen is None or seen.mark.rows != 1:
        return None
    if seen.overdue(time.monotonic()):
        return BadRow(seen.mark, f"no result within timeout={seen.limit:g} s", hung=True)
    return BadRow(seen.mark, how)


def _unfit(call: Call, how: str) -> WorkerError:
    return WorkerError(
        f"{call.blame.label} ends worker after worker on the first rows ({how})",
        site=call.blame.site,
        done="nothing was run",
        fix="look for what ends the process in the function, or in the constructor of its class",
    )


def _call(
    code: Code, env: Env, marks: Marks | None, rows: Block, columns: list[list[Any]], hashes: Hashes | None
) -> Outcome:
    (call,) = code.load()
    if marks is not None:
        marks.enter(call.blame.index, rows, divisible=True)
        env = replace(env, marks=marks)
    results, failures = call.run(env, columns, len(rows), hashes)
    return results, {i: replace(f, cause=f.cause and portable(f.cause)) for i, f in failures.items()}
