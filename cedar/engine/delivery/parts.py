"""The components with which a loader runs its pipeline in this process, and delivers the units of its epochs."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cedar.core.block import Block
from cedar.core.columns import writeable
from cedar.core.errors import PipelineError, Site
from cedar.core.numeric import NumericEnvironment, hold_threads
from cedar.core.process import Rank, cores
from cedar.engine.account import DeliveryCounter
from cedar.engine.agree import Agreement, meeting_place
from cedar.engine.binding import Binding
from cedar.engine.dedup import Marked
from cedar.engine.delivery.counting import Counting
from cedar.engine.delivery.formats import Finish, Mover, in_form, make_mover
from cedar.engine.delivery.options import Observer, Options, check_fits
from cedar.engine.delivery.state import Identity
from cedar.engine.epoch import DataEpoch, Job
from cedar.engine.memory import MemoryBound
from cedar.engine.metrics import Metrics
from cedar.engine.nodes import last_mode, rows_per_unit
from cedar.engine.plan_control import Plans
from cedar.engine.runner import Runner, UntakenResults
from cedar.executors.choose import executor_after_fork
from cedar.executors.isolated import IsolatedCalls
from cedar.executors.recovery.waiting import Patience
from cedar.operators.base import Env
from cedar.operators.instances import Instances
from cedar.plan.data import Plan
from cedar.plan.graph import Node, calls_functions
from cedar.store.cache import Store
from cedar.tasks.chain import KernelStep

if TYPE_CHECKING:
    from cedar.engine.delivery.device_prefetch import DevicePrefetch
    from cedar.engine.delivery.replay import ByStep


class Parts:
    """Creates and owns the components of a loader. Threads and locks of another process cannot be used after a fork.

    Args:
        root: the last node of the pipeline.
        options: the arguments that the user passed, checked. ``rank`` replaces those for ranks.
        rank: this rank.
        site: the user's line that created the loader.
        numeric: the numeric environment of a loaded state; None means the plan's, or else the caller's.
        metrics: counters to continue, of a loader that compiles its pipeline again.
        weights: weights of mixtures set during the run, by mixture number.
    """

    def __init__(
        self, root: Node, options: Options, rank: Rank, site: Site | None, numeric: NumericEnvironment | None = None,
        metrics: Metrics | None = None, weights: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.options, self.site, self.pid = options, site, os.getpid()
        self.numeric = options.plan.numeric if numeric is None and options.plan is not None else numeric
        self.run: Run | None = None  # the latest iteration
        instances, counters, patience = Instances(), metrics or Metrics(), Patience(options.timeout)
        executor, workers = executor_after_fork(options.executor, options.workers)
        isolated = IsolatedCalls(workers or cores(), counters.deaths, patience) if executor == "processes" else None
        numeric_environment = self.environment() if calls_functions(root) else None
        env = Env(options.seed, options.epoch, instances, numeric=numeric_environment, unsteady={})
        self.counting = Counting(options) if options.counts == "exact" else None
        binding = Binding(root, options.on_error, env, isolated, self.counting)
        binding.any_order = options.order == "any"
        batched = root.batched
        check_fits(binding, options, rank.world, site)
        counters.labels = {binding.index[id(n)]: binding.labels[id(n)] for n in binding.nodes}
        if (words := options.words) is not None:

            @functools.cache
            def shown() -> dict[int, str]:
                labels = words(root, binding.labels)
                return {binding.index[id(n)]: labels[id(n)] for n in binding.nodes}

            counters.words = shown
        finish: tuple[KernelStep, ...] = ()
        if options.encode is not None:
            finish = (KernelStep(options.encode, (), "encode"),)
        elif batched and not options.as_blocks:
            last = Finish(options.format, Marked(binding) if binding.marks else None)
            finish = (KernelStep(last, (), f"format={options.format!r}"),)
        plan = options.plan or (options.planner.begin() if options.planner else Plan.as_written(root))
        plans = Plans(options.planner, plan, binding, counters, rank.world, Patience(options.timeout))
        store = Store.within(plan.cache_bytes, plan.memory_bytes, options.workers or cores())
        place = functools.partial(meeting_place, options.agree, options.executor)
        self.job = Job(
            binding, rank, options.seed, options.split_batches, finish, instances, store, counters, plans,
            options.deal, options.steps, place, encodes=options.encode is not None, weights=dict(weights or {}),
        )  # fmt: skip
        if self.counting is not None:
            self.counting.job = self.job
        observer = options.observer
        # Results that are not delivered yet are recorded if an observer watches the run or its memory is limited.
        recorded = binding.any_order or observer is not None or plan.memory_bytes is not None
        self.untaken = UntakenResults() if recorded else None
        if self.untaken is not None and (observer is not None or plan.memory_bytes is not None):
            counters.queued = self.untaken.nbytes
        if observer is not None and metrics is None:
            observer.begin(counters)
        if plan.memory_bytes is not None:
            counters.bound = MemoryBound(plan.memory_bytes, store.memory, counters.queued)
        update = None if observer is None else observer.update
        self.account = account = DeliveryCounter(binding, counters, rank.rank, update, site)
        self.units = Units(account, options, batched, finish, rows_per_unit(root) if batched else 1, instances.leave)

    @functools.cached_property
    def by_step(self) -> ByStep:
        """Computes batches of this epoch again."""
        from cedar.engine.delivery.replay import ByStep

        return ByStep(self.job, self.units, self.site)

    def close_by_step(self) -> None:
        """Stop computing batches again, if any were."""
        if "by_step" in self.__dict__:
            self.__dict__.pop("by_step").close()

    @functools.cached_property
    def identity(self) -> Identity:
        """What a state must match: the pipeline, its code, its data and its seed."""
        return Identity.of(self.job.binding, self.options)

    @property
    def drifts(self) -> bool:
        """Whether a rank's position in an epoch cannot be derived from its steps, even if counts are known."""
        kept = self.options.steps is not None and last_mode(self.job.binding.root) == "keep"
        return kept or self.may_skip_units

    @property
    def may_skip_units(self) -> bool:
        """Whether units are single rows, which may be skipped."""
        return self.account.skips and not self.units.batched

    def environment(self) -> NumericEnvironment:
        """Return the numeric environment for a new run: that of the loaded plan or state if any, else the caller's."""
        caller = NumericEnvironment.of_caller()
        return caller if self.numeric is None else self.numeric.again(caller)

    def check_exact(self, method: str, site: Site | None) -> None:
        """Raise PipelineError if rows are delivered as they finish."""
        if self.job.binding.any_order:
            raise PipelineError(
                f"{method} with order={self.options.order!r}: the order of rows is not known in advance",
                site=site,
                fix='use order="exact"',
            )

    def change_job(self, **changes: Any) -> None:
        """Continue with other values of the job's ``rank`` or ``weights``."""
        self.close_by_step()
        self.job = replace(self.job, **changes, counts={})
        self.job.plans.first_rows.world = self.job.rank.world

    def begin_run(self) -> Run:
        """Begin an iteration: create its runner, and the runners for other executors that its plans may use."""
        numeric = self.job.binding.begin(self.environment)
        self.job.instances.runs_concurrently_with_caller = numeric is not None
        options, metrics, alone = self.options, self.job.metrics, self.job.binding.any_order
        runner = options.runner(
            metrics.deaths, watched=True, untaken=self.untaken, bound=metrics.bound, alone=alone, places=True
        )
        self.job.plans.start(runner)
        # The run's threads work while the caller trains, so the numeric settings must apply until the run ends.
        holding = hold_threads(numeric if runner.local and not runner.inline else None)
        self.run = Run(self.job, options.observer, runner, runner.workers, holding)
        return self.run

    def stop(self) -> None:
        """End the iteration in progress, if any, except in a forked child, where its threads belong to the parent."""
        if self.run is not None and os.getpid() == self.pid:
            self.run.stop()

    def close(self) -> None:
        """Stop tasks and threads, and close the observer."""
        if os.getpid() != self.pid:
            return
        self.close_by_step()
        self.stop()
        if self.options.observer is not None:
            self.options.observer.close()


