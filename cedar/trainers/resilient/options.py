"""All settings of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cedar.core.errors import PipelineError
from cedar.core.limits import parse_bytes
from cedar.trainers.common import config
from cedar.trainers.common.config import AdamWOptions, TransformerOptions, check_choices, not_negative, positive
from cedar.trainers.resilient.planner import Memory


@dataclass(frozen=True)
class DataOptions(config.TextOptions):
    """The text to train on; each byte is a token."""

    length: int = 64
    batch: int = 24


@dataclass(frozen=True)
class ModelOptions(TransformerOptions):
    """A GPT-style model that is split into stages."""

    layers: int = 6  # number of blocks
    tied: bool = True  # the output layer uses the token embeddings


@dataclass(frozen=True)
class PipelineOptions:
    """How a pipeline computes a step.

    Args:
        micro_batches: micro-batches per pipeline and step.
        mode: ``sync``: all stages step together; ``staggered``: each stage steps when it is ready; ``auto``: staggered
            if gradients are not clipped and a plan is shorter in this mode.
        reduction: ``exact``: gradients are added in a fixed order, so that the sum is bitwise the same no matter which
            worker computed them; ``fast``: each worker first adds up its own.
        memory: how many activations a worker may keep: ``"1f1b"``, ``"stage 1f1b"``, a number, ``"all"``, or a size
            such as ``"2GiB"``, which is divided by the measured memory of a micro-batch.
        logs: keep a step's finished work until the step commits, so that a failure only loses the dead worker's work.
        replay: log messages between stages in host memory until a checkpoint covers them, so that a stage that has lost
            all its workers can go back to the checkpoint while the other stages keep their state.
        calibrate: make new plans from measured instruction times.
        schedule: a CSV file of torch.distributed.pipelining, for steps without dead workers; empty: cedar's own plan.
        exact: seconds that CP-SAT may spend on each precomputed plan; 0: list scheduling only.
        moves: move workers to other stages if that saves time.
    """

    micro_batches: int = 4
    mode: Literal["auto", "sync", "staggered"] = "auto"
    reduction: Literal["exact", "fast"] = "exact"
    memory: str | int = "1f1b"
    logs: bool = True
    replay: bool = True
    calibrate: bool = True
    schedule: str = ""
    exact: float = 0.0
    moves: bool = True

    @property
    def cap(self) -> Memory:
        """Return ``memory`` as ``Problem`` expects it. Not for sizes in bytes, which ``footprint.caps`` converts."""
        return None if self.memory == "all" else self.memory  # type: ignore[return-value]

    @property
    def bytes(self) -> int:
        """Return ``memory`` in bytes; 0 if it is not a size."""
        if not isinstance(self.memory, str) or self.memory in {"1f1b", "stage 1f1b", "all"}:
            return 0
        try:
            return parse_bytes(self.memory, "memory")
        except PipelineError as error:
            words = "a number, a size like '2GiB', '1f1b', 'stage 1f1b' or 'all'"
            raise ValueError(f"memory is {self.memory!r}: give {words}") from error

    def __post_init__(self) -> None:
        check_choices(self)
        positive(self, "micro_batches")
        not_negative(self, "exact")
        self.bytes  # noqa: B018 - raises if the size is invalid


@dataclass(frozen=True)
class OptimizerOptions(AdamWOptions):
    """Settings of AdamW. If most steps are clipped, use ``sync`` mode."""

    warmup: int = 10


@dataclass(frozen=True)
class RunOptions(config.RunOptions):
    """Settings of a run. Its folder also gets the report and the plot. On ``cuda``, messages between workers go through
    host memory.

    Args:
        heartbeat: seconds without heartbeat or progress after which a worker is considered hung.
        silence: seconds without a heartbeat after which a supervisor is considered dead.
        patience: seconds after which a wait fails. Workers wait without this limit to join a run, and while a stage
            computes steps again from logged messages.
        pace: min seconds for each F, B_INPUT and B_WEIGHT, to imitate other hardware.
        sparse_window: steps per sparse checkpoint, each of which saves a part of every stage; 0: no sparse checkpoints;
            ``"auto"``: the smallest number that the storage can keep up with, from measurements.
    """

    folder: str = "runs/resilient"
    steps: int = 100
    device: str = "cpu"
    save_every: int = 50
    threads: int = 1
    heartbeat: float = 5.0
    silence: float = 10.0
    patience: float = 600.0
    pace: float = 0.0
    sparse_window: int | Literal["auto"] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "steps", "threads")
        not_negative(self, "pace")
        if self.sparse_window != "auto":
            not_negative(self, "sparse_window")
        if self.serve:
            raise ValueError("serve: this trainer reads its data step by step, again where it must; it is not served")
        for name in ("heartbeat", "silence", "patience"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}: give seconds")


@dataclass(frozen=True)
class Options:
    """All settings; each field is a table of the TOML file."""

    data: DataOptions
    model: ModelOptions = field(default_factory=ModelOptions)
    pipeline: PipelineOptions = field(default_factory=PipelineOptions)
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    run: RunOptions = field(default_factory=RunOptions)
