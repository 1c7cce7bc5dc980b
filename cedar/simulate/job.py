"""Simulate a model on a cluster: step times, throughput under failures, and effective training time.

``cedar simulate`` reads the description from a TOML file. Instruction times may be distributions, as in PRISM: the
simulator then draws a time for each instruction of each step, and reports quantiles of the step times.
"""

from __future__ import annotations

import json
import math
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeAlias

from cedar.core.errors import CedarError
from cedar.simulate.calibration import error
from cedar.simulate.checkpoints import CheckpointOptions, Scheme, effective, schemes
from cedar.simulate.replay import SYSTEMS, random_dead, random_trace, read_trace, replay
from cedar.trainers.common.config import check_choices, not_negative, positive
from cedar.trainers.resilient.planner import Plan, Problem, exact, plan
from cedar.trainers.resilient.planner.graph import Graph
from cedar.trainers.resilient.planner.search import search
from cedar.trainers.resilient.schedule import Costs, Instruction, Worker, grid, timeline

_MAX_INSTRUCTIONS = 500_000  # max instructions for which to draw times
_MAX_TASKS = 10_000  # max tasks to schedule per search, since a simulation searches for hundreds of plans


@dataclass(frozen=True)
class Spread:
    """The distribution of a random duration, in seconds."""

    mean: float = 0.0  # mean of a lognormal distribution, used without ``samples``
    deviation: float = 0.0  # its standard deviation
    samples: tuple[float, ...] = ()  # measured seconds; if set, one of these is drawn, with equal probability

    def __post_init__(self) -> None:
        not_negative(self, "mean", "deviation", "samples")
        if self.samples:
            object.__setattr__(self, "mean", statistics.fmean(self.samples))
        if self.deviation and not self.mean:
            raise ValueError(f"deviation is {self.deviation}, of a mean of 0")

    def draw(self, random: random.Random) -> float:
        """Draw one value, in seconds."""
        if self.samples:
            return random.choice(self.samples)
        if not self.deviation:
            return self.mean
        square = math.log1p((self.deviation / self.mean) ** 2)
        return random.lognormvariate(math.log(self.mean) - square / 2, math.sqrt(square))


Time: TypeAlias = float | Spread | tuple[float | Spread, ...]


@dataclass(frozen=True)
class PipelineOptions:
    """The grid of workers, with the same settings as in ``cedar train resilient``."""

    stages: int  # number of stages in a pipeline
    replicas: int  # number of pipelines
    micro_batches: int  # micro-batches per pipeline and step
    # how many activations a worker may keep: ``"1f1b"``, ``"stage 1f1b"``, a number, or ``"all"``
    memory: str | int = "1f1b"
    mode: Literal["sync", "staggered"] = "staggered"  # ``sync`` or ``staggered``
    tied: bool = False  # the first and the last stage share weights
    exact: float = 0.0  # seconds that CP-SAT may spend on the simulated plan; 0: list scheduling only
    rows: int = 0  # rows in a micro-batch, to report rows per second; 0: unknown

    def __post_init__(self) -> None:
        check_choices(self)
        not_negative(self, "exact")


@dataclass(frozen=True)
class TimeOptions:
    """Instruction times, in seconds: a number, or a table with ``mean`` and ``deviation`` or with ``samples``. A list
    of these has one entry per stage.
    """

    forward: Time = 0.0  # forward (F) of a micro-batch
    backward_input: Time = 0.0  # backward of a micro-batch for the stage's input
    backward_weight: Time = 0.0  # backward of a micro-batch for the weights
    reduce: float | Spread = 0.0  # ALL_REDUCE, from when the last worker has started it
    step: float | Spread = 0.0  # the optimizer's step
    report: str = ""  # report.json of a run; its measured times replace these, and those of ``links``


@dataclass(frozen=True)
class LinkOptions:
    """The network links between workers of neighboring stages."""

    message: float = 0.0  # megabytes of activations that a micro-batch sends across a stage boundary
    bandwidth: float = 10.0  # gigabytes per second
    latency: float = 0.0  # seconds
    deviation: float = 0.0  # standard deviation of a message's time, as a fraction of its mean

    def __post_init__(self) -> None:
        not_negative(self, "message", "latency", "deviation")
        if self.bandwidth <= 0:
            raise ValueError(f"bandwidth is {self.bandwidth}: give more than 0")

    @property
    def spread(self) -> Spread:
        """Return the distribution of a message's time."""
        mean = self.latency + self.message / 1000 / self.bandwidth
        return Spread(mean, self.deviation * mean)


