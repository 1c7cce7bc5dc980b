"""The controller: decides which plan a run should use, as a pure function of what the run has measured.

It measures plans and does not predict GIL contention. The current plan is measured while it runs. A search proposes
other plans, with estimates from the cost model. Each of these plans may get a trial in the real run, and becomes the
current plan only if it was measurably faster.

Invariants, tested on random runs:

1. ``step`` is pure: equal states and observations give equal results; the only clock is ``Observation.now``.
2. At most one switch is in progress, from ``Switch`` until the new plan is accepted or the previous plan runs again.
3. The run never switches to a plan that is not ready or that was refused.
4. A plan is accepted only if its trial took at most ``1 - better`` of the previous plan's seconds per row, unless it
   only saves time in later epochs. A trial counts the rows that tasks finish, never batches, and ends only after each
   worker has finished as many tasks as a measurement needs.
5. A trial begins only if the plan should save at least ``least_gain`` seconds and its start time, and only while
   trials and searches have cost at most ``regret`` of the time so far plus the expected gain. Plans are prepared one
   at a time, starting with the one that should save most, because preparing also costs time.
6. A trial that costs more than its limit ends immediately, and the run returns to the previous plan.
7. Results of other plans are relative to the current plan: if its time per row changes, their results are scaled too.
   The cost of a trial is only known once the current plan is measured again, so no other trial begins before that.
   Measurements while processes start are discarded.
8. A plan that failed is not retried before the run has taken twice as long, after the next failure three times as
   long, and so on. Its estimate then moves from the trial's result toward the cost model's value over time, so that
   plans are retried rarely, but never given up.
9. A search begins once the run has taken twice as long as at the last one, or after a change of the run's speed.
   Searches take at most ``regret`` of the time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias


@dataclass(frozen=True)
class ControllerSettings:
    """Determines when the controller searches for plans, tries them and accepts them.

    Args:
        regret: share of the time so far, 0 to 1, that searches and trials of worse plans may cost. A run without a
            better plan then loses at most 3%, which cannot be distinguished from noise.
        least_gain: minimum seconds that a plan is expected to save; users do not notice less.
        candidates: number of plans from one search that are tried: one for each kind of executor.
        tasks: minimum number of tasks per worker, after its first, for a measurement of speed; one worker counts as
            two. One task more or less then changes the result only a little.
        steady: how many times as many tasks a measurement has whose result is not clear. Noise alone would otherwise
            seem to change the run's speed, or to make a plan better.
        growth: minimum length of a trial as a share of the time so far, 0 to 1. Longer trials in long runs can
            distinguish plans that differ by little.
        poll: seconds between two observations; it does not affect decisions.
        better: share of the time per row, 0 to 1, that a plan must save; smaller gains are within the regret.
        clear: a plan that takes at most this share of another's time per row, 0 to 1, is clearly faster, since noise
            cannot cause such a difference. It is tried before the running plan was measured for a whole trial.
        changed: factor by which the speed must rise or fall before the results of other plans count as outdated.
        memory: weight of a fresh trial's result relative to the cost model's estimate. It is halved when the run has
            taken twice as long, since other programs may have used the machine during the trial.
        max_loss: maximum loss of a trial, in trial lengths, and the largest slowdown recorded for a failed plan. Trials
            start cold, and a much slower plan need not be measured longer.
    """

    regret: float = 0.03
    least_gain: float = 0.25
    candidates: int = 3
    tasks: int = 3
    steady: int = 2
    growth: float = 0.01
    poll: float = 0.025
    better: float = 0.03
    clear: float = 0.5
    changed: float = 1.5
    memory: float = 8.0
    max_loss: float = 3.0


@dataclass(frozen=True)
class Candidate:
    """A plan that may be better.

    Args:
        key: identifies the plan; equal for plans that assign the same work to the same executors and number of workers.
        seconds: expected seconds per row; measurements replace them.
        start: seconds until the plan can take over, during which the run continues with the current plan.
        later: True if it saves time in later epochs, so that it need not be faster now.
        alike: True if its work runs in the same executors as the current plan's, so both estimates have the same error.
    """

    key: str
    seconds: float
    start: float = 0.0
    later: bool = False
    alike: bool = False


@dataclass(frozen=True)
class PlanTrial:
    """The measured result of a plan that was tried or replaced.

    Args:
        seconds: seconds per row.
        at: the time of the result.
        failed: number of failed trials of the plan.
        earlier: True if an earlier run measured it, perhaps with other data.
    """

    seconds: float
    at: float
    failed: int = 0
    earlier: bool = False


@dataclass(frozen=True)
class Observation:
    """The measurements of a run at a moment between two deliveries.

    Args:
        now: seconds since the start of the run.
        plan: the key of the running plan.
        since: the time at which this plan took over.
        finished: source rows that tasks finished since then.
        starved: seconds since then in which the trainer waited.
        rows, seconds, waited, tasks: counted since each worker finished its first task: source rows that tasks
            finished, wall time, the part of it in which the trainer waited, and finished tasks of the stage with the
            most work. They never decrease under one plan. Deliveries do not count: ``pack`` and ``batch`` cause bursts.
        lanes: number of concurrent tasks.
        rest: source rows still to be read; None if unknown, which counts as the number of rows so far.
        informed: True if the measurements of operators suffice for a search.
        looked: CPU seconds that searches and their checks have taken so far.
        candidates: plans that the current search proposes, with the running plan; None until the search has ended.
        ready, refused: proposed plans that can take over immediately, and proposed plans that cannot be used.
        opening: seconds until the first task of an iteration finished. A new plan's first task may take as long.
    """

    now: float
    plan: str
    since: float = 0.0
    finished: float = 0.0
    starved: float = 0.0
    rows: float = 0.0
    seconds: float = 0.0
    waited: float = 0.0
    tasks: int = 0
    lanes: int = 1
    rest: float | None = None
    informed: bool = False
    looked: float = 0.0
    candidates: tuple[Candidate, ...] | None = None
    ready: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()
    opening: float = 0.0


@dataclass(frozen=True)
class Look:
    """The action to search for plans with the cost model, concurrently with the run."""


@dataclass(frozen=True)
class Prepare:
    """The action to check a plan and start its workers, concurrently with the run."""

    key: str


@dataclass(frozen=True)
class Switch:
    """The action to switch to a plan between two tasks, or at the end of a shuffle's window."""

    key: str
    why: str


