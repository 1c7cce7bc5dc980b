"""What a step tells of each layer: who was popular, what survived, what was sent, how long it took."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cedar.trainers.moe.layer import SymiMoE
    from cedar.trainers.moe.placement import Placement

BYTES = ("tokens", "gradients", "weights", "counts")
SECONDS = ("routing", "planning", "tokens", "experts", "gradients", "weights", "counts")


@dataclass(frozen=True)
class LayerRecord:
    """One layer in one step.

    Args:
        name: of the layer.
        counts: copies of tokens that each expert was chosen for.
        survival: share of copies that were not dropped.
        entropy: of popularity, 1 where all experts are alike, 0 where there is only one.
        peak: popularity of the most popular expert over the mean.
        replicas: of each expert.
        moved: replicas that the next step gives to other experts.
        sent: bytes from rank to rank, over all ranks, by phase.
        seconds: of rank 0, by phase; on a GPU those until its work was handed over.
    """

    name: str
    counts: tuple[int, ...]
    survival: float
    entropy: float
    peak: float
    replicas: tuple[int, ...]
    moved: int
    sent: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class StepRecord:
    """One step.

    Args:
        step: from 0.
        loss: mean cross-entropy of a token, over all ranks, in nats.
        rate: the learning rate.
        norm: of all gradients, before clipping.
        scale: by which they were clipped.
        skipped: nothing was changed, since a gradient was not finite.
        seconds: of rank 0.
        layers: first to last.
        dense: bytes of the part that all ranks hold, by phase.
        held_out: mean cross-entropy of the rows that are held out, where they were looked at after this step.
    """

    step: int
    loss: float
    rate: float
    norm: float
    scale: float
    skipped: bool
    seconds: float
    layers: tuple[LayerRecord, ...]
    dense: dict[str, int] = field(default_factory=dict)
    held_out: float | None = None


def told(layer: SymiMoE, before: Placement, sent: Mapping[str, int], seconds: Mapping[str, float]) -> LayerRecord:
    """What a layer has to say of a step that it began with the placement ``before``."""
    counts: tuple[int, ...] = tuple(layer.counts.tolist())
    entropy, peak = popularity(counts)
    return LayerRecord(
        layer.name, counts, int(layer.kept.sum()) / max(1, sum(counts)), entropy, peak, before.replicas,
        layer.placement.moved(before), by_phase(sent, layer.name, BYTES), by_phase(seconds, layer.name, SECONDS),
    )  # fmt: skip


def popularity(counts: Sequence[int]) -> tuple[float, float]:
    """Entropy in parts of the largest possible, and largest over mean.

    Example:
        >>> popularity([5, 5])
        (1.0, 1.0)
        >>> popularity([10, 0])
        (0.0, 2.0)
    """
    total = sum(counts)
    if not total or len(counts) < 2:
        return 1.0, 1.0
    shares = [count / total for count in counts if count]
    entropy = -sum(share * math.log(share) for share in shares) / math.log(len(counts))
    return max(0.0, entropy), max(counts) * len(counts) / total


def by_phase(values: Mapping[str, Any], name: str, phases: Sequence[str]) -> dict[str, Any]:
    """The values of one layer, whose keys are "phase name"."""
    return {phase: values[f"{phase} {name}"] for phase in phases if f"{phase} {name}" in values}


def exchange_bytes(spread: Sequence[int], size: int, itemsize: int, ranks: int) -> int:
    """Bytes that one exchange of gradients or of weights sends from rank to rank, over all ranks.

    The sum over experts of h * X * (N - 1) / N, where h ranks hold the expert and X are its bytes: a rank that holds it
    sends (or gets) the slices of all others. What was held before does not occur in it.

    Args:
        spread: how many ranks hold each expert.
        size: values of an expert; they are cut into N slices of equal size, the last filled up.
        itemsize: bytes of a value.
        ranks: N.

    Example:
        >>> exchange_bytes([2, 1, 1], size=10, itemsize=4, ranks=2)
        80
    """
    return sum(spread) * -(-size // ranks) * itemsize * (ranks - 1)
