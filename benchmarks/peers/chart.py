"""The rates of all workloads in one picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.peers.table import OURS, Line

WIDTH = 11.0  # inches
COLORS = {"ours": "#c0392b", "peer": "#4a6fa5", "limit": "#b8b8b8"}


def draw(tables: Mapping[str, tuple[str, Sequence[Line]]], path: Path) -> None:
    """A panel for each workload (title, unit and lines), bars sorted by rate, ranges as whiskers."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    shown = {title: (unit, [x for x in lines if x.rates and not x.problem]) for title, (unit, lines) in tables.items()}
    shown = {title: (unit, sorted(lines, key=lambda x: x.rate)) for title, (unit, lines) in shown.items() if lines}
    if not shown:
        return
    across = min(2, len(shown))
    down = -(-len(shown) // across)
    tallest = max(len(lines) for _, lines in shown.values())
    figure, axes = plt.subplots(down, across, figsize=(WIDTH, down * (0.9 + 0.22 * tallest)), squeeze=False)
    for panel in axes.flat[len(shown) :]:
        panel.set_visible(False)
    for panel, (title, (unit, lines)) in zip(axes.flat, shown.items(), strict=False):
        kinds = ["limit" if x.limit else "ours" if x.entry == OURS else "peer" for x in lines]
        rates = [x.rate for x in lines]
        low = [rate - min(x.rates.values()) for rate, x in zip(rates, lines, strict=True)]
        high = [max(x.rates.values()) - rate for rate, x in zip(rates, lines, strict=True)]
        places = range(len(lines))
        panel.barh(places, rates, xerr=[low, high], color=[COLORS[k] for k in kinds], error_kw={"lw": 0.8})
        panel.set_yticks(places, [x.title for x in lines], fontsize=7)
        panel.set_title(title, fontsize=10)
        panel.set_xlabel(f"{unit}/s", fontsize=8)
        panel.tick_params(axis="x", labelsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)
