"""The settings of a run: what a configuration file may say, with its defaults."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from cedar.trainers.common import config
from cedar.trainers.common.config import AdamWOptions, TransformerOptions, not_negative, positive
from cedar.trainers.moe.placement import Kind, Policy


@dataclass(frozen=True)
class ExpertOptions:
    """The mixture of experts in each block."""

    experts: int = 8  # how many
    slots: int = 8  # on each rank; a slot holds one replica of an expert
    hidden: int = 256  # units between the two products of an expert
    top_k: int = 1  # experts per token
    score: Literal["softmax", "sigmoid"] = "softmax"  # of the router
    renormalize_gates: bool = False  # divide the gates of a token by their sum
    shared: int = 0  # experts that every token goes to; they are not placed
    capacity: float = 1.0  # of a slot, in even shares of the copies of a step; 0 for no limit
    # which copies a full expert drops: those of the last ``position``, or of the least ``probability``
    drop: Literal["position", "probability"] = "position"
    aux_loss: float = 1e-2  # weight of the balancing loss
    z_loss: float = 0.0  # weight of the loss on large logits
    bias_rate: float = 0.0  # by which loss-free balancing moves a router's bias at each step; 0 leaves it out
    policy: Kind = "symi"  # when replicas follow popularity
    every: int = 10  # steps between two changes of the policy ``periodic``
    decay: float = 0.9  # of the policy ``ema``
    rule: Literal["paper", "minmax"] = "paper"  # that turns popularity into replicas, ``paper`` or ``minmax``
    rates: tuple[float, ...] = ()  # a factor on the learning rate of each expert; empty for 1
    decays: tuple[float, ...] = ()  # a factor on the weight decay of each expert; empty for 1

    def __post_init__(self) -> None:
        positive(self, "experts", "slots", "hidden", "top_k")
        if self.top_k > self.experts:
            raise ValueError(f"top_k is {self.top_k}: there are {self.experts} experts")
        not_negative(self, "shared", "capacity", "aux_loss", "z_loss", "bias_rate", "rates", "decays")
        for name in ("rates", "decays"):
            if getattr(self, name) and len(getattr(self, name)) != self.experts:
                raise ValueError(f"{name} has {len(getattr(self, name))} values for {self.experts} experts")
        self.follow  # noqa: B018 - a bad policy is refused here

    @property
    def follow(self) -> Policy:
        """The policy."""
        return Policy(self.policy, self.every, self.decay)


@dataclass(frozen=True)
class DataOptions(config.TextOptions):
    """Text, byte by byte, packed into rows."""

    accumulate: int = 1  # micro-batches that a step is cut into
    held_out: int = 64  # rows at the start of the text that only evaluation sees
    shuffle: bool = True  # rows within windows of the text; False keeps the order of the text

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "accumulate")
        not_negative(self, "held_out")
        if self.batch < self.accumulate:
            raise ValueError(f"a batch of {self.batch} rows cannot be cut into {self.accumulate} micro-batches")


class ModelOptions(TransformerOptions):
    """A GPT-style model; each block holds attention and experts."""


@dataclass(frozen=True)
class OptimizerOptions(AdamWOptions):
    """AdamW on static shards.

    Args:
        gradients: dtype in which they travel to the shards; float64 runs send float64.
        offload: master weights and moments stay in the memory of the host, and are updated there.
        skip_inactive: leave experts alone, moments included, that no token reached in a step.
        most_skips: steps in a row that may be skipped for gradients that are not finite.
    """

    gradients: Literal["float32", "bfloat16"] = "float32"
    offload: bool = False
    skip_inactive: bool = False
    most_skips: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        not_negative(self, "most_skips")


@dataclass(frozen=True)
class RunOptions(config.RunOptions):
    """One run; next to float64, master weights are that, too.

    Args:
        evaluate_every: steps; 0: only at the end.
        save_async: write checkpoints next to the training.
        sparse_window: steps of a sparse checkpoint; 0 for none.
    """

    folder: str = "runs/moe"
    steps: int = 200
    dtype: Literal["float32", "bfloat16", "float64"] = "bfloat16"
    save_every: int = 100
    evaluate_every: int = 100
    save_async: bool = True
    sparse_window: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "steps")
        not_negative(self, "evaluate_every", "sparse_window")


@dataclass(frozen=True)
class Options:
    """All of it: one table of the file each."""

    data: DataOptions
    model: ModelOptions = field(default_factory=ModelOptions)
    experts: ExpertOptions = field(default_factory=ExpertOptions)
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    run: RunOptions = field(default_factory=RunOptions)


_OF_A_RANK = ("data.paths", "run.folder", "run.device", "run.threads")


def settings(options: Options) -> dict[str, Any]:
    """All that the training follows from, by "table.name": without what each rank may have for itself.

    Examples:
        >>> settings(Options(DataOptions("text.txt", batch=4)))["data.batch"]
        4
    """
    named = {f"{table}.{name}": value for table, of in asdict(options).items() for name, value in of.items()}
    return {name: value for name, value in named.items() if name not in _OF_A_RANK}
