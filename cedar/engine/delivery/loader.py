"""Loader: the object that a trainer iterates, with a small JSON state to save and load."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from cedar.core import forks
from cedar.core.errors import CedarError, PipelineError, WorkerError
from cedar.core.inverse import InverseKeyedJaggedTensor
from cedar.core.jagged import JaggedTensor
from cedar.core.numeric import hold_threads
from cedar.core.pytrees import register
from cedar.core.ranks import refuse_workers
from cedar.engine.account import ROWS_PER_TIMING, OwnTime
from cedar.engine.agree import Agreement, next_run
from cedar.engine.delivery.by_step import ByStep
from cedar.engine.delivery.device_prefetch import deliver
from cedar.engine.delivery.loader_position import has_leftovers
from cedar.engine.delivery.mixtures import Mixtures
from cedar.engine.delivery.units import units_left
from cedar.engine.epoch import DataEpoch
from cedar.engine.nodes import warn_of_cuts
from cedar.engine.runner import Runner
from cedar.plan.graph import digest, topology

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    T = TypeVarWithDefault("T", default=Any)
else:
    T = TypeVar("T")

_log = logging.getLogger("cedar")


class Loader(ByStep, Mixtures, Generic[T]):
    """Iterates over a pipeline, epoch by epoch, and can be stopped and resumed after any batch.

    ``for batch in loader`` runs the current epoch, then moves to the next epoch. After a ``break``, the next ``for``
    starts the epoch again; after ``load_state_dict``, it continues from the position in the state.

    Examples:
        >>> import cedar
        >>> pipeline = cedar.from_items([{"x": i} for i in range(10)]).batch(4, last="keep")
        >>> with pipeline.loader() as loader:
        ...     [batch["x"].tolist() for batch in loader]
        [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    """

    def __iter__(self) -> Iterator[T]:
        refuse_workers(self.rank, self._site)
        register(JaggedTensor, InverseKeyedJaggedTensor)
        if os.getpid() != self._pid:
            self._begin_in_fork()
        sharing = self._job.sharing
        if sharing.why and not sharing.asked and not self._warned:
            self._warned = True
            _log.warning("%s", sharing.warning(self.rank.world))
        warn_of_cuts(self._binding.root, self.epoch)
        again, self._started = self._started, True
        self._unused = False
        return self._iterate(again)

    def _begin_in_fork(self) -> None:
        """Recreate this loader in a forked child at the parent's position, without the parent's threads and locks."""
        names = {"epoch", "_step", "_data", "_begun", "_saved_numeric", "_started", "_resumed", "_data_placed"}
        names |= {"_generation", "_unused", "_elastic", "_ended", "_continue_if_over", "_earlier_steps"}
        position = {name: self.__dict__[name] for name in names}
        weights = self._job.weights
        opened, counted = self._opened(), (dict(self._account.budgets.counts), self._account.budgets.seen)
        self.__init__(self._binding.root, self._options)  # type: ignore[misc] # everything else is recreated
        self.__dict__.update(position)
        self._open = opened
        self._job = replace(self._job, weights=weights)
        self._account.budgets.start(*counted)

    def _iterate(self, again: bool) -> Iterator[Any]:
        self._generation += 1
        mine, getpid = self._generation, os.getpid  # ``os`` may be gone at interpreter exit
        self._stop()
        if again:
            self._restart()
        if self._current_files is not None:
            self._reread_files()
        self._resumed = self._redistributed = False
        runner, others = self._new_runner()
        numeric = self._binding.begin(self._environment())
        instances = self._job.instances
        instances.runs_concurrently_with_caller = numeric is not None
        self._plans.start(runner)
        clock, batches_before = self._metrics.time, self._metrics.batches
        clock.begin(time.perf_counter(), runner.lanes)
        own = OwnTime(self._metrics, 1 if self._batched or self._options.as_blocks else ROWS_PER_TIMING)
        deliveries = self._deliveries(runner, self._continue_if_over)
        # The run's threads work while the caller trains, so the numeric settings must apply until the run ends.
        holding = hold_threads(numeric if runner.local and not runner.inline else None)
        holding.__enter__()
        try:
            instances.enter()
            own.enter()
            self._place_and_publish(runner)
            for value in deliveries:
                own.leave()
                clock.give(time.perf_counter())
                yield value
                if os.getpid() != self._pid:
                    raise WorkerError(
                        "this process was forked during the iteration, whose threads and workers belong to the parent",
                        site=self._site,
                        done="no row was delivered here; the parent continues",
                        fix=f"iterate the loader again in this process, or {forks.START}",
                    )
                if self._generation != mine:
                    raise PipelineError(
                        "this iteration was superseded: the loader was closed or iterated again, or a state was loaded "
                        "or an epoch set",
                        site=self._site,
                        fix="a loader supports one iteration at a time; create another loader",
                    )
                clock.ask(time.perf_counter())
                instances.enter()
                own.enter()
            own.leave()
            clock.give(time.perf_counter())
        except Exception as error:  # GeneratorExit is excluded, since names may be gone at interpreter exit
            if isinstance(error, CedarError):
                raise self._account.locate(error)  # noqa: B904 - the same error
            raise
        finally:
            if getpid() == self._pid:  # a forked child must not stop the parent's threads, whose locks may be held
                if self._runner is runner:  # otherwise a later iteration has already stopped the shared components
                    instances.end()
                deliveries.close()
                others.close()
                if self._runner is runner:
                    self._stop()
                holding.__exit__(None, None, None)
        yield from self._finish(batches_before)

    def _finish(self, batches_before: int) -> Iterator[Any]:
        """Finish an epoch; also run the next one if the loaded state turned out to be after this epoch's last batch."""
        passes, self._continue_if_over = self._continue_if_over, False
        if self._metrics.batches == batches_before and not passes:
            self._warn_if_empty()
        self._begin_next()
        if passes:
            yield from self._iterate(False)

    def _begin_next(self) -> None:
        self._finish_epoch()
        if self._current_files is not None:
            self._reread_files()
        self._publish_beginning()

    def _reread_files(self) -> None:
        """Switch from the file list of a state to the current one, once the epoch that began with it is over."""
        if str(self._data) in self._open:
            return
        data, changed = self._data, self._file_changes
        self._read_files_as_now()
        self._data, self._file_changes, self._data_placed = data, changed, self._options.steps is not None
        self._mark_beginning()

    def _restart(self) -> None:
        """After a break, start the epoch again, or the next one if this one was complete; after loading, continue."""
        steps, begun = self._options.steps, self._begun
        if self._step >= steps if steps is not None else self._step > 0 and units_left(self._current_epoch()) == 0:
            self._move_to_next_epoch()
        elif not self._resumed:
            self._begin_epoch(self.epoch)
            if begun["step"] == 0 and (steps is not None or has_leftovers(begun)):
                self._data, self._open, self._data_placed = begun["data"], begun["open"], True
                self._mark_beginning()
        self._started = True

    def _place_and_publish(self, runner: Runner) -> None:
        self._place(runner)
        self._publish_beginning()

    def _deliveries(self, runner: Runner, passes: bool) -> Generator[Any]:
        steps, agreement = self._options.steps, self._agreement()
        idle, self._continue_if_over = 0, False
        while steps is None or self._step < steps:
            self._account.epoch = self._data
            entry = self._open.get(str(self._data))
            if entry is None and self._scheduled:  # scheduled weights depend on the number of steps in all epochs
                entry = DataEpoch(self._job, runner, self._data, None).entry()
                entry = self._open[str(self._data)] = entry | {"left": {}, "since": self._earlier_steps + self._step}
            data, values = deliver(self._job, runner, self._data, entry, self._units, steps is None, agreement)
            self._live = self._deliverer = data
            for value in values:
                self._step += 1
                idle, passes = 0, False
                yield value
                if self._redistributed:
                    break
                if steps is not None and self._step >= steps:
                    return
            if self._redistributed:  # ranks or weights changed, so drop batches that were computed ahead
                self._redistributed = self._resumed = False
                self._started = True
                data.leave()
                cast("Generator[Any]", values).close()
                agreement = self._agreement()
                continue
            if steps is None:
                self._close(data)
                if not passes:
                    return
                if self._current_files is not None:  # the next epoch must use the current file list
                    self._continue_if_over = True
                    return
                passes = False  # this run showed that the state was after the last batch, so start the next epoch
                self._begin_next()
                self._started = True
                agreement = self._agreement()
                continue
            idle += 1
            if idle > self.rank.world:  # after that many passes, this rank has read every lane
                raise PipelineError(
                    f"steps={steps}: one pass over the data has no batch for rank {self.rank.rank}",
                    site=self._site,
                    fix="check with p.count() whether filters leave any rows; if they do, "
                    'use smaller batches, last="keep", or more splits than ranks',
                )
            self._close(data)
            self._data += 1

    def _agreement(self) -> Agreement | None:
        """Return the agreement of ranks on the end of the epoch that begins; None if none is needed."""
        self._agreed = None
        if not self._job.sharing.together:
            return None
        root, options = self._binding.root, self._options
        name = self._elastic.meeting or digest([topology(root), options.seed, self.rank.world])[:16]
        run = next_run(name, self.rank.rank)
        self._agreed = self._job.agreement(run, options.timeout, self._site)
        return self._agreed

    def _warn_if_empty(self) -> None:
        """Warn that an epoch ended without any batch, unless it was resumed after earlier batches."""
        own = self._batched and self._options.encode is None  # with ``encode``, units are not the user's batches
        if own and self._step == self._begun["step"]:
            _log.warning(
                "epoch %d has no batch for rank %d of %d: no rows or less than a batch are left, or other ranks got "
                "them; check the filters, use smaller batches, or last='keep'",
                self.epoch, self.rank.rank, self.rank.world,
            )  # fmt: skip
