"""``ResilientPipeline``: train modules as the stages of a pipeline that survives the loss of workers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from operator import index
from typing import TYPE_CHECKING, Any

import torch

import cedar
from cedar.core.errors import CedarError
from cedar.trainers.common.compute import device_of
from cedar.trainers.common.config import AdamWOptions, positive
from cedar.trainers.resilient import data as sources
from cedar.trainers.resilient.footprint import caps
from cedar.trainers.resilient.member import Job
from cedar.trainers.resilient.model import AdamW, Engine, Loss, Optimizer
from cedar.trainers.resilient.options import PipelineOptions, RunOptions
from cedar.trainers.resilient.planner import Memory, Problem, normal, plan
from cedar.trainers.resilient.schedule import Mode
from cedar.trainers.resilient.sharing import Sharing, find_sharing

if TYPE_CHECKING:
    from torch import nn

    from cedar.trainers.common.files import OnMetrics
    from cedar.trainers.resilient.run import Record


@dataclass(frozen=True)
class Workers:
    """The processes that train together.

    Args:
        replicas: workers per stage.
        machines: number of machines to wait for; all but the first call ``ResilientPipeline.join``.
        listen: host and port to which other machines connect; port 0: any free port. The host must be one address of
            this machine: ``0.0.0.0`` and ``::`` are rejected.
    """

    replicas: int = 2
    machines: int = 1
    listen: tuple[str, int] = ("127.0.0.1", 0)

    def __post_init__(self) -> None:
        positive(self, "replicas", "machines")


@dataclass(frozen=True)
class ResilientPipeline:
    """A model in stages, with several workers per stage. If a worker dies, the others do its work within the same step.

    Args:
        stages: modules from a tensor to a tensor, or functions that return such modules. Every process that builds the
            pipeline must get the same modules with the same weights.
        loss: function of the last stage's output and the targets that returns a mean over rows.
        data: a function of the step that returns (inputs of the first stage, targets) for the whole batch; a function
            of ``(step, rows)`` that returns only the batch's rows in the ``range``; or a ``cedar.Pipeline`` of rows,
            with ``columns``. In the last two cases, a worker reads only the rows of its own replica.
        group: the number of workers and machines.
        batch: rows in a step, over all replicas.
        columns: names of the input and target columns of a cedar pipeline, or a function from a batch to both.
        optimizer: settings of AdamW, a ``TorchOptimizer``, or an object with the methods of ``Optimizer``, ``scale``
            and ``step``.
        tied: name of a parameter that the first and the last stage share; the same in both. Not needed if the modules
            share ``Parameter`` objects.
        pipeline: how a step is computed.
        run: steps, folder, seed, dtype, limits.
        named: whether parameters have the names of the unsplit model, so that any number of stages can load them.
        about: JSON that must be equal on all machines of a run.

    Examples:
        >>> from torch import nn
        >>> from torch.nn import functional
        >>> made = ResilientPipeline([nn.Linear(2, 4), nn.Linear(4, 1)], functional.mse_loss, print, batch=8)
        >>> made.rows  # of a micro-batch: 2 replicas of 4
        1
    """

    stages: Sequence[nn.Module | Callable[[], nn.Module]]
    loss: Loss
    data: Callable[..., sources.Pair] | cedar.Pipeline | Callable[[], cedar.Pipeline]
    group: Workers = field(default_factory=Workers)
    batch: int = field(kw_only=True)
    columns: tuple[str, str] | sources.Split | None = field(default=None, kw_only=True)
    optimizer: AdamWOptions | Optimizer = field(default_factory=AdamWOptions, kw_only=True)
    tied: str | None = field(default=None, kw_only=True)
    pipeline: PipelineOptions = field(default_factory=PipelineOptions, kw_only=True)
    run: RunOptions = field(default_factory=RunOptions, kw_only=True)
    named: bool = field(default=False, kw_only=True)
    about: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def train(
        self, *, resume: bool = False, chaos: str = "", quiet: bool = False, on_metrics: OnMetrics | None = None
    ) -> Record:
        """Supervise the workers of this machine until the run ends; see ``cedar.trainers.resilient.run.lead``."""
        from cedar.trainers.resilient.chaos import parse
        from cedar.trainers.resilient.run import lead

        mishaps = parse(chaos, len(self.stages) * self.group.replicas, self.run.steps)
        return lead(self, mishaps=mishaps, resume=resume, quiet=quiet, on_metrics=on_metrics)

    def join(self, host: str, port: int) -> None:
        """Supervise this machine's workers in a run that another machine leads, until the run ends."""
        from cedar.trainers.resilient.run import join

        join(self, host, port)

    # ---- what workers need -------------------------------------------------------------------------------------------

    @property
    def rows(self) -> int:
        """Return the number of rows in a micro-batch.

        Raises:
            CedarError: the batch cannot be split evenly.
        """
        count = self.group.replicas * self.pipeline.micro_batches
        if not self.stages or self.batch < 1 or self.batch % count:
            raise CedarError(
                f"a batch of {self.batch} rows cannot be cut into"
                f" {self.group.replicas} x {self.pipeline.micro_batches} micro-batches",
                fix=f"set the batch (data.batch) to a multiple of {count}",
            )
        return self.batch // count

    @property
    def description(self) -> dict[str, Any]:
        """Return, as JSON, the settings that must be equal on all machines of a run."""
        settings = {"run": asdict(self.run), "pipeline": asdict(self.pipeline), "batch": self.batch}
        grid = {"stages": len(self.stages), "replicas": self.group.replicas}
        chosen = {"mode": self.mode[0], "memory": self.memory, "shared": asdict(self.shared)}
        named = settings | grid | chosen | {"about": dict(self.about)}
        plain: dict[str, Any] = json.loads(json.dumps(named, default=index))  # numpy's integers become int
        return plain

    @property
    def replays(self) -> bool:
        """Whether workers log messages until a checkpoint covers them. Without checkpoints, logs would grow forever."""
        return self.pipeline.replay and (self.run.save_every > 0 or self.run.sparse_window != 0)

    @cached_property
    def shared(self) -> Sharing:
        """Return the parameters that stages share.

        Raises:
            CedarError: the stages cannot be trained this way.
        """
        return find_sharing(self)

    @cached_property
    def memory(self) -> Memory:
        """Return how many activations a worker may keep; a size in bytes is converted to a number for each stage."""
        return caps(self, self.pipeline.bytes) if self.pipeline.bytes else self.pipeline.cap

    @cached_property
    def mode(self) -> tuple[Mode, str]:
        """Return the mode, ``sync`` or ``staggered``, and why it was chosen."""
        asked, chosen = self.pipeline.mode, self.optimizer
        if asked != "auto":
            return asked, "as asked"
        if not isinstance(chosen, AdamWOptions) or chosen.clip:
            return "sync", "with clipping, many steps would have to be retaken"
        whole = Problem(
            len(self.stages), self.group.replicas, self.pipeline.micro_batches, memory=self.memory,
            tied=self.shared.stages,
        )  # fmt: skip
        spreads = [replace(whole, dead=normal(whole, n)) for n in range(1 + (self.group.replicas > 1))]
        for failures, own in enumerate(spreads):
            together, alone = plan(replace(own, mode="sync")).period, plan(own).period
            if alone < together:
                return "staggered", f"with {failures} failures a step takes {alone:g} slots instead of {together:g}"
        return "sync", "staggered steps would not be shorter"

    @property
    def job(self) -> Job:
        """Return the settings that all workers share."""
        run, how = self.run, self.pipeline
        return Job(
            len(self.stages), self.group.replicas, how.micro_batches, run.steps, self.mode[0], how.reduction,
            self.memory, self.shared.stages, how.logs, self.replays, run.patience, run.pace,
        )  # fmt: skip

    @property
    def problem(self) -> Problem:
        """Return the planning problem with all workers alive."""
        return self.job.problem(frozenset())

    @property
    def rule(self) -> Optimizer:
        """Return the optimizer."""
        chosen = self.optimizer
        return AdamW(chosen, self.run.steps) if isinstance(chosen, AdamWOptions) else chosen

    def module(self, stage: int) -> nn.Module:
        """Return the module of a stage; build it if the stage is a function."""
        module: Any = self.stages[stage]
        return module if hasattr(module, "named_parameters") else module()  # type: ignore[no-any-return]

    def engine(self, stage: int, device: torch.device | None = None) -> Engine:
        """Make the engine of a stage. ``device``: the device to compute on; None: ``run.device``."""
        return Engine(
            self.module(stage), stage, len(self.stages), self.loss, tied=self.shared.names.get(stage),
            prefix="" if self.named else f"{stage}.", seed=self.run.seed,
            share=1 / (self.group.replicas * self.pipeline.micro_batches), dtype=getattr(torch, self.run.dtype),
            device=device or device_of(self.run.device),
        )  # fmt: skip

    def open(self, lanes: int = 0) -> sources.MicroBatches:
        """Open the data at the first step. ``lanes``: number of loader ranks when the run began; 0: one per replica."""
        data: Any = self.data
        if self.columns is not None and not isinstance(data, cedar.Pipeline):
            data = data()
        if isinstance(data, cedar.Pipeline):
            columns = self.columns
            if columns is None:
                raise CedarError(
                    "data is a cedar.Pipeline, but columns is not set", fix='give columns, such as ("image", "label")'
                )
            split = columns if callable(columns) else lambda batch: (batch[columns[0]], batch[columns[1]])
            source: sources.Source = sources.LoaderSource(
                data, self.batch, split, self.run.seed, lanes or self.group.replicas
            )
        else:
            source = sources.Source(data)
        return sources.MicroBatches(source, self.pipeline.micro_batches, self.rows, self.batch)
