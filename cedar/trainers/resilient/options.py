"""Everything that can be set for a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cedar.trainers.common.options import AdamWOptions, TransformerOptions, positive
from cedar.trainers.resilient.planner import Memory


@dataclass(frozen=True)
class DataOptions:
    """Text, as bytes.

    Args:
        paths: text files: a path, a glob or a URL.
        length: tokens that a row trains on.
        batch: rows of a step, over all pipelines.
    """

    paths: str | tuple[str, ...]
    length: int = 64
    batch: int = 24


@dataclass(frozen=True)
class ModelOptions(TransformerOptions):
    """A GPT-style model, cut into stages.

    Args:
        layers: blocks, cut into stages.
        tied: the head uses the embeddings of the tokens.
    """

    layers: int = 6
    tied: bool = True


@dataclass(frozen=True)
class PipelineOptions:
    """How a step is worked.

    Args:
        micro_batches: of each pipeline in one step.
        mode: ``sync``: no stage steps before all can; ``staggered``: each when it is ready.
        reduction: ``exact``: gradients are added in a fixed order, bitwise the same whoever worked them; ``fast``.
        memory: activations that a worker may keep: ``"1f1b"``, ``"stage 1f1b"``, a number, or ``"all"``.
        logs: keep finished work of a step until it commits, so that a failure costs only what the dead worker had.
        replay: keep what crossed boundaries of stages until a checkpoint holds it, in the memory of the host, so that
            a stage that has lost all its workers goes back to the checkpoint alone.
        calibrate: make plans again for what instructions were measured to take.
        moves: let workers take places in other stages where that pays.
    """

    micro_batches: int = 4
    mode: Literal["sync", "staggered"] = "sync"
    reduction: Literal["exact", "fast"] = "exact"
    memory: str | int = "1f1b"
    logs: bool = True
    replay: bool = True
    calibrate: bool = True
    moves: bool = True

    @property
    def cap(self) -> Memory:
        """As the planner takes it."""
        return None if self.memory == "all" else self.memory  # type: ignore[return-value]

    def __post_init__(self) -> None:
        positive(self, "micro_batches")
        if isinstance(self.memory, str) and self.memory not in {"1f1b", "stage 1f1b", "all"}:
            raise ValueError(f"memory is {self.memory!r}: give a number, '1f1b', 'stage 1f1b' or 'all'")


@dataclass(frozen=True)
class OptimizerOptions(AdamWOptions):
    """AdamW; where ``clip`` bites at most steps, use ``sync``."""

    warmup: int = 10


@dataclass(frozen=True)
class RunOptions:
    """One run.

    Args:
        folder: checkpoints, report and plot go here.
        steps: how many.
        seed: of weights, data and dropout.
        dtype: of weights and activations; master weights are float32, beside float64 that, too.
        device: ``cpu`` or ``cuda``, where messages take the way through the memory of the host.
        save_every: steps between checkpoints; 0: only at the end.
        keep: checkpoints to keep.
        heartbeat: seconds after which a worker without sign or progress counts as hung.
        silence: seconds after which a supervisor without a sign counts as gone.
        patience: seconds after which any wait is given up.
        pace: seconds that each F, B_INPUT and B_WEIGHT takes at least: a rehearsal of other hardware.
        threads: of torch in each worker.
    """

    folder: str = "runs/resilient"
    steps: int = 100
    seed: int = 0
    dtype: Literal["bfloat16", "float32", "float64"] = "float32"
    device: str = "cpu"
    save_every: int = 50
    keep: int = 2
    heartbeat: float = 5.0
    silence: float = 10.0
    patience: float = 600.0
    pace: float = 0.0
    threads: int = 1

    def __post_init__(self) -> None:
        positive(self, "steps", "keep", "threads")
        for name in ("heartbeat", "silence", "patience"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}: give seconds")


@dataclass(frozen=True)
class Options:
    """All of it: one table of the file each."""

    data: DataOptions
    model: ModelOptions = field(default_factory=ModelOptions)
    pipeline: PipelineOptions = field(default_factory=PipelineOptions)
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    run: RunOptions = field(default_factory=RunOptions)
