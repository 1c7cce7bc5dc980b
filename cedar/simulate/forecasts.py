"""``cedar simulate``: what the simulator says of a model and a cluster that a file describes. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cedar.simulate.job import Comparison, DrawnQuantiles, SimulatedJob, SimulationOptions, Survival
from cedar.trainers.common import config


@dataclass(frozen=True)
class Forecast:
    """What is to be expected; all of it is simulated, but for the measured side of comparisons."""

    period: float  # seconds of a step whose instructions take their means
    step: DrawnQuantiles  # seconds of a step without failures
    rows: int  # of a step; 0: unknown
    survivals: list[Survival]
    rates: list[tuple[float, str, float]]  # share of workers that are dead, system, throughput that is left
    # MTBF in seconds, way to save state, iterations between checkpoints, effective training time ratio
    effective: list[tuple[float, str, int, float]]
    comparisons: list[Comparison]


def forecast(path: str, changes: Sequence[str] = (), against: str | None = None) -> Forecast:
    """Simulate.

    Args:
        path: a TOML file with the tables of ``cedar.simulate.job.SimulationOptions``.
        changes: ``"failures.repair=600"``: settings in place of those in the file.
        against: report.json of a run on the same grid.

    Raises:
        CedarError: the file, the report or a trace cannot be read, or a setting is wrong.
    """
    job = SimulatedJob(config.load(path, SimulationOptions, changes))
    grid = job.options.pipeline
    return Forecast(
        job.mean, job.step, grid.rows * grid.micro_batches * grid.replicas, list(job.survivals()),
        list(job.at_rates()), [(mtbf, scheme.name, scheme.every, ratio) for mtbf, scheme, ratio in job.effective()],
        job.against(against) if against else [],
    )  # fmt: skip
