"""Survival and replicas over time, as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cedar.errors import CedarError


def plot(lines: Sequence[Mapping[str, Any]], path: str) -> None:
    """Draw the lines of a metrics file into a PNG: a row per layer, survival and popularity beside replicas.

    Raises:
        CedarError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise CedarError("a plot needs matplotlib", fix="pip install 'cedar-data[plots]'") from error
    names = [layer["name"] for layer in lines[0]["layers"]]
    steps = [line["step"] for line in lines]
    figure = Figure(figsize=(11, 1 + 2.6 * len(names)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(names), 2, squeeze=False)
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
    figure.savefig(path, dpi=110)
