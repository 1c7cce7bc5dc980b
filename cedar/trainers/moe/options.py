"""The settings that a MoE configuration file may contain, with their defaults."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from cedar.trainers.common import config
from cedar.trainers.common.config import AdamWOptions, TransformerOptions, check_choices, not_negative, positive
from cedar.trainers.moe.placement import Kind, Policy


@dataclass(frozen=True)
class ExpertOptions:
    """Options of the mixture of experts in each block."""

    experts: int = 8  # number of experts
    slots: int = 8  # slots per rank; a slot holds one replica of an expert
    hidden: int = 256  # units between the two products of an expert
    top_k: int = 1  # experts per token
    score: Literal["softmax", "sigmoid"] = "softmax"  # score function of the router
    renormalize_gates: bool = False  # whether to divide a token's gates by their sum
    shared: int = 0  # number of experts that process every token; they are not placed
    capacity: float = 1.0  # limit of a slot relative to an even share of a step's copies; 0 for no limit
    # which copies a full expert drops: by ``position``, the last; by ``probability``, the least probable
    drop: Literal["position", "probability"] = "position"
    aux_loss: float = 1e-2  # weight of the balancing loss
    z_loss: float = 0.0  # weight of the loss on large logits
    bias_rate: float = 0.0  # change of a router's bias per step in loss-free balancing; 0 disables it
    policy: Kind = "symi"  # when replicas follow popularity
    every: int = 10  # steps between changes of the placement with the policy ``periodic``
    decay: float = 0.9  # weight of the past in each step with the policy ``ema``
    rule: Literal["paper", "minmax"] = "paper"  # how popularity becomes replica counts
    rates: tuple[float, ...] = ()  # for each expert, a factor on the learning rate; empty for 1
    decays: tuple[float, ...] = ()  # for each expert, a factor on the weight decay; empty for 1

    def __post_init__(self) -> None:
        check_choices(self)
        positive(self, "experts", "slots", "hidden", "top_k")
        if self.top_k > self.experts:
            raise ValueError(f"top_k is {self.top_k}, but there are only {self.experts} experts")
        not_negative(self, "shared", "capacity", "aux_loss", "z_loss", "bias_rate", "rates", "decays")
        for name in ("rates", "decays"):
            if getattr(self, name) and len(getattr(self, name)) != self.experts:
                raise ValueError(f"{name} has {len(getattr(self, name))} values for {self.experts} experts")
        self.follow  # noqa: B018 - raises for an invalid policy

    @property
    def follow(self) -> Policy:
        """The replica policy of these options."""
        return Policy(self.policy, self.every, self.decay)


@dataclass(frozen=True)
class DataOptions(config.TextOptions):
    """Options of text data, read as bytes and packed into rows."""

    accumulate: int = 1  # number of micro-batches per step
    held_out: int = 64  # number of rows at the start of the text reserved for evaluation
    shuffle: bool = True  # shuffle rows within windows of the text; False keeps their order

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "accumulate")
        not_negative(self, "held_out")
        if self.batch < self.accumulate:
            raise ValueError(f"batch {self.batch} has fewer rows than accumulate {self.accumulate} micro-batches")


class ModelOptions(TransformerOptions):
    """Options of a GPT-style model whose blocks contain attention and experts."""


@dataclass(frozen=True)
class OptimizerOptions(AdamWOptions):
    """Options of AdamW on static shards.

    Args:
        gradients: dtype of gradients sent to the shards; float64 runs send float64.
        offload: keep master weights and moments in host memory, and update them there.
        skip_inactive: do not update experts, including their moments, that received no token in a step.
        most_skips: number of consecutive steps that may be skipped because of gradients that are not finite.
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
    """Options of a run. With float64, master weights are float64, too.

    Args:
        evaluate_every: steps between evaluations; 0: evaluate only at the end.
        save_async: write checkpoints in a thread while training continues.
        sparse_window: number of steps of a sparse checkpoint's window; 0 for none.
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
    """All options: one table of the file per field."""

    data: DataOptions
    model: ModelOptions = field(default_factory=ModelOptions)
    experts: ExpertOptions = field(default_factory=ExpertOptions)
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    run: RunOptions = field(default_factory=RunOptions)


_RANK_SETTINGS = ("data.paths", "run.folder", "run.device", "run.threads", "run.serve")


def settings(options: Options) -> dict[str, Any]:
    """Return all settings that affect training, by "table.name", without those that may differ between ranks.

    Examples:
        >>> settings(Options(DataOptions("text.txt", batch=4)))["data.batch"]
        4
    """
    named = {f"{table}.{name}": value for table, of in asdict(options).items() for name, value in of.items()}
    return {name: value for name, value in named.items() if name not in _RANK_SETTINGS}