Action: TypeAlias = Look | Prepare | Switch
Phase: TypeAlias = Literal["runs", "looks", "tries", "returns"]


@dataclass(frozen=True)
class Pace:
    """A plan's measured speed.

    Args:
        row: seconds per source row.
        trainer: the part of them in which the trainer did not wait.
        task: seconds per task.
        tasks: number of measured tasks; 0 if this run has not measured it, or if costs changed meanwhile.
    """

    row: float
    trainer: float = 0.0
    task: float = 0.0
    tasks: int = 0

    @staticmethod
    def between(early: Observation, late: Observation) -> Pace:
        """Return the pace between two observations under one plan."""
        rows, tasks = late.rows - early.rows, late.tasks - early.tasks
        taken, waited = late.seconds - early.seconds, late.waited - early.waited
        if rows <= 0:
            return Pace(math.inf)
        return Pace(taken / rows, max(taken - waited, 0.0) / rows, taken / max(tasks, 1), tasks)

    @staticmethod
    def of(seen: Observation) -> Pace:
        """Return the pace since the time when each worker had finished its first task under the plan."""
        return Pace.between(replace(seen, rows=0.0, seconds=0.0, waited=0.0, tasks=0), seen)


@dataclass(frozen=True)
class State:
    """The state of the controller.

    Args:
        stays: the key of the current plan, which runs except during trials of other plans.
        phase: "runs", "looks" (a search), "tries" (a trial) or "returns" (to the current plan after a failed trial).
        mark: the observation at which the measurement of the current plan began.
        pace: the last measured pace of the current plan; None before the first measurement.
        judged: the current plan's seconds per row when its speed last changed or a search began; 0 before that.
        known: proposed plans by key.
        tried: the measured results of plans by key.
        prepared: by key, the time until which the controller waits for a plan in preparation.
        trial: the key of the plan that is being tried or has just failed.
        slot: key, seconds and rows of the last failed trial; None once the current plan has been measured again.
        spent: seconds that trials of worse plans, and searches after the first, have cost.
        looked, cost: CPU seconds of all searches so far, and of the last one.
        asked: the time of the last search.
        changed: True if the speed has changed since that search.
        looks: number of searches so far.
    """

    stays: str
    phase: Phase = "runs"
    mark: Observation | None = None
    pace: Pace | None = None
    judged: float = 0.0
    known: Mapping[str, Candidate] = field(default_factory=dict)
    tried: Mapping[str, PlanTrial] = field(default_factory=dict)
    prepared: Mapping[str, float] = field(default_factory=dict)
    trial: str = ""
    slot: tuple[str, float, float] | None = None
    spent: float = 0.0
    looked: float = 0.0
    cost: float = 0.0
    asked: float = 0.0
    changed: bool = False
    looks: int = 0


