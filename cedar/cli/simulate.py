"""``cedar simulate``: predicts how a model trains on a cluster; a TOML file describes both."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from cedar.cli.arguments import command
from cedar.cli.tables import table
from cedar.simulate import Forecast, forecast

if TYPE_CHECKING:
    from cedar.cli.arguments import Adder

Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]


def add(adder: Adder) -> None:
    """Register the command."""
    summary = "simulate a model on a cluster: steps, throughput under failures"
    about = "Simulate a pipeline-parallel model on a cluster. All figures are simulated."
    made = command(adder, "simulate", summary, main, about=about)
    made.add_argument("config", metavar="FILE", help="a TOML file; python -m pydoc cedar.simulate.job lists settings")
    made.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="overrides of settings in the file: run.hours=2")
    made.add_argument("--against", metavar="REPORT", help="report.json of a run, to compare the simulation with")
    made.add_argument("--json", action="store_true", help="print JSON")


def main(chosen: argparse.Namespace) -> int:
    """Simulate, and print the results."""
    found = forecast(chosen.config, chosen.changes, chosen.against)
    if chosen.json:
        print(json.dumps(asdict(found), indent=1, default=sorted))
        return 0
    from rich.console import Console

    console = Console()
    for title, header, rows in tables(found):
        console.print(table(header, rows, title=title))
    return 0


def tables(forecast: Forecast) -> Iterator[Table]:
    """Yield the tables to print: title, headings, rows."""
    low, middle, high = forecast.step
    cells: list[tuple[str, ...]]
    rows = [("seconds, median (5% to 95%)", f"{middle:.4g} ({low:.4g} to {high:.4g})")]
    rows += [("with mean times for all instructions", f"{forecast.period:.4g}")]
    if forecast.rows:
        speeds = [f"{forecast.rows / seconds:,.0f}" for seconds in forecast.step]
        rows += [("rows per second", f"{speeds[1]} ({speeds[2]} to {speeds[0]})")]
    yield "a step without failures (simulated)", ("", ""), rows
    if forecast.survivals:
        cells = [
            (one.system, _time(one.mtbf), _range(one.rate, ".4g"), _range(one.ratio, ".3f"))
            for one in forecast.survivals
        ]
        yield "under failures (simulated)", ("system", "MTBF", "steps per hour", "effective training time"), cells
    if forecast.rates:
        cells = [(system, f"{rate:.0%}", f"{share:.3f}") for rate, system, share in forecast.rates]
        yield "workers that fail at the same time (simulated)", ("system", "dead", "throughput left"), cells
    if forecast.effective:
        ratios: dict[float, dict[str, str]] = {}
        for mtbf, name, every, ratio in forecast.effective:
            ratios.setdefault(mtbf, {})[name] = f"{ratio:.3f} ({every})"
        names = list(next(iter(ratios.values())))
        title = "effective training time (iterations between checkpoints; simulated)"
        yield title, ("MTBF", *names), [(_time(mtbf), *cells.values()) for mtbf, cells in ratios.items()]
    if forecast.comparisons:
        cells = [
            (
                ", ".join(map(str, sorted(one.dead))) or "none", str(one.steps), _range(one.measured, ".4g"),
                _range(one.simulated, ".4g"), f"{one.off:.1%}",
            )
            for one in forecast.comparisons
        ]  # fmt: skip
        yield "compared with the run, in seconds", ("dead", "steps", "measured", "simulated", "median off by"), cells


def _range(quantiles: Sequence[float], how: str) -> str:
    low, middle, high = (format(value, how) for value in quantiles)
    return middle if low == high else f"{middle} ({low} to {high})"


def _time(seconds: float) -> str:
    if not seconds:
        return "trace"
    return f"{seconds / 60:g} min" if seconds < 7200 else f"{seconds / 3600:g} h"
