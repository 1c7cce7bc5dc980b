"""Iterate over one epoch of a loader: run its tasks, deliver their results, and move to the next epoch."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Generator, Iterator
from typing import Any

from cedar.core.errors import CedarError, PipelineError, WorkerError
from cedar.core.process import START_FRESH
from cedar.engine.agree import BLOCK
from cedar.engine.delivery.epochs import Epochs
from cedar.engine.delivery.mixtures import apply_due
from cedar.engine.delivery.parts import Parts, Run
from cedar.engine.epoch import DataEpoch, scheduled_entry
from cedar.executors.recovery.task import block_daemon_at_exit

_log = logging.getLogger("cedar")
_ROWS_PER_TIMING = 61  # if single rows are delivered, measure the CPU time of one row in this many


def iterate(epochs: Epochs, _loader: object = None, continues: bool = False) -> Iterator[Any]:
    """Yield the units of the current epoch from the current position on, then move to the next epoch.

    Args:
        _loader: referenced until the iteration ends, since its observers end when it is garbage-collected.
        continues: whether an iteration with fewer inputs delivered earlier batches.
    """
    getpid = os.getpid  # ``os`` may be gone at interpreter exit
    epochs.parts.stop()
    if epochs.passes_over():
        return
    if epochs.changes:
        apply_due(epochs)
    parts, position, job = epochs.parts, epochs.position, epochs.parts.job
    epochs.used = position.started = True
    position.resumed, position.ended = False, None
    passes, position.continue_if_over = position.continue_if_over, False
    run = parts.begin_run()
    clock, batches_before = job.metrics.time, job.metrics.batches
    clock.begin(time.perf_counter(), run.runner.lanes, 1 if parts.units.whole else _ROWS_PER_TIMING)
    units = _deliver(epochs, run, passes)
    run.holding.__enter__()
    try:
        job.instances.enter()
        epochs.place(run.runner)
        epochs.elastic.publish_beginning(epochs)
        for value in units:
            clock.give(time.perf_counter())
            yield value
            if run.stopped or os.getpid() != parts.pid:
                raise _ended(parts)
            clock.ask(time.perf_counter())
            job.instances.enter()
            if epochs.changes:
                apply_due(epochs)
            if epochs.parts is not parts:  # an input was added to a mixture
                break
        clock.give(time.perf_counter())
    except Exception as error:  # GeneratorExit is excluded, since names may be gone at interpreter exit
        block_daemon_at_exit()  # the end of the program cancels tasks, which fails here
        if isinstance(error, CedarError):
            raise parts.account.locate(error)  # noqa: B904 - the same error
        raise
    finally:
        if getpid() == parts.pid:  # a forked child must not stop the parent's threads, whose locks may be held
            if not run.stopped:  # otherwise a later iteration may already use the instances
                job.instances.end()
            units.close()
            run.stop()
            run.holding.__exit__(None, None, None)
    if epochs.parts is not parts or _finish(epochs, continues or job.metrics.batches > batches_before):
        yield from iterate(epochs, continues=epochs.parts is not parts)


def _finish(epochs: Epochs, delivered: bool) -> bool:
    """Move to the next epoch; return whether to iterate it, since the state was after the last batch of this epoch."""
    passes = epochs.position.continue_if_over
    if not delivered and not passes:
        _warn_if_empty(epochs)
    epochs.begin_next()
    return passes


def _deliver(epochs: Epochs, run: Run, passes: bool) -> Generator[Any]:
    """Yield the units of the epoch. With ``passes``, the next epoch follows if this one has none."""
    parts, position, steps, idle = epochs.parts, epochs.position, epochs.parts.options.steps, 0
    while steps is None or position.step < steps:
        number, job = position.data, parts.job
        parts.account.epoch = number
        run.agreement = job.agreement(epochs.elastic.meeting, parts.options.timeout, parts.site)
        entry = position.open.get(str(number))
        if entry is None and (entry := scheduled_entry(job, number, epochs.total_steps)) is not None:
            position.open[str(number)] = entry
        data = DataEpoch(job, run.runner, number, entry, run.agreement)
        values = _values(parts, run, data)
        position.live = data
        for value in values:
            position.step += 1
            idle, passes = 0, False
            yield value
            if epochs.position is not position:
                break
            if steps is not None and position.step >= steps:
                return
            if not position.step % BLOCK:
                epochs.elastic.publish_position(epochs)
        if epochs.position is not position:  # ranks or weights changed, so drop batches that were computed ahead
            position = epochs.position
            position.started, position.resumed = True, False
            epochs.elastic.publish_position(epochs)
            run.leave_data()
            values.close()
            continue
        position.close(data)
        job.metrics.left_out += data.left_out
        if steps is None:
            if passes and epochs.current_files is not None:  # the next epoch must use the current file list
                position.continue_if_over = True
            if not passes or position.continue_if_over:
                return
            passes = False  # this run showed that the state was after the last batch, so start the next epoch
            epochs.begin_next()
            position = epochs.position
            position.started = True
            continue
        idle += 1
        if idle > job.rank.world:  # after that many passes, this rank has read every lane
            raise PipelineError(
                f"steps={steps}: one pass over the data has no batch for rank {job.rank.rank}",
                site=parts.site,
                fix="check with p.count() whether filters leave any rows; if they do, "
                'use smaller batches, last="keep", or more splits than ranks',
            )
        position.data += 1


def _values(parts: Parts, run: Run, data: DataEpoch) -> Generator[Any]:
    """Return the units of a data epoch, as the caller receives them."""
    # Limits on skipped rows may use the epoch's number of rows if it is delivered to its end.
    units, total = data.begin() if parts.options.steps is None else None, None
    if units is not None and units != math.inf:
        total = parts.account.budgets.seen + float(units * parts.units.rows)
    mover = parts.units.mover()
    if mover is None:
        return parts.units.values(data, run.runner, total)
    from cedar.engine.delivery.device_prefetch import DevicePrefetch

    run.prefetch = DevicePrefetch(data, run, parts.units, mover)
    return run.prefetch.values(total)


def _ended(parts: Parts) -> CedarError:
    """Return the error of an iteration that cannot continue."""
    if os.getpid() != parts.pid:
        return WorkerError(
            "this process was forked during the iteration, whose threads and workers belong to the parent",
            site=parts.site,
            done="no row was delivered here; the parent continues",
            fix=f"iterate the loader again in this process, or {START_FRESH}",
        )
    return PipelineError(
        "this iteration was superseded: the loader was closed or iterated again, or a state was loaded or an epoch set",
        site=parts.site,
        fix="a loader supports one iteration at a time; create another loader",
    )


def _warn_if_empty(epochs: Epochs) -> None:
    """Warn that an epoch ended without any batch, unless it was resumed after earlier batches."""
    parts, position, rank = epochs.parts, epochs.position, epochs.job.rank
    own = parts.units.batched and parts.options.encode is None  # with ``encode``, units are not the user's batches
    if own and position.step == position.begun["step"]:
        _log.warning(
            "epoch %d has no batch for rank %d of %d: no rows or less than a batch are left, or other ranks got "
            "them; check the filters, use smaller batches, or last='keep'",
            position.epoch, rank.rank, rank.world,
        )  # fmt: skip