_SETTINGS = ControllerSettings()


def step(state: State, seen: Observation, settings: ControllerSettings = _SETTINGS) -> tuple[State, tuple[Action, ...]]:
    """Return the next state and the actions to take (see the module's docstring). ``seen.now`` never decreases."""
    if state.phase in ("tries", "returns"):
        return _continue_trial(state, seen, settings)
    state = _measure(state, seen, settings)
    if state.phase == "looks":
        if seen.candidates is None:
            return state, ()
        state = _add_proposals(state, seen, settings)
    return _choose(state, seen, settings)


def recall(state: State, results: Mapping[str, PlanTrial], pace: Pace, start: Mapping[str, float]) -> State:
    """Return the state with results of earlier runs, unless this run has measured or searched already.

    A plan that was better then is tried as soon as it is ready. A plan that was replaced or failed once, perhaps by
    noise, is retried if a search proposes it. If it failed twice, it counts as if it had failed in this run half
    as early; if it failed three times, two thirds as early; and so on. All results are dropped if the current plan's
    speed turns out to differ from those runs by ``changed``.

    Args:
        results: by key of a plan, its result, with the current plan's.
        pace: the pace of the plan that was in use at last.
        start: by key of a plan, seconds until it can take over.
    """
    current = results.get(state.stays)
    if state.pace is not None or state.looks or current is None:
        return state
    known = {key: Candidate(key, each.seconds, start.get(key, 0.0)) for key, each in results.items()}
    pace = replace(pace, row=current.seconds)
    tried = {
        key: replace(each, at=each.at * (1 - 1 / max(each.failed, 1)), earlier=True) for key, each in results.items()
    }
    return replace(state, known=known, tried=tried, pace=pace, judged=pace.row)


def at_end(state: State, seen: Observation) -> State:
    """Return the state of a run that ends during a trial. If the plan was faster, later runs try it again."""
    assert state.pace is not None
    showed = Pace.of(seen).row
    if seen.plan != state.trial or showed >= state.pace.row:
        return state
    return replace(state, tried={**state.tried, state.trial: PlanTrial(showed, seen.now)})


# ---- the current plan ------------------------------------------------------------------------------------------------


