"""Run ``cedar simulate``: forecasts for a model and a cluster that a TOML file describes. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cedar.simulate.job import Comparison, DrawnQuantiles, SimulatedJob, SimulationOptions, Survival
from cedar.trainers.common import config


@dataclass(frozen=True)
class Forecast:
    """The results of a simulation. All figures are simulated, except the measured ones in ``comparisons``."""

    period: float  # seconds of a step if each instruction takes its mean time
    step: DrawnQuantiles  # seconds of a step without failures
    rows: int  # rows in a step; 0: unknown
    survivals: list[Survival]
    rates: list[tuple[float, str, float]]  # fraction of dead workers, system, remaining fraction of throughput
    # MTBF in seconds, checkpointing scheme, iterations between checkpoints, effective training time ratio
    effective: list[tuple[float, str, int, float]]
    comparisons: list[Comparison]

    def tables(self) -> Iterator[tuple[str, Sequence[str], Sequence[Sequence[str]]]]:
        """Yield a title, headings and rows for each table to print."""
        low, middle, high = self.step
        cells: list[tuple[str, ...]]
        rows = [("seconds, median (5% to 95%)", f"{middle:.4g} ({low:.4g} to {high:.4g})")]
        rows += [("with mean times for all instructions", f"{self.period:.4g}")]
        if self.rows:
            speeds = [f"{self.rows / seconds:,.0f}" for seconds in self.step]
            rows += [("rows per second", f"{speeds[1]} ({speeds[2]} to {speeds[0]})")]
        yield "a step without failures (simulated)", ("", ""), rows
        if self.survivals:
            cells = [
                (one.system, _time(one.mtbf), _range(one.rate, ".4g"), _range(one.ratio, ".3f"))
                for one in self.survivals
            ]
            yield "under failures (simulated)", ("system", "MTBF", "steps per hour", "effective training time"), cells
        if self.rates:
            cells = [(system, f"{rate:.0%}", f"{share:.3f}") for rate, system, share in self.rates]
            yield "workers that fail at the same time (simulated)", ("system", "dead", "throughput left"), cells
        if self.effective:
            ratios: dict[float, dict[str, str]] = {}
            for mtbf, name, every, ratio in self.effective:
                ratios.setdefault(mtbf, {})[name] = f"{ratio:.3f} ({every})"
            names = list(next(iter(ratios.values())))
            title = "effective training time (iterations between checkpoints; simulated)"
            yield title, ("MTBF", *names), [(_time(mtbf), *cells.values()) for mtbf, cells in ratios.items()]
        if self.comparisons:
            cells = [
                (
                    ", ".join(map(str, sorted(one.dead))) or "none", str(one.steps), _range(one.measured, ".4g"),
                    _range(one.simulated, ".4g"), f"{one.off:.1%}",
                )
                for one in self.comparisons
            ]  # fmt: skip
            yield (
                "compared with the run, in seconds",
                ("dead", "steps", "measured", "simulated", "median off by"),
                cells,
            )


def forecast(path: str, changes: Sequence[str] = (), against: str | None = None) -> Forecast:
    """Run the simulation that a TOML file describes.

    Args:
        path: a TOML file with the tables of ``cedar.simulate.job.SimulationOptions``.
        changes: settings that override those in the file, such as ``"failures.repair=600"``.
        against: path of the report.json of a run on the same grid, to compare with.

    Raises:
        CedarError: the file, the report or a trace cannot be read, or a setting is invalid.
    """
    job = SimulatedJob(config.load(path, SimulationOptions, changes))
    grid = job.options.pipeline
    return Forecast(
        job.mean, job.step, grid.rows * grid.micro_batches * grid.replicas, list(job.survivals()),
        list(job.at_rates()), [(mtbf, scheme.name, scheme.every, ratio) for mtbf, scheme, ratio in job.effective()],
        job.against(against) if against else [],
    )  # fmt: skip


def _range(quantiles: Sequence[float], how: str) -> str:
    low, middle, high = (format(value, how) for value in quantiles)
    return middle if low == high else f"{middle} ({low} to {high})"


def _time(seconds: float) -> str:
    if not seconds:
        return "trace"
    return f"{seconds / 60:g} min" if seconds < 7200 else f"{seconds / 3600:g} h"
