"""The components of a loader, and the executor of its tasks."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Self

from cedar.cache.cached import Store
from cedar.core.errors import PipelineError, Site, user_site
from cedar.core.numeric import NumericEnvironment
from cedar.core.ranks import find_rank
from cedar.engine.account import DeliveryCounter
from cedar.engine.agree import Agreement, meeting_place
from cedar.engine.binding import Binding
from cedar.engine.dedup import Marked
from cedar.engine.delivery.counting import Counting
from cedar.engine.delivery.device import check_device
from cedar.engine.delivery.device_prefetch import AheadEpoch
from cedar.engine.delivery.drop_in import DataLoaderLike
from cedar.engine.delivery.formats import Finish, check_format
from cedar.engine.delivery.locate import Locator
from cedar.engine.delivery.options import Options, check_fits, checked
from cedar.engine.delivery.replay import Replays
from cedar.engine.delivery.state import Identity
from cedar.engine.delivery.units import Units
from cedar.engine.epoch import DataEpoch, Job
from cedar.engine.memory import MemoryBound
from cedar.engine.metrics import Metrics
from cedar.engine.nodes import rows_per_unit
from cedar.engine.plan_control import Plans
from cedar.engine.runner import Runner, Runners, UntakenResults
from cedar.executors.choose import available_cpus, check_executor, executor_after_fork
from cedar.executors.isolated import isolated_calls_for
from cedar.executors.recovery import Patience
from cedar.operators.kernel import Env, Instances
from cedar.plan.data import Plan
from cedar.plan.graph import Node, digest
from cedar.tasks.chain import KernelStep


class Parts(DataLoaderLike):
    """Creates and owns the components of a loader.

    Args:
        root: the last node of the pipeline.
        options: the arguments that the user passed.
    """

    url: str | None = None  # address of the status page, if there is one

    def __init__(self, root: Node, options: Options) -> None:
        site = user_site()
        check_executor(options.executor)
        check_format(options.format, site)
        options = checked(options, site)
        check_device(options.device, options.format, site)
        self._options, self._site, self._pid = options, site, os.getpid()
        self.rank = find_rank(options.rank, options.world, options.subgroup, site)
        instances = Instances()
        self._metrics = Metrics()
        call_in_subprocess = isolated_calls_for(
            options.executor, options.workers, self._metrics.deaths, Patience(options.timeout)
        )
        self._saved_numeric: NumericEnvironment | None = options.plan.numeric if options.plan is not None else None
        env = Env(options.seed, options.epoch, instances, numeric=self._environment(), unsteady={})
        self._counting = Counting(options)
        counts = self._counting if options.counts == "exact" else None
        binding = self._binding = Binding(root, options.on_error, env, call_in_subprocess, counts)
        binding.any_order = options.order == "any"
        self._untaken = UntakenResults() if binding.any_order else None
        self._batched = binding.batched[id(root)]
        check_fits(binding, options, self.rank.world, site)
        self._metrics.labels = {binding.index[id(n)]: binding.labels[id(n)] for n in binding.nodes}
        self._metrics.words = functools.cache(functools.partial(_labels, binding, options.words))
        finish: tuple[KernelStep, ...] = ()
        if options.encode is not None:
            finish = (KernelStep(options.encode, (), "encode"),)
        elif self._batched and not options.as_blocks:
            last = Finish(options.format, Marked(binding) if binding.marks else None)
            finish = (KernelStep(last, (), f"format={options.format!r}"),)
        plan = options.plan or (options.planner.begin() if options.planner else Plan.as_written(root))
        self._plans = Plans(options.planner, plan, binding, self._metrics, self.rank.world, Patience(options.timeout))
        store = Store.within(plan.cache_bytes, plan.memory_bytes, options.workers or available_cpus())
        place = functools.partial(meeting_place, options.agree, options.executor)
        self._job = Job(
            binding, self.rank, options.seed, options.split_batches, finish, instances, store,
            self._metrics, self._plans, options.deal, options.steps, place, encodes=options.encode is not None,
        )  # fmt: skip
        self._counting.job = self._job
        self._cached_identity: Identity | None = None
        self._watch(plan.memory_bytes)
        observe = None if options.observer is None else options.observer.update
        self._account = DeliveryCounter(binding, self._metrics, self.rank.rank, observe, site)
        rows = rows_per_unit(root) if self._batched else 1
        self._units = Units(self._account, options, self._batched, finish, rows, instances.leave)
        self._generation, self._executor_name, self._workers, self._warned = 0, "none yet", 0, False
        self._replays = Replays(self._job, options, site)
        self._locator: Locator | None = None
        self._runner: Runner | None = None
        self._deliverer: DataEpoch | AheadEpoch | None = None
        self._agreed: Agreement | None = None

    def _watch(self, memory: int | None) -> None:
        """Record results that are not delivered yet, if an observer watches the run or its memory is limited."""
        observer = self._options.observer
        if observer is not None or memory is not None:
            self._untaken = self._untaken or UntakenResults()
            self._metrics.queued = self._untaken.nbytes
        if observer is not None:
            observer.begin(self._metrics)
        if memory is not None:
            self._metrics.bound = MemoryBound(memory, self._job.store.memory, self._metrics.queued)

    def _identity(self) -> Identity:
        if self._cached_identity is None:
            options = self._options
            binding = self._binding
            settled = any(map(binding.listed.filters, binding.sources))
            counted = [rows for source in binding.sources if (rows := binding.listed.rows(source)) is not None]
            counts = digest([each.rows.tolist() for each in counted]) if counted else None
            self._cached_identity = Identity.of(
                binding.root, options.seed, options.split_batches, options.steps, settled, counts,
                binding.any_order,
            )  # fmt: skip
        return self._cached_identity

    def _environment(self) -> NumericEnvironment:
        """Return the numeric environment for a new run: that of the loaded plan or state if any, else the caller's."""
        caller = NumericEnvironment.of_caller()
        return caller if self._saved_numeric is None else self._saved_numeric.again(caller)

    def _check_exact(self, method: str, site: Site | None) -> None:
        if self._binding.any_order:
            raise PipelineError(
                f"{method} with order={self._options.order!r}: the order of rows is not known in advance",
                site=site,
                fix='use order="exact"',
            )

    def _new_runner(self) -> tuple[Runner, Runners]:
        """Create the runner of an iteration, and the runners for other executors that its plans may use."""
        runner = self._runner = Runner(
            *executor_after_fork(self._options.executor, self._options.workers),
            self._metrics.deaths,
            Patience(self._options.timeout),
            watched=True,
            untaken=self._untaken,
            bound=self._metrics.bound,
            alone=self._binding.any_order,
        )
        others = runner.others = Runners(runner)
        self._executor_name, self._workers = runner.name, runner.workers
        return runner, others

    def _stop(self) -> None:
        """End an iteration, even if the caller still references it, for example in the traceback of an error."""
        self._job.instances.end()
        if self._agreed is not None:
            self._agreed.stop()
        if (stop := getattr(self._deliverer, "stop", None)) is not None:  # no isinstance: classes may be gone at exit
            stop()
        if self._runner is None:
            return
        (self._runner.others or self._runner).close()
        self._plans.close()
        self._runner = None
        if self._options.observer is not None:
            self._options.observer.ended()

    def close(self) -> None:
        """Stop tasks and threads. The loader can still return its state and report."""
        self._generation += 1
        if os.getpid() != self._pid:  # in a forked child, tasks and threads belong to the parent
            return
        self._replays.close()
        if self._locator is not None:
            self._locator.close()
        self._stop()
        if self._options.observer is not None:
            self._options.observer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _labels(binding: Binding, words: Callable[[Node, Mapping[int, str]], Mapping[int, str]] | None) -> dict[int, str]:
    """Return the labels of operators for display, by ordinal."""
    labels = binding.labels if words is None else words(binding.root, binding.labels)
    return {binding.index[id(n)]: labels[id(n)] for n in binding.nodes}