def _measure(state: State, seen: Observation, settings: ControllerSettings) -> State:
    """Update the pace of the current plan, except while processes start, because they use the run's cores."""
    under_way = state.prepared.keys() - seen.ready - seen.refused
    mark = None if any(seen.now < state.prepared[key] for key in under_way) else state.mark
    if mark is None or mark.plan != seen.plan or mark.since != seen.since:
        return replace(state, mark=seen)
    urgent = state.pace is None or not state.pace.tasks or state.slot is not None  # decisions wait for it
    if not _has_enough_tasks(mark, seen, settings, 1 if urgent else settings.steady):
        return state
    if seen.rows <= mark.rows:  # all rows were skipped, so there is no throughput to compare
        return state
    pace = Pace.between(mark, seen)
    state = replace(_scale_results(state, pace), mark=seen, pace=pace)
    if not state.judged:
        return replace(state, judged=pace.row)
    ratio = max(pace.row, state.judged) / max(min(pace.row, state.judged), 1e-12)
    if ratio <= settings.changed:
        return state
    earlier = {key for key, each in state.tried.items() if each.earlier}
    # Costs may have changed in the middle of the measurement, so no trial is compared with it.
    return replace(
        state, pace=replace(pace, tasks=0), judged=pace.row, changed=True,
        tried={key: each for key, each in state.tried.items() if key not in earlier},
        known={key: each for key, each in state.known.items() if key not in earlier},
    )  # fmt: skip


def _scale_results(state: State, pace: Pace) -> State:
    """Scale the results of other plans by the change of the current plan's time per row, assuming that all change."""
    if state.pace is None or state.pace.row <= 0:
        return state
    factor = pace.row / state.pace.row
    tried = {key: replace(each, seconds=each.seconds * factor) for key, each in state.tried.items()}
    known = {key: replace(each, seconds=each.seconds * factor) for key, each in state.known.items()}
    if state.slot is not None:  # half of the change may have happened before or during the trial
        key, seconds, rows = state.slot
        tried[key] = replace(tried[key], seconds=tried[key].seconds / math.sqrt(factor))
        lost = seconds - rows * max(pace.row, state.pace.row)  # what rows cost more by now, the trial did not cause
        state = replace(state, spent=state.spent + max(lost, 0.0), slot=None)
    return replace(state, known=known, tried=tried)


def _has_enough_tasks(mark: Observation, seen: Observation, settings: ControllerSettings, times: int = 1) -> bool:
    """Return True if enough tasks finished and enough time passed between two observations to measure the pace.

    Args:
        times: how many times as many tasks, and as much time, as a trial needs.
    """
    tasks, seconds = seen.tasks - mark.tasks, seen.seconds - mark.seconds
    return tasks >= times * _tasks_needed(seen, settings) and seconds >= times * settings.growth * seen.now


def _tasks_needed(seen: Observation, settings: ControllerSettings) -> int:
    return settings.tasks * max(seen.lanes, 2)


def _rows_left(seen: Observation) -> float:
    return seen.rows if seen.rest is None else seen.rest


def _expected_gain(candidate: Candidate, pace: Pace, seen: Observation) -> float:
    """Return the seconds that a plan should save until the end. No plan can take less time per row than the trainer."""
    rows = _rows_left(seen) - candidate.start / max(pace.row, 1e-12)
    return rows * (pace.row - max(candidate.seconds, pace.trainer))


# ---- searches --------------------------------------------------------------------------------------------------------


def _add_proposals(state: State, seen: Observation, settings: ControllerSettings) -> State:
    """Replace the proposed plans by those of the latest search, except plans that were tried.

    Estimates are corrected by the running plan's error, or by its square root if a plan uses other executors.
    """
    found = seen.candidates or ()
    expected = next((c.seconds for c in found if c.key == state.stays), 0.0)
    error = (state.pace or Pace.of(seen)).row / expected if expected else 1.0
    corrected = [replace(c, seconds=c.seconds * (error if c.alike else math.sqrt(error))) for c in found]
    candidates = sorted(corrected, key=lambda c: (c.key != state.stays, c.seconds))[: settings.candidates + 1]
    known = {**state.known, **{c.key: c for c in candidates}}
    known = {key: c for key, c in known.items() if key in state.tried or c in candidates}
    cost = seen.looked - state.looked
    return replace(
        state, phase="runs", known=known, looked=seen.looked, cost=cost, looks=state.looks + 1, asked=seen.now,
        changed=False, spent=state.spent + (cost if state.looks else 0.0),
    )  # fmt: skip


