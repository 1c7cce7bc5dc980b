"""The arguments of ``Pipeline.loader``, and their checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from cedar.core.errors import PipelineError, Site, Skip
from cedar.core.limits import as_int
from cedar.core.remote import is_remote, local_path
from cedar.engine.binding import Binding
from cedar.engine.metrics import Metrics
from cedar.engine.nodes import last_mode, over_ranks, sizes_per_unit
from cedar.engine.notes import counted_if_read
from cedar.engine.plan_control import Plans
from cedar.engine.runner import Runner
from cedar.executors.choose import executor_after_fork, names_cluster
from cedar.executors.recovery.task import Deaths
from cedar.executors.recovery.waiting import Patience
from cedar.operators.base import BlockKernel
from cedar.plan.data import Plan
from cedar.plan.graph import Node

if TYPE_CHECKING:
    from cedar.optimizer.planner import AutoPlanner


class Observer:
    """Observes the progress of a run.

    Args:
        position: returns (units delivered in this epoch, total or None); set by the loader's creator.
    """

    position: Callable[[], tuple[int, int | None]] | None = None

    def begin(self, metrics: Metrics) -> None:
        """Called when a loader is created; ``metrics`` are its counters."""

    def update(self, metrics: Metrics) -> None:
        """Called when rows or a batch are about to be delivered."""

    def ended(self) -> None:
        """Called when an iteration has ended, for any reason."""

    def close(self) -> None:
        """Called when the loader is closed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@dataclass(frozen=True)
class Options:
    """The arguments of ``Pipeline.loader``, and internal settings."""

    executor: str | Executor = "auto"
    workers: int | None = None
    seed: int = 0
    epoch: int = 0
    rank: int | None = None
    world: int | None = None
    subgroup: bool = False
    split_batches: bool = False
    steps: int | None = None
    deal: str = "auto"
    counts: str = "auto"
    agree: Any = None  # how ranks communicate: a folder, a store of torch.distributed, or a service
    timeout: float | None = None
    order: str = "exact"  # or "any"
    format: str = "numpy"
    device: Any = None
    on_error: Skip | None = None
    planner: AutoPlanner | None = None
    plan: Plan | None = None
    plan_for: Callable[[Node], AutoPlanner | None] | None = None  # creates the planner for a root with other snapshots
    explainer: Callable[[Node, Plans], str] | None = None
    as_blocks: bool = False  # deliver blocks instead of rows or batches, for sinks
    encode: BlockKernel | None = None  # kernel that tasks run on each batch, and whose result is delivered
    observer: Observer | None = None
    words: Callable[[Node, Mapping[int, str]], Mapping[int, str]] | None = None  # returns labels for display

    def runner(self, deaths: Deaths, **more: Any) -> Runner:
        """Create a runner of tasks on the executor that the user chose."""
        return Runner(*executor_after_fork(self.executor, self.workers), deaths, Patience(self.timeout), **more)


_CHOICES = {
    "deal": {"auto": "lets ranks share the work", "global": "lets each rank compute the epoch and keep its share"},
    "counts": {"auto": "takes row counts from metadata", "exact": "also reads the columns of filters, and counts"},
    "order": {"exact": "delivers rows in order", "any": "delivers them as they finish"},
}
_MIN = {"workers": 1, "steps": 1, "seed": None, "epoch": 0}  # the minimum of integers; only the first two may be None


def checked(options: Options, site: Site | None) -> Options:
    """Return validated options, with integer arguments converted to int.

    Raises:
        PipelineError: an option is invalid; the error names ``site``.
    """
    options = replace(options, **{name: as_int(getattr(options, name)) for name in _MIN})
    for name, least in _MIN.items():
        value = getattr(options, name)
        if value is None and least == 1:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
            range_text = "" if least is None else f", at least {least}"
            fix = 'omit it, or executor="inline" runs everything in this thread' if name == "workers" else None
            raise PipelineError(f"{name}={value!r}: needs an integer{range_text}", site=site, fix=fix)
    seconds = options.timeout  # None and 0 mean no limit, as in torch
    if seconds is not None:
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < math.inf:
            problem = f"timeout={seconds!r}: must be seconds, at least 0; 0 and None mean no limit"
            raise PipelineError(problem, site=site)
        options = replace(options, timeout=float(seconds) or None)
    for name, choices in _CHOICES.items():
        if (value := getattr(options, name)) not in tuple(choices):
            effects = ", ".join(f'"{choice}" {effect}' for choice, effect in choices.items())
            raise PipelineError(f"{name}={value!r} is not known", site=site, fix=effects)
    options = replace(options, agree=_meeting_place(options.agree, site))
    if options.on_error is not None and not isinstance(options.on_error, Skip):
        raise PipelineError(f"on_error={options.on_error!r}: must be None or cedar.Skip(...)", site=site)
    return options


def _meeting_place(agree: Any, site: Site | None) -> Any:
    """Return ``agree``, with a folder as an absolute path."""
    if agree is None or names_cluster(agree) or hasattr(agree, "compare_set"):
        return agree
    if isinstance(agree, str) and not is_remote(agree):
        return local_path(agree)
    raise PipelineError(
        f"agree={agree!r:.80}: ranks cannot communicate there",
        site=site,
        fix="give a folder that all ranks share, a service's address, or a store of torch.distributed",
    )


def check_fits(binding: Binding, options: Options, world: int, site: Site | None) -> None:
    """Raise an error for options that cannot be combined with the pipeline.

    Raises:
        PipelineError: names the user's line of the operator or of the loader.
    """
    if options.split_batches:
        check_slices(binding, world, site)
    if (moving := over_ranks(binding.nodes)) is not None:
        label = binding.labels[id(moving)]
        if options.split_batches:
            raise PipelineError(
                f"{label} moves rows between batches, but with split_batches=True ranks have slices of one batch",
                site=moving.site,
                fix="omit split_batches, and set the size of batch() to the rows of one rank",
            )
        if options.steps is not None and last_mode(binding.root) == "keep":
            raise PipelineError(
                f'{label}: with steps= and last="keep" some ranks begin the next epoch before others',
                site=moving.site,
                fix='use last="drop" or "pad"',
            )
    if options.counts == "exact" and (culprit := counted_if_read(binding)[1]) is not None:
        node, why = culprit
        raise PipelineError(
            f'counts="exact": {binding.labels[id(node)]} leaves the number of rows unknown: {why}',
            site=node.site or site,
            fix="only filters by expressions or named columns that directly follow read_parquet, read_files, "
            "read_vortex or read_arrow can be counted; "
            'counts="auto" needs no counts',
        )


def check_slices(binding: Binding, world: int, site: Site | None) -> None:
    if not binding.root.batched:
        raise PipelineError("split_batches=True needs batch() in the pipeline", site=site)
    for size in sizes_per_unit(binding.root):
        if not size % world:
            continue
        raise PipelineError(
            f"split_batches=True: a batch of {size} rows cannot be cut evenly for {world} ranks",
            site=site,
            fix=f"use a batch size that {world} divides",
        )