@dataclass(eq=False)
class Run:
    """One iteration of a loader, with the executors of its tasks."""

    job: Job
    observer: Observer | None
    runner: Runner
    workers: int  # number of workers at the beginning
    holding: AbstractContextManager[None]  # the numeric settings of the threads, while the iteration runs
    prefetch: DevicePrefetch | None = None  # copies the batches in progress to a device
    agreement: Agreement | None = None  # the ranks' agreement on the end of the epoch, if one is needed
    stopped: bool = False  # whether it has ended, or was superseded by the next iteration or a change of the position

    def leave_data(self) -> None:
        """Stop copying batches of the data epoch in progress, whose runner the next data epoch uses."""
        if self.prefetch is not None:
            self.prefetch.stop(close_runner=False)

    def stop(self) -> None:
        """End this iteration, even if the caller still references it, for example in the traceback of an error."""
        if self.stopped:
            return
        self.stopped = True
        self.job.instances.end()
        if self.agreement is not None:
            self.agreement.stop()
        if self.prefetch is not None:
            self.prefetch.stop()
            self.prefetch = None
        self.runner.close()
        self.job.plans.close()
        if self.observer is not None:
            self.observer.ended()


@dataclass(frozen=True)
class Units:
    """Delivers rows, batches or blocks.

    Args:
        account: counts delivered and skipped rows.
        options: the loader's options.
        batched: whether units are batches.
        finish: steps that convert a batch to its format; run in this process if tasks ran in other processes.
        rows: number of rows in a batch.
        leave: called immediately before a value is yielded, after which the caller may take arbitrarily long.
    """

    account: DeliveryCounter
    options: Options
    batched: bool
    finish: tuple[KernelStep, ...]
    rows: int
    leave: Callable[[], None] = lambda: None

    @property
    def whole(self) -> bool:
        """Whether units are batches or blocks; otherwise they are rows."""
        return self.batched or self.options.as_blocks

    def values(self, data: DataEpoch, runner: Runner, total: float | None) -> Generator[Any]:
        """Yield the units of an epoch of the data as the caller receives them, and record each in ``data`` first."""
        whole = self.whole
        for origin, piece in data.pieces():
            block = piece.rows.gather()
            if whole:
                self.account.add(block, total)
                value = None if block.dead and replaced(block) else self.value(block, runner)
                units = iter([(piece.units - 1, value)])
            else:
                units = self._rows(block, total)
            for unit, value in units:
                if value is not None:
                    self.leave()
                data.delivered(origin, piece, unit)
                if value is not None:
                    yield value

    def _rows(self, block: Block, total: float | None) -> Iterator[tuple[int, Any]]:
        """Yield (unit, row) for each row of a piece, and (last unit, None) if its last rows were skipped."""
        counted = 0
        block = block.only_columns({name: writeable(column) for name, column in block.columns.items()})
        for slot, row in zip(block.live_slots().tolist(), block.rows(), strict=True):
            self.account.add(block, total, range(counted, slot + 1))
            counted = slot + 1
            yield slot, tuple(row.values()) if self.options.format == "tuple" else row
        if counted < block.slots:  # there are skipped rows after the last row that was not skipped
            self.account.add(block, total, range(counted, block.slots))
            yield block.slots - 1, None

    def value(self, block: Block, runner: Runner) -> Any:
        """Return a batch as the caller receives it, or the block itself for a sink."""
        if self.options.as_blocks:
            return block
        columns = block.columns if runner.local else self.columns(block, runner)
        if self.account.counts_groups:
            self.account.grouped(columns)
        return in_form(columns, self.options.format)

    def mover(self) -> Mover | None:
        """Return what copies batches to the device; None if units stay in this process's memory."""
        return make_mover(self.options.device) if self.batched and self.options.device is not None else None

    def again(self, block: Block, runner: Runner) -> Any:
        """Return a unit that was computed again as the caller receives it; None if its only row was skipped."""
        mover = self.mover()
        if mover is None:
            return self.value(block, runner) if self.batched else next(block.rows(), None)
        return in_form(mover.end(mover.begin(self.columns(block, runner))), self.options.format)

    def columns(self, block: Block, runner: Runner) -> dict[str, Any]:
        """Return the columns of a batch in the loader's format. Updates no counters, so it may run in any thread."""
        if not runner.local:
            for step in self.finish:
                block = step.kernel(block, Env())
        return block.columns


def replaced(block: Block) -> bool:
    """Whether all rows of a block were skipped, and other rows replace them."""
    return bool(block.dead) and len(block.dead) == block.slots and all(w.refill for w in block.dead.values())