def _may_search(state: State, seen: Observation, settings: ControllerSettings) -> bool:
    """Whether a search is affordable and could find a useful plan."""
    pace = state.pace or Pace.of(seen)
    if not seen.informed or not seen.rows or _rows_left(seen) * (pace.row - pace.trainer) < settings.least_gain:
        return False
    if not state.looks:
        return True
    pause = max(state.cost / settings.regret, settings.least_gain, 0.0 if state.changed else state.asked)
    return seen.now >= state.asked + pause and state.spent + state.cost <= settings.regret * seen.now


# ---- other plans -----------------------------------------------------------------------------------------------------


def _choose(state: State, seen: Observation, settings: ControllerSettings) -> tuple[State, tuple[Action, ...]]:
    """Prepare or try the best plan that is worth a trial. Without such a plan, search for more plans."""
    state = _measure_early(state, seen, settings)
    pace = state.pace
    if pace is None:
        return (replace(state, phase="looks"), (Look(),)) if _may_search(state, seen, settings) else (state, ())
    if state.slot is not None:  # the trial's cost is unknown until the current plan is measured
        return state, ()
    others = [_estimate(c, state, seen, settings) for c in state.known.values() if c.key != state.stays]
    worthwhile = [c for c in others if c.key not in seen.refused and _is_worth_trying(c, state, seen, settings)]
    worthwhile.sort(key=lambda c: (_expected_gain(c, pace, seen), c.key), reverse=True)
    for best in worthwhile:
        if best.key not in state.prepared:
            until = seen.now + 2 * max(best.start, 4 * settings.poll)
            return replace(state, prepared={**state.prepared, best.key: until}), (Prepare(best.key),)
        if best.key in seen.ready:
            sure = pace.tasks >= settings.steady * _tasks_needed(seen, settings)
            if not (sure or (pace.tasks and _is_clear(best.seconds, pace, settings))):
                return state, ()  # the trial would be compared with noise
            why = f"expected to take {best.seconds / pace.row:.0%} of the time of a row"
            return replace(state, phase="tries", trial=best.key, mark=None), (Switch(best.key, why),)
        if seen.now < state.prepared[best.key]:
            return state, ()  # trying another plan first would delay this one by a window or two
    if not worthwhile and _may_search(state, seen, settings):
        return replace(state, phase="looks", judged=pace.row), (Look(),)
    return state, ()


def _measure_early(state: State, seen: Observation, settings: ControllerSettings) -> State:
    """Measure the running plan by half as many tasks if another plan should be much faster, to switch earlier."""
    if state.pace is not None or not state.known or seen.tasks < settings.tasks * seen.lanes / 2:
        return state
    pace = Pace.of(seen)
    fast = any(_is_clear(c.seconds, pace, settings) for c in state.known.values() if c.key != state.stays)
    return replace(state, pace=pace, judged=pace.row) if fast else state


def _is_clear(seconds: float, pace: Pace, settings: ControllerSettings) -> bool:
    """Whether a plan's seconds per row are less than the current plan's by more than noise."""
    return seconds <= pace.row * settings.clear


def _estimate(candidate: Candidate, state: State, seen: Observation, settings: ControllerSettings) -> Candidate:
    """Combine a plan's measured result, weighted by age, with the model's estimate. Ready plans start immediately."""
    tried = state.tried.get(candidate.key)
    if tried is not None:
        showed = settings.memory * tried.at / seen.now
        share = 1.0 if seen.now < (1 + tried.failed) * tried.at else showed / (1 + showed)
        seconds = candidate.seconds ** (1 - share) * tried.seconds**share
        candidate = replace(candidate, seconds=seconds, later=False)
    return replace(candidate, start=0.0) if candidate.key in seen.ready else candidate