@dataclass(frozen=True)
class FailureOptions:
    """When workers fail, and what failures cost."""

    # mean seconds between two failures anywhere in the cluster; each value is simulated
    mtbf: tuple[float, ...] = ()
    repair: float = 3600.0  # mean seconds until a failed worker is back
    trace: str = ""  # CSV of ``milliseconds,add|remove,node`` that replaces ``mtbf`` and ``repair``
    pause: float = 1.0  # seconds that a change of workers costs, in addition to half a step
    rates: tuple[float, ...] = ()  # fractions of dead workers at which to compare systems

    def __post_init__(self) -> None:
        not_negative(self, "pause", "rates")
        for name, values in (("mtbf", self.mtbf), ("repair", (self.repair,))):
            if any(value <= 0 for value in values):
                raise ValueError(f"{name} is {getattr(self, name)}: give seconds")


@dataclass(frozen=True)
class RunOptions:
    """How much to simulate, and which systems."""

    steps: int = 200  # number of steps to simulate for quantiles; fewer if a step has many instructions
    hours: float = 24.0  # hours of training under failures
    draws: int = 10  # how many times to simulate these hours
    seed: int = 0  # seed of all random draws
    # systems to compare: ``resilient``, ``oobleck``, ``bamboo``, ``drop a replica``
    systems: tuple[str, ...] = tuple(SYSTEMS)

    def __post_init__(self) -> None:
        positive(self, "steps", "draws")
        if self.hours <= 0:
            raise ValueError(f"hours is {self.hours}: give more than 0")
        if unknown := [name for name in self.systems if name not in SYSTEMS]:
            raise ValueError(f"there is no system {unknown[0]!r}; known: {', '.join(SYSTEMS)}")


@dataclass(frozen=True)
class SimulationOptions:
    """The settings of a simulation; each field is a table of the TOML file."""

    pipeline: PipelineOptions
    times: TimeOptions = field(default_factory=TimeOptions)
    links: LinkOptions = field(default_factory=LinkOptions)
    failures: FailureOptions = field(default_factory=FailureOptions)
    checkpoints: CheckpointOptions | None = None
    run: RunOptions = field(default_factory=RunOptions)


class DrawnQuantiles(NamedTuple):
    """Quantiles of simulated values."""

    low: float  # the 5th percentile
    middle: float
    high: float  # the 95th percentile

    @classmethod
    def from_values(cls, values: Sequence[float]) -> DrawnQuantiles:
        """Return the quantiles of some values.

        Examples:
            >>> DrawnQuantiles.from_values([3.0, 1.0, 2.0])
            DrawnQuantiles(low=1.0, middle=2.0, high=3.0)
        """
        ordered = sorted(values)
        last = len(ordered) - 1
        return cls(ordered[round(0.05 * last)], statistics.median(ordered), ordered[round(0.95 * last)])


@dataclass(frozen=True)
class Survival:
    """The throughput of one system under failures, as quantiles over the draws."""

    system: str
    mtbf: float  # mean seconds between failures; 0: failures come from a trace
    rate: DrawnQuantiles  # steps per hour
    ratio: DrawnQuantiles  # steps, as a fraction of the same system's steps without failures


@dataclass(frozen=True)
class Comparison:
    """Seconds of a run's steps while a given set of workers was dead: measured and simulated."""

    dead: frozenset[Worker]
    steps: int
    measured: DrawnQuantiles
    simulated: DrawnQuantiles

    @property
    def off(self) -> float:
        """Return the error of the simulated median, as a fraction of the measured median."""
        return error(self.simulated.middle, self.measured.middle)


