"""Everything that can be set for a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

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
class ModelOptions:
    """A GPT-style model.

    Args:
        layers: blocks, cut into stages.
        width: of a token inside the model.
        heads: of attention.
        dropout: share of values that a block's outputs lose while training.
        tied: the head uses the embeddings of the tokens.
    """

    layers: int = 6
    width: int = 64
    heads: int = 4
    dropout: float = 0.0
    tied: bool = True

    def __post_init__(self) -> None:
        if self.layers < 1 or self.heads < 1 or self.width < 1 or self.width % self.heads:
            raise ValueError(f"a width of {self.width} cannot be cut into {self.heads} heads of {self.layers} layers")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}: give 0 or more, and less than 1")


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
        if self.micro_batches < 1:
            raise ValueError(f"micro_batches is {self.micro_batches}: give 1 or more")
        if isinstance(self.memory, str) and self.memory not in {"1f1b", "stage 1f1b", "all"}:
            raise ValueError(f"memory is {self.memory!r}: give a number, '1f1b', 'stage 1f1b' or 'all'")


@dataclass(frozen=True)
class OptimizerOptions:
    """AdamW.

    Args:
        rate: the highest learning rate.
        least: the last learning rate of the cosine.
        warmup: steps of linear growth.
        schedule: ``cosine`` or ``constant``.
        betas: of the two moments.
        eps: added to the root of the second moment.
        decay: of weights with two or more dimensions.
        clip: the largest norm of all gradients together; 0 for no limit. Where it bites at most steps, use ``sync``.
    """

    rate: float = 1e-3
    least: float = 1e-4
    warmup: int = 10
    schedule: Literal["cosine", "constant"] = "cosine"
    betas: tuple[float, ...] = (0.9, 0.95)
    eps: float = 1e-8
    decay: float = 0.01
    clip: float = 1.0

    def __post_init__(self) -> None:
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas are {self.betas}: give two numbers of 0 or more, less than 1")


@dataclass(frozen=True)
class RunOptions:
    """One run.

    Args:
        folder: checkpoints, report and plot go here.
        steps: how many.
        seed: of weights, data and dropout.
        dtype: of weights and activations; master weights are float32.
        device: ``cpu`` or ``cuda``.
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
    dtype: Literal["bfloat16", "float32"] = "float32"
    device: Literal["cpu", "cuda"] = "cpu"
    save_every: int = 50
    keep: int = 2
    heartbeat: float = 5.0
    silence: float = 10.0
    patience: float = 600.0
    pace: float = 0.0
    threads: int = 1

    def __post_init__(self) -> None:
        for name in ("steps", "keep", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: give 1 or more")
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

    @property
    def replays(self) -> bool:
        """Whether logs are kept until a checkpoint: without checkpoints they would grow for ever."""
        return self.pipeline.replay and self.run.save_every > 0