def _is_worth_trying(candidate: Candidate, state: State, seen: Observation, settings: ControllerSettings) -> bool:
    """Whether a plan should save enough for its start, which uses some cores, and for the cost of trials so far."""
    assert state.pace is not None
    gain = _expected_gain(candidate, state.pace, seen)
    if state.spent > settings.regret * (seen.now + max(gain, 0.0)):
        return False
    saves = candidate.seconds <= state.pace.row * (1 - settings.better)
    return candidate.later or (saves and gain >= max(settings.least_gain, candidate.start))


def _continue_trial(state: State, seen: Observation, settings: ControllerSettings) -> tuple[State, tuple[Action, ...]]:
    """Continue or end a trial, or wait for the return to the current plan."""
    assert state.pace is not None
    if state.phase == "returns":
        if seen.plan != state.stays:
            return replace(state, mark=seen), ()
        last = state.mark
        slot = None if last is None else (state.trial, seen.since - last.since, last.finished)
        return replace(state, phase="runs", trial="", mark=seen, slot=slot), ()
    if seen.plan != state.trial:
        return state, ()  # the first window under the tried plan has not begun
    before = state.pace.row
    regret = seen.now - seen.since - seen.finished * before
    showed = seen.seconds / seen.rows if seen.rows else math.inf
    start = Observation(0.0, seen.plan)
    whole = _has_enough_tasks(start, seen, settings) and (
        _is_clear(showed, state.pace, settings)
        or _is_clear(before, Pace(showed), settings)
        or _has_enough_tasks(start, seen, settings, settings.steady)
    )
    starved = seen.starved - seen.finished * max(before - state.pace.trainer, 0.0)  # more than under the previous plan
    lost = starved > seen.opening + _may_lose(state, seen, settings)
    if not (whole or lost):
        return state, ()
    later = state.known[state.trial].later and not lost
    if whole and (later or showed <= before * (1 - settings.better)):
        return _accept_trial(state, seen, max(regret, 0.0)), ()
    failed = state.tried[state.trial].failed if state.trial in state.tried else 0
    tried = {**state.tried, state.trial: PlanTrial(min(showed, before * settings.max_loss), seen.now, failed + 1)}
    why = "its tasks finished no row" if showed == math.inf else f"{showed / before:.2f} times the time of a row"
    back = Switch(state.stays, f"{why}: back to the plan before")
    return replace(state, phase="returns", tried=tried, mark=seen), (back,)


def _may_lose(state: State, seen: Observation, settings: ControllerSettings) -> float:
    """Return the seconds that a trial may lose: the maximum of a few trial lengths, of ``regret`` of the time so far
    plus the expected gain, and of ``least_gain``, since its workers may have to load libraries.
    """
    assert state.pace is not None
    slot = max(_tasks_needed(seen, settings) * state.pace.task, settings.growth * seen.now)
    gain = max(_expected_gain(state.known[state.trial], state.pace, seen), 0.0)
    return max(settings.max_loss * slot, settings.regret * (seen.now + gain), settings.least_gain)


def _accept_trial(state: State, seen: Observation, regret: float) -> State:
    """Make the plan that was tried the current plan."""
    assert state.pace is not None
    key, before, pace = state.trial, state.pace.row, Pace.of(seen)
    known, tried = dict(state.known), {**state.tried, key: PlanTrial(pace.row, seen.now)}
    if known[key].later:  # this plan saves time only in later epochs, so its time is not compared
        known.pop(state.stays, None)
    else:
        known.setdefault(state.stays, Candidate(state.stays, before))
        tried[state.stays] = PlanTrial(before, seen.now)
    known[key] = replace(known[key], later=False)
    return replace(
        state, phase="runs", stays=key, trial="", mark=seen, pace=pace, judged=pace.row, known=known, tried=tried,
        spent=state.spent + regret,
    )  # fmt: skip
