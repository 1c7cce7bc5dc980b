"""Everything that can be set for a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cedar.core.errors import PipelineError
from cedar.core.sizes import parse_bytes
from cedar.trainers.common import config
from cedar.trainers.common.config import AdamWOptions, TransformerOptions, not_negative, positive
from cedar.trainers.resilient.planner import Memory


@dataclass(frozen=True)
class DataOptions(config.TextOptions):
    """Text, as bytes."""

    length: int = 64
    batch: int = 24


@dataclass(frozen=True)
class ModelOptions(TransformerOptions):
    """A GPT-style model, cut into stages."""

    layers: int = 6  # blocks, cut into stages
    tied: bool = True  # the head uses the embeddings of the tokens


@dataclass(frozen=True)
class PipelineOptions:
    """How a step is worked.

    Args:
        micro_batches: of each pipeline in one step.
        mode: ``sync``: no stage steps before all can; ``staggered``: each when it is ready; ``auto``: staggered where
            nothing is clipped and a plan gets shorter by it.
        reduction: ``exact``: gradients are added in a fixed order, bitwise the same no matter which worker computed
            them; ``fast``.
        memory: activations that a worker may keep: ``"1f1b"``, ``"stage 1f1b"``, a number, a size such as ``"2GiB"``
            (what a stage keeps of a micro-batch is measured at the start), or ``"all"``.
        logs: keep finished work of a step until it commits, so that a failure costs only what the dead worker had.
        replay: keep what crossed boundaries of stages until a checkpoint holds it, in the memory of the host, so that
            a stage that has lost all its workers goes back to the checkpoint alone.
        calibrate: make plans again for what instructions were measured to take.
        schedule: a CSV of torch.distributed.pipelining to work by while no worker is dead; empty: a plan of ours.
        exact: seconds that CP-SAT may take for each plan that is made ahead; 0: list scheduling alone.
        moves: let workers take places in other stages where that pays.
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
        """As the planner takes it; of a size, see ``footprint.caps``."""
        return None if self.memory == "all" else self.memory  # type: ignore[return-value]

    @property
    def bytes(self) -> int:
        """The size that ``memory`` is; 0 if it is none."""
        if not isinstance(self.memory, str) or self.memory in {"1f1b", "stage 1f1b", "all"}:
            return 0
        try:
            return parse_bytes(self.memory, "memory")
        except PipelineError as error:
            words = "a number, a size like '2GiB', '1f1b', 'stage 1f1b' or 'all'"
            raise ValueError(f"memory is {self.memory!r}: give {words}") from error

    def __post_init__(self) -> None:
        positive(self, "micro_batches")
        not_negative(self, "exact")
        self.bytes  # noqa: B018 - a bad size is refused here


@dataclass(frozen=True)
class OptimizerOptions(AdamWOptions):
    """AdamW; where ``clip`` bites at most steps, use ``sync``."""

    warmup: int = 10


@dataclass(frozen=True)
class RunOptions(config.RunOptions):
    """One run; the report and the plot go into its folder, too. On ``cuda`` messages take the way through the memory of
    the host.

    Args:
        heartbeat: seconds after which a worker without sign or progress counts as hung.
        silence: seconds after which a supervisor without a sign counts as gone.
        patience: seconds after which any wait is given up.
        pace: seconds that each F, B_INPUT and B_WEIGHT takes at least: a rehearsal of other hardware.
        sparse_window: steps of a sparse checkpoint, each of which saves a part of every stage; 0: none; ``"auto"``: as
            few as take no longer to write than the steps do, as both were measured.
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
    """All of it: one table of the file each."""

    data: DataOptions
    model: ModelOptions = field(default_factory=ModelOptions)
    pipeline: PipelineOptions = field(default_factory=PipelineOptions)
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    run: RunOptions = field(default_factory=RunOptions)
