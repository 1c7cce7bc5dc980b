"""Per-layer metrics of a step: expert popularity, survival of copies, bytes and time, as a table and as a plot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

from cedar.trainers.common.files import figure, number

if TYPE_CHECKING:
    from rich.table import Table

    from cedar.trainers.moe.layer import SymiMoE
    from cedar.trainers.moe.placement import Placement

BYTES = ("tokens", "gradients", "weights", "counts")
SECONDS = ("routing", "planning", "tokens", "experts", "gradients", "weights", "counts")


@dataclass(frozen=True)
class LayerRecord:
    """Metrics of one layer in one step."""

    name: str  # name of the layer
    counts: tuple[int, ...]  # copies of tokens routed to each expert
    survival: float  # fraction of copies that were not dropped
    entropy: float  # normalized entropy of popularity: 1 if all are equal, 0 if one gets all
    peak: float  # largest popularity divided by the mean
    replicas: tuple[int, ...]  # number of replicas of each expert
    moved: int  # number of replicas that the next step assigns to other experts
    sent: dict[str, int] = field(default_factory=dict)  # bytes sent by all ranks, by phase
    # seconds on rank 0, by phase; on a GPU, the time for launching kernels
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class StepRecord:
    """Metrics of one training step."""

    step: int  # counted from 0
    loss: float  # mean cross-entropy per token over all ranks, in nats
    rate: float  # the learning rate
    norm: float  # norm of all gradients before clipping
    scale: float  # factor that clipping applied
    skipped: bool  # whether the update was skipped because a gradient was not finite
    seconds: float  # duration of the step on rank 0
    layers: tuple[LayerRecord, ...]  # first to last
    dense: dict[str, int] = field(default_factory=dict)  # bytes sent for replicated parameters, by phase
    # mean cross-entropy of held-out rows, if evaluated after this step
    held_out: float | None = None


def describe(layer: SymiMoE, before: Placement, sent: Mapping[str, int], seconds: Mapping[str, float]) -> LayerRecord:
    """Return a layer's metrics of a step. ``before``: its placement at the start of the step."""
    counts: tuple[int, ...] = tuple(layer.counts.tolist())
    entropy, peak = popularity(counts)
    return LayerRecord(
        layer.name, counts, int(layer.kept.sum()) / max(1, sum(counts)), entropy, peak, before.replicas,
        layer.placement.moved(before), by_phase(sent, layer.name, BYTES), by_phase(seconds, layer.name, SECONDS),
    )  # fmt: skip


def popularity(counts: Sequence[int]) -> tuple[float, float]:
    """Return (entropy relative to its maximum, largest count divided by the mean).

    Examples:
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
    """Return one layer's values by phase, from a dict with keys "phase name"."""
    return {phase: values[f"{phase} {name}"] for phase in phases if f"{phase} {name}" in values}


_SENT = ("tokens", "gradients", "weights")


def layer_columns(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return a table column per layer, of means over the steps of a metrics file; ``dense``: replicated parameters.

    Rows: survival, lowest survival, entropy and peak of popularity, range of replica counts in the last step, replicas
    moved per step, kilobytes over all ranks by phase, milliseconds on rank 0.
    """
    columns = {}
    for at, first in enumerate(lines[0]["layers"]):
        layers = [line["layers"][at] for line in lines]
        survival = [layer["survival"] for layer in layers]
        columns[first["name"]] = [
            f"{fmean(survival):.3f}", f"{min(survival):.3f}", f"{fmean(layer['entropy'] for layer in layers):.3f}",
            f"{fmean(layer['peak'] for layer in layers):.2f}",
            f"{min(layers[-1]['replicas'])} to {max(layers[-1]['replicas'])}",
            f"{fmean(layer['moved'] for layer in layers):.2f}",
            *(f"{fmean(layer['sent'].get(phase, 0) for layer in layers) / 1000:.1f}" for phase in _SENT),
            f"{1000 * fmean(sum(layer['seconds'].values()) for layer in layers):.1f}",
        ]  # fmt: skip
    sent = [f"{fmean(line['dense'].get(phase, 0) for line in lines) / 1000:.1f}" for phase in _SENT]
    return columns | {"dense": [""] * 6 + sent + [""]}


def table(lines: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of a run's layers, with loss, clipping and skips in the caption."""
    from rich.table import Table

    last = lines[-min(20, len(lines)) :]
    clipped = sum(line["scale"] < 1 and not line["skipped"] for line in lines)
    skipped = sum(line["skipped"] for line in lines)
    evaluated = any(line["held_out"] is not None for line in lines)
    reported = f"{len(lines)} steps, {1000 * fmean(line['seconds'] for line in lines):.0f} ms each; "
    reported += f"{clipped} clipped, {skipped} skipped\n"
    reported += f"loss {fmean(number(line['loss']) for line in last):.4f} over the last {len(last)}"
    reported += f", {number(lines[-1]['held_out']):.4f} on held-out rows" if evaluated else ""
    grid = Table(caption=reported, caption_justify="left")
    columns = layer_columns(lines)
    for heading in ("mean of a step", *columns):
        grid.add_column(heading, justify="right" if heading in columns else "left")
    rows = ["survival", "lowest survival", "entropy of popularity", "largest over mean", "replicas at the end", "moved"]
    rows += [f"{phase}, kB" for phase in _SENT] + ["layer, ms"]
    for name, *values in zip(rows, *columns.values(), strict=True):
        grid.add_row(name, *values)
    return grid


def plot(lines: Sequence[Mapping[str, Any]], path: str) -> None:
    """Plot a metrics file into a PNG, one row per layer: survival and popularity on the left, replicas right."""
    names = [layer["name"] for layer in lines[0]["layers"]]
    steps = [line["step"] for line in lines]
    picture = figure(11, 1 + 2.6 * len(names))
    axes = picture.subplots(len(names), 2, squeeze=False)
    for at, name in enumerate(names):
        layers = [line["layers"][at] for line in lines]
        left, right = axes[at]
        left.plot(steps, [layer["survival"] for layer in layers], color="tab:blue", label="survival")
        left.set(title=name, ylim=(0, 1.02), xlabel="step", ylabel="share of copies kept")
        peak = left.twinx()
        peak.plot(steps, [layer["peak"] for layer in layers], color="tab:orange", linewidth=0.7)
        peak.set_ylabel("largest over mean popularity", color="tab:orange")
        replicas = list(zip(*(layer["replicas"] for layer in layers), strict=True))
        right.stackplot(steps, *replicas, step="post", linewidth=0)
        right.set(title=f"{name}: slots of each expert", xlabel="step", ylabel="slots", ylim=(0, None))
        right.margins(0)
    picture.savefig(path, dpi=110)
