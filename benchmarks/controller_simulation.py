"""Simulated machines and runs: what the controller is tried on, thousands of times, without a thread or a clock.

A trace says what every plan costs at every moment: orders that are worth something or not, operators that hold the GIL
for a share of their time, rows that cost something to ship, other programs that take cores, costs that change in the
middle, short epochs, slow trainers. The cost model's predictions are wrong by what ours are wrong by.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from cedar.control.controller import Candidate, ControllerSettings, Look, Observation, Prepare, State, Switch, step
from cedar.profile.figures import cores_kept

WRITTEN, THREADS, ALONE, PROCESSES, CLUSTER = "as written", "threads", "one thread", "processes", "cluster"
_GROWTH = 0.005  # of the rows so far make one piece at least: a run of hours is replayed in a thousand steps
_SINCE = 0.05  # of the rows of a plan so far, at most: what it does first is seen piece by piece


@dataclass(frozen=True)
class Costs:
    """Of one row: CPU seconds in the order as written, how many times less in the best order, the share with the GIL.

    Args:
        convoy: how many times longer work takes that several threads pass the GIL to and fro for.
        ship: seconds of the coordinator to have a row worked on by processes; ``remote`` by a cluster.
    """

    cpu: float
    gains: float
    gil: float
    convoy: float
    ship: float
    remote: float


@dataclass(frozen=True)
class Trace:
    """One run on one machine.

    Args:
        cores: of the machine.
        cluster: threads of a cluster; 0 is none.
        rows: of an epoch; ``epochs`` of them are run.
        window: rows after which plans may change; ``piece`` those of a task.
        costs, later: before and after row number ``change``.
        trainer: seconds that the trainer takes for a row.
        refill: seconds until the first task of a plan, or of an epoch.
        start: seconds until processes are there, and ``cold`` the seconds that their first task takes more.
        busy: times at which another program comes (even places) and goes; it takes ``taken`` cores.
        noise: of a task's time, the standard deviation of its logarithm.
        look: seconds that a look takes, of which ``wrong`` is the standard deviation of what it predicts.
    """

    seed: int
    cores: int
    cluster: int
    rows: int
    epochs: int
    window: int
    piece: int
    costs: Costs
    later: Costs
    change: int
    trainer: float
    refill: float
    start: float
    cold: float
    busy: tuple[float, ...]
    taken: float
    noise: float
    look: float
    wrong: float

    @property
    def plans(self) -> tuple[str, ...]:
        """Those that a user could have chosen manually."""
        return (WRITTEN, THREADS, ALONE, PROCESSES, *((CLUSTER,) if self.cluster else ()))

    def seconds(self, plan: str, row: int, now: float, starting: bool = False) -> float:
        """What a row takes under a plan, at this place of the run, and at this time; what starts shares the cores."""
        free = max(0.5, self.cores - self.taken) if bisect_right(self.busy, now) % 2 else float(self.cores)
        free *= self.cores / (self.cores + 1) if starting else 1.0  # one process imports for all
        return _seconds(plan, self.costs if row < self.change else self.later, free, self.cores, self.cluster)

    def proposed(self, row: int, running: str, draw: random.Random) -> dict[str, float]:
        """What the cost model expects of the other plans, in seconds per row.

        It does not know of other programs, nor exactly who holds the GIL; its figures of operators are all wrong by
        much the same, and so are those of the plan that runs.
        """
        costs = self.costs if row < self.change else self.later
        known = replace(costs, gil=min(max(costs.gil + draw.gauss(0, 0.2), 0.0), 1.0), convoy=1.0)
        all_wrong = math.exp(draw.gauss(0, self.wrong))
        found = {}
        for plan in self.plans:
            if plan not in (running, WRITTEN) and plan == THREADS and costs.gains <= 1.03:
                continue
            each = _seconds(plan, known, self.cores, self.cores, self.cluster) * all_wrong
            found[plan] = each * math.exp(draw.gauss(0, self.wrong / 3))
        return found


def _seconds(plan: str, costs: Costs, free: float, threads: int, cluster: int) -> float:
    cpu = costs.cpu if plan == WRITTEN else costs.cpu / costs.gains
    if plan == ALONE:
        return cpu / min(free, 1.0)
    if plan == PROCESSES:
        return max((cpu + costs.ship) / free, costs.ship)
    if plan == CLUSTER:
        return max(cpu / cluster, costs.remote)
    convoy = 1 + (costs.convoy - 1) * costs.gil
    return max(cpu / free, cpu * convoy / cores_kept(costs.gil, threads)) if threads > 1 else cpu / free


def traces(number: int, seed: int = 0) -> Iterator[Trace]:
    """Runs of all kinds, always the same ones for a seed."""
    for i in range(number):
        yield _trace(random.Random(f"{seed}/{i}"), i)


def _log(draw: random.Random, low: float, high: float) -> float:
    return math.exp(draw.uniform(math.log(low), math.log(high)))


def _trace(draw: random.Random, seed: int) -> Trace:
    costs = _costs(draw, _log(draw, 2e-6, 5e-3))
    later = replace(costs, cpu=costs.cpu * _log(draw, 0.3, 3.0), gains=_costs(draw, 1.0).gains)
    later = later if draw.random() < 0.25 else costs
    cores = draw.choice((1, 2, 2, 4, 8, 16, 32))
    total, epochs = _log(draw, 1.0, 1000.0), draw.choice((1, 1, 1, 2, 3, 10, 30))
    each = _seconds(WRITTEN, costs, cores, cores, 0)
    rows = max(8, round(total / epochs / each))
    piece = max(1, round(_log(draw, 2e-3, 0.1) / each))
    window = piece * max(1, round(_log(draw, 0.05, 2.0) / each / piece))
    slow = draw.random()
    trainer = 0.0 if slow < 0.5 else each * _log(draw, 0.05, 3.0)
    busy, now = [], 0.0
    while draw.random() < 0.95 and slow < 0.4:
        now += _log(draw, 0.3, 30.0)
        busy.append(now)
    return Trace(
        seed, cores, draw.choice((0, 0, 0, 0, 16, 64)), rows, epochs, window, piece, costs, later,
        int(rows * epochs * draw.uniform(0.1, 0.9)) if later is not costs else rows * epochs,
        trainer, _log(draw, 1e-3, 0.03), _log(draw, 0.2, 2.5), _log(draw, 0.02, 0.2), tuple(busy),
        draw.choice((1.0, cores / 2)), draw.uniform(0.0, 0.1), _log(draw, 0.003, 0.05), draw.uniform(0.05, 0.25),
    )  # fmt: skip


def _costs(draw: random.Random, cpu: float) -> Costs:
    return Costs(
        cpu,
        draw.choice((1.0, 1.0, draw.uniform(0.95, 1.2), _log(draw, 1.1, 6.0))),
        draw.choice((0.0, 1.0, draw.random())),
        draw.uniform(1.0, 1.4),
        cpu * _log(draw, 0.003, 2.0),
        cpu * _log(draw, 0.01, 2.0),
    )


# ---- replay ----------------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """A run: its seconds, the plan at its end, and what was tried."""

    seconds: float
    plan: str
    switches: list[tuple[float, str, str]] = field(default_factory=list)


@dataclass
class _Run:
    """Works on piece after piece, under any plan."""

    trace: Trace
    plan: str
    now: float = 0.0
    row: int = 0
    since: float = 0.0
    finished: float = 0.0
    starved: float = 0.0
    rows: float = 0.0
    seconds: float = 0.0
    waited: float = 0.0
    tasks: int = -1  # the first one only begins what is measured
    started: float = 0.0  # processes are there

    def __post_init__(self) -> None:
        self.noise = random.Random(self.trace.seed)
        self.total = self.trace.rows * self.trace.epochs

    def takes_over(self, plan: str, cold: bool) -> None:
        """At a window's end."""
        self.plan, self.since = plan, self.now
        self.finished = self.rows = self.seconds = self.waited = 0.0
        self.tasks = -1
        self.starved = self.trace.refill + (self.trace.cold if cold and plan in (PROCESSES, CLUSTER) else 0.0)
        self.now += self.starved

    def finish(self) -> None:
        """One more piece: tasks of ``piece`` rows each. Batches may come much later, and several at once."""
        trace = self.trace
        begins = self.row % trace.rows == 0 and self.row > 0
        number = self._number()
        each = trace.seconds(self.plan, self.row, self.now, starting=self.now < self.started)
        makes = each * number * math.exp(self.noise.gauss(0, trace.noise))
        takes = trace.trainer * number
        self.now += max(makes, takes) + (trace.refill if begins else 0.0)
        self.row += number
        first = self.tasks < 0
        self.tasks += 1 if first else max(1, number // trace.piece)
        self.finished += number
        self.starved += max(makes - takes, 0.0)
        if not first:
            self.rows += number
            self.seconds += max(makes, takes)
            self.waited += max(makes - takes, 0.0)

    def _number(self) -> int:
        """Rows of the next piece: it ends where a window, or some of them, do."""
        trace, inside = self.trace, self.row % self.trace.rows
        number = max(trace.piece, int(min(_GROWTH * self.row, _SINCE * self.finished)))
        left = trace.window - inside % trace.window
        number = left + (number - left) // trace.window * trace.window if number > left else number
        return min(number, trace.rows - inside)

    @property
    def at_window(self) -> bool:
        inside = self.row % self.trace.rows
        return inside % self.trace.window == 0


def fixed(trace: Trace, plan: str) -> float:
    """Seconds of a run that has one plan from its beginning to its end; its processes start first."""
    run = _Run(trace, plan)
    run.now = trace.refill + (trace.start if plan == PROCESSES else 0.0)
    run.now += trace.cold if plan in (PROCESSES, CLUSTER) else 0.0
    while run.row < run.total:
        run.finish()
    return run.now


def controlled(trace: Trace, settings: ControllerSettings | None = None) -> Outcome:
    """The run as the controller leads it, from the pipeline as written."""
    settings = settings or ControllerSettings()
    run, draw = _Run(trace, WRITTEN), random.Random(trace.seed + 1)
    run.now = trace.refill
    state, switches = State(WRITTEN), [(0.0, WRITTEN, "begins")]
    looked, asked, wanted = 0.0, math.inf, ""
    found: tuple[Candidate, ...] | None = None
    warmed: dict[str, float] = {}
    while run.row < run.total:
        run.finish()
        if wanted and run.at_window:
            run.takes_over(wanted, cold=all(plan != wanted for _, plan, _ in switches))
            switches.append((run.now, wanted, ""))
            wanted = ""
        if run.now >= asked:
            asked, looked = math.inf, looked + trace.look
            proposed = trace.proposed(run.row, run.plan, draw)
            same = {run.plan} if run.plan not in (WRITTEN, THREADS) else {WRITTEN, THREADS}
            found = tuple(
                Candidate(plan, each, _left(trace, plan, warmed, run.now), alike=plan in same)
                for plan, each in proposed.items()
            )
        seen = Observation(
            run.now, run.plan, run.since, run.finished, run.starved, run.rows, run.seconds, run.waited,
            max(run.tasks, 0), 1, _expected(run), run.row >= 3 * trace.piece, looked, found,
            frozenset(plan for plan, ready in warmed.items() if ready <= run.now),
            opening=trace.refill,
        )  # fmt: skip
        state, actions = step(state, seen, settings)
        found = None if state.phase != "looks" else found
        for action in actions:
            if isinstance(action, Look):
                asked, found = run.now + 2 * trace.look, None
                run.now += trace.look / 2  # it shares the cores, and the GIL, with the run
            elif isinstance(action, Prepare):
                warmed.setdefault(action.key, run.now + 0.01 + _left(trace, action.key, warmed, run.now))
                run.started = max(run.started, warmed[action.key] if action.key == PROCESSES else 0.0)
            elif isinstance(action, Switch):
                wanted = action.key
                switches[-1] = (*switches[-1][:2], action.why)
    return Outcome(run.now, run.plan, switches)


def _left(trace: Trace, plan: str, warmed: dict[str, float], now: float) -> float:
    """Seconds until the processes of a plan are there."""
    return max(warmed.get(plan, now + trace.start) - now, 0.0) if plan == PROCESSES else 0.0


def _expected(run: _Run) -> float:
    """Of later epochs nobody knows: as many are expected as there were."""
    trace = run.trace
    epoch = run.row // trace.rows
    return trace.rows - run.row % trace.rows + epoch * trace.rows


@dataclass(frozen=True)
class Regret:
    """Of one trace, in seconds: what was lost against the best fixed plan, of the seconds that this takes.

    Args:
        window: seconds that a window takes under the plan that the run begins with.
        first: what that plan alone would have lost.
    """

    lost: float
    best: float
    window: float
    first: float
    plan: str
    outcome: Outcome

    def beyond(self, allowed: float) -> float:
        """The share of the best plan's time that was lost beyond this many seconds."""
        return max(self.lost - allowed, 0.0) / self.best

    @property
    def slower(self) -> float:
        """The share of its time by which the run took longer than as written; below 0 if it was faster."""
        return (self.lost - self.first) / (self.best + self.first)


def regret(trace: Trace, settings: ControllerSettings | None = None) -> Regret:
    """What the controller loses against the best plan in hindsight."""
    took = {plan: fixed(trace, plan) for plan in trace.plans}
    plan = min(took, key=lambda p: took[p])
    outcome = controlled(trace, settings)
    window = took[WRITTEN] * trace.window / (trace.rows * trace.epochs)
    lost, first = outcome.seconds - took[plan], took[WRITTEN] - took[plan]
    return Regret(lost, took[plan], window, first, plan, outcome)
