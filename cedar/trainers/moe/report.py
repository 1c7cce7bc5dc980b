"""What a run comes to: a table of its layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

_SENT = ("tokens", "gradients", "weights")


def layer_columns(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Means over the steps of a metrics file, by layer; ``dense`` is the part that all ranks hold.

    Survival, its lowest, entropy and peak of popularity, the fewest and the most replicas of an expert in the last
    step, replicas that moved in a step, kilobytes over all ranks by phase, milliseconds of rank 0.
    """
    columns = {}
    for at, first in enumerate(lines[0]["layers"]):
        layers = [line["layers"][at] for line in lines]
        survival = [layer["survival"] for layer in layers]
        columns[first["name"]] = [
            f"{fmean(survival):.3f}",
            f"{min(survival):.3f}",
            f"{fmean(layer['entropy'] for layer in layers):.3f}",
            f"{fmean(layer['peak'] for layer in layers):.2f}",
            f"{min(layers[-1]['replicas'])} to {max(layers[-1]['replicas'])}",
            f"{fmean(layer['moved'] for layer in layers):.2f}",
            *(f"{fmean(layer['sent'].get(phase, 0) for layer in layers) / 1000:.1f}" for phase in _SENT),
            f"{1000 * fmean(sum(layer['seconds'].values()) for layer in layers):.1f}",
        ]
    sent = [f"{fmean(line['dense'].get(phase, 0) for line in lines) / 1000:.1f}" for phase in _SENT]
    return columns | {"dense": [""] * 6 + sent + [""]}


def table(lines: Sequence[Mapping[str, Any]]) -> Table:
    """The layers of a run side by side; below, how loss, clipping and skips went."""
    from rich.table import Table

    last = lines[-min(20, len(lines)) :]
    clipped = sum(line["scale"] < 1 and not line["skipped"] for line in lines)
    skipped = sum(line["skipped"] for line in lines)
    held_out = [line["held_out"] for line in lines if line["held_out"] is not None]
    told = f"{len(lines)} steps, {1000 * fmean(line['seconds'] for line in lines):.0f} ms each; "
    told += f"{clipped} clipped, {skipped} skipped\n"
    told += f"loss {fmean(line['loss'] for line in last):.4f} over the last {len(last)}"
    told += f", {held_out[-1]:.4f} on what is held out" if held_out else ""
    found = Table(caption=told, caption_justify="left")
    columns = layer_columns(lines)
    for heading in ("mean of a step", *columns):
        found.add_column(heading, justify="right" if heading in columns else "left")
    what = ["survival", "lowest survival", "entropy of popularity", "largest over mean", "replicas in the end", "moved"]
    what += [f"{phase}, kB" for phase in _SENT] + ["layer, ms"]
    for name, *values in zip(what, *columns.values(), strict=True):
        found.add_row(name, *values)
    return found