class SimulatedJob:
    """A model on a cluster, with the simulations that can be run on it."""

    def __init__(self, options: SimulationOptions) -> None:
        self.options, chosen, times = options, options.pipeline, options.times
        self.report: Mapping[str, Any] = _read(times.report) if times.report else {}
        self.spreads = self._spreads()
        self.message = options.links.spread
        if self.report:
            self.message = Spread(self.report["durations"]["transfer"])
        memory: Any = None if chosen.memory == "all" else chosen.memory
        self.problem = Problem(
            chosen.stages, chosen.replicas, chosen.micro_batches, frozenset(), memory, chosen.mode,
            self._costs(), (0, chosen.stages - 1) if chosen.tied and chosen.stages > 1 else (),
        )  # fmt: skip
        if not self.problem.costs.slot(chosen.stages):
            raise CedarError(
                "no instruction takes any time", fix="set times.forward and the other times, or times.report"
            )
        self._known: dict[tuple[tuple[float, int], ...], float] = {}
        self._plans: dict[frozenset[Worker], Plan] = {}
        self._drawn: dict[frozenset[Worker], list[float]] = {}

    def _spreads(self) -> dict[tuple[Any, int], Spread]:
        times, stages = self.options.times, self.options.pipeline.stages
        if self.report:
            named = [(*name.split(" "), seconds) for name, seconds in self.report["durations"].items() if " " in name]
            if (found := len({stage for _, stage, _ in named})) != stages:
                raise CedarError(
                    f"{times.report} has the times of {found} stages, not of {stages}",
                    fix="set pipeline.stages to the stages of that run",
                )
            return {(kind, int(stage)): Spread(seconds) for kind, stage, seconds in named}
        costs: dict[tuple[Any, int], Spread] = {}
        given = {
            "F": times.forward, "B_INPUT": times.backward_input, "B_WEIGHT": times.backward_weight,
            "ALL_REDUCE": times.reduce, "STEP": times.step,
        }  # fmt: skip
        for kind, value in given.items():
            each = value if isinstance(value, tuple) else (value,) * stages
            if len(each) != stages:
                raise CedarError(f"times have {len(each)} values for {stages} stages", fix="give one for each stage")
            costs |= {(kind, stage): one if isinstance(one, Spread) else Spread(one) for stage, one in enumerate(each)}
        return costs

    def _costs(self) -> Costs:
        """Return the costs for planning: the mean instruction times."""

        def each(kind: str) -> tuple[float, ...]:
            return tuple(self.spreads.get((kind, s), Spread()).mean for s in range(self.options.pipeline.stages))

        collectives = (max(each("ALL_REDUCE"), default=0.0), max(each("STEP"), default=0.0))
        return Costs(each("F"), each("B_INPUT"), each("B_WEIGHT"), self.message.mean, *collectives)

    # ---- steps -------------------------------------------------------------------------------------------------------

    def plan(self, dead: frozenset[Worker] = frozenset()) -> Plan:
        """Return the plan of the simulated steps."""
        if dead not in self._plans:
            problem, seconds = replace(self.problem, dead=dead), self.options.pipeline.exact
            self._plans[dead] = exact(problem, seconds) if seconds else plan(problem)
        return self._plans[dead]

    def period(self, dead: frozenset[Worker] = frozenset()) -> float:
        """Return the seconds of a step when each instruction takes its mean time. The search for its plan is short.

        Results are cached by each stage's cost and number of dead workers, as a stage's workers are interchangeable.
        """
        counts = Counter(worker.stage for worker in dead)
        key = tuple(sorted((sum(self.problem.costs.stage(s)), counts[s]) for s in range(self.problem.stages)))
        if key not in self._known:
            graph = Graph.from_problem(replace(self.problem, dead=dead))
            self._known[key] = search(graph, _MAX_TASKS)[1].period
        return self._known[key]

    def steps(self, dead: frozenset[Worker] = frozenset()) -> list[float]:
        """Return the seconds of simulated steps, with randomly drawn instruction times."""
        if dead in self._drawn:
            return self._drawn[dead]
        schedule = self.plan(dead).schedule
        draws = random.Random(self.options.run.seed)
        no_spread = Spread()

        def duration_of(worker: Worker, done: Instruction) -> float:
            return self.spreads.get((done.kind, worker.stage), no_spread).draw(draws)

        size = sum(map(len, schedule.work.values()))
        count = max(8, min(self.options.run.steps, _MAX_INSTRUCTIONS // size)) + 1
        ends = timeline(schedule, duration_of, iterations=count, transfer=lambda: self.message.draw(draws)).ends
        self._drawn[dead] = [after - before for before, after in pairwise(ends)]
        return self._drawn[dead]

    @cached_property
    def step(self) -> DrawnQuantiles:
        """Return the quantiles of a step's seconds without failures."""
        return DrawnQuantiles.from_values(self.steps())

    @cached_property
    def slowdown(self) -> float:
        """Return the mean step time with random instruction times, divided by the step time with mean ones."""
        return statistics.fmean(self.steps()) / self.mean

    @cached_property
    def mean(self) -> float:
        """Return the seconds of a step without failures when each instruction takes its mean time."""
        return self.plan().period

    # ---- failures ----------------------------------------------------------------------------------------------------

    def survivals(self) -> Iterator[Survival]:
        """Yield the throughput of each system at each failure rate."""
        failures, run = self.options.failures, self.options.run
        seconds, size = 3600 * run.hours, self.problem.stages * self.problem.replicas
        for mtbf in (0.0,) if failures.trace else failures.mtbf:
            if failures.trace:
                traces = [read_trace(failures.trace)]
            else:
                seeds = range(run.seed, run.seed + run.draws)
                traces = [random_trace(size, mtbf * size, failures.repair, seconds, seed) for seed in seeds]
            for system in run.systems:
                time_of = self._time_of(system)
                alone = time_of(self.problem) * self.slowdown
                limit = None if failures.trace else seconds
                outcomes = [
                    replay(self.problem, t, time_of, slot=self.slowdown, pause=failures.pause, seconds=limit)
                    for t in traces
                ]  # fmt: skip
                rates = [one.rate for one in outcomes]
                yield Survival(
                    system, mtbf,
                    DrawnQuantiles.from_values([3600 * rate for rate in rates]),
                    DrawnQuantiles.from_values([rate * alone for rate in rates]),
                )  # fmt: skip

    def _time_of(self, system: str) -> Callable[[Problem], float]:
        return (lambda problem: self.period(problem.dead)) if system == "resilient" else SYSTEMS[system]

    def at_rates(self) -> Iterator[tuple[float, str, float]]:
        """Yield (fraction of dead workers, system, fraction of its throughput that remains)."""
        run = self.options.run
        for rate in self.options.failures.rates:
            dead = [random_dead(self.problem, rate, run.seed + draw) for draw in range(min(run.draws, 5))]
            for system in run.systems:
                time_of = self._time_of(system)
                whole = time_of(self.problem)
                yield rate, system, statistics.median(whole / time_of(replace(self.problem, dead=d)) for d in dead)

    def effective(self) -> Iterator[tuple[float, Scheme, float]]:
        """Yield (mean seconds between failures, checkpointing scheme, mean effective training time ratio)."""
        chosen, run = self.options.checkpoints, self.options.run
        if chosen is None:
            return
        iteration = self.mean * self.slowdown
        alone = self.problem.costs.slot(self.problem.stages) * self.problem.micro_batches / self.mean
        for mtbf in self.options.failures.mtbf:
            for scheme in schemes(chosen, iteration, mtbf, min(1.0, alone)):
                seeds = range(run.seed, run.seed + run.draws)
                each = [effective(scheme, iteration, chosen.restart, mtbf, 3600 * run.hours, seed) for seed in seeds]
                yield mtbf, scheme, statistics.fmean(each)

    # ---- comparison with runs ----------------------------------------------------------------------------------------

    def against(self, path: str) -> list[Comparison]:
        """For each set of workers that were dead during a run, compare the run's step times with simulated ones.
        ``path``: the report.json of the run, which must have used the same grid.
        """
        report = _read(path)
        members = {worker for workers in report["recoveries"].values() for worker in workers}
        members |= {str(Worker(*event["worker"])) for event in report["events"] if event["worker"]}
        places = list(grid(self.problem.stages, self.problem.replicas))
        if members != set(map(str, places)):
            raise CedarError(
                f"{path} is from another grid: its workers are {', '.join(sorted(members))}",
                fix="set pipeline.stages and pipeline.replicas to those of the run",
            )
        measured: dict[frozenset[Worker], list[float]] = defaultdict(list)
        for dead, seconds in _intervals(report, places):
            measured[dead] += seconds
        return [
            Comparison(
                dead, len(seconds), DrawnQuantiles.from_values(seconds), DrawnQuantiles.from_values(self.steps(dead))
            )
            for dead, seconds in measured.items()
        ]


_SETTLED = 2  # number of steps to ignore after a change of workers, because their times include the change


def _intervals(
    report: Mapping[str, Any], places: Sequence[Worker]
) -> Iterator[tuple[frozenset[Worker], list[float]]]:  # fmt: skip
    """Yield the dead workers of each generation, and the seconds of each of its steps. ``places``: the grid."""
    begins: dict[int, float] = {}
    for event in report["events"]:
        begins.setdefault(event["generation"], event["decided"])
    times = [when for _, when, _ in report["steps"]]
    for (generation, begin), (_, end) in pairwise([*sorted(begins.items()), (0, math.inf)]):
        inside = [when for when in times if begin <= when < end][_SETTLED:]
        if len(inside) > _SETTLED:
            members = report["recoveries"][str(generation)]  # all of them, since each computes in every step
            dead = frozenset(place for place in places if str(place) not in members)
            yield dead, [b - a for a, b in pairwise(inside)]


def _read(path: str) -> Mapping[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            report = json.load(file)
        if not report["durations"] or "transfer" not in report["durations"]:
            raise CedarError(f"{path} holds no measured seconds", fix="give the report of a run of 10 steps or more")
        return {name: report[name] for name in ("durations", "events", "recoveries", "steps")}
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise CedarError(f"{path} is not a report.json of a run: {problem}", fix="see the run's folder") from problem
