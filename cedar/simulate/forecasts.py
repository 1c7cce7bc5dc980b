"""Run ``cedar simulate``: forecasts for a model and a cluster that a TOML file describes. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
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
