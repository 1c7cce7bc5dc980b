"""The controller: which plan a run should have, as a pure function of what the run shows of itself.

It measures plans, not locks. The plan that stays is measured as it runs; a look proposes others, with what the cost
model expects of them; each may have a slot of the real run, and stays only if it measured better there.

Invariants, tested on random runs:

1. ``step`` is pure: equal states and observations give equal results; there is no clock but ``Observation.now``.
2. One switch in flight at most: from ``Switch`` until the plan stays, or the one before it is back, no other begins.
3. A plan that is not ready, or that was refused, is never switched to.
4. A plan stays only where its slot showed at most ``1 - better`` of the seconds per row of the plan before it, unless
   what it saves comes in later epochs alone.
5. A slot begins only where at least ``least_gain`` seconds, and what the start that it needs takes from the run, are
   expected to be saved, and while what slots and looks have cost is no more than ``regret`` of the time so far and of
   what it should save. One plan is got ready at a time, the one that should save most: checks cost the run, too.
6. A slot that costs more than it may ends at once: the plan that stays comes back.
7. What is known of plans is known against the one that stays: where its rows take longer, theirs are taken to, too.
   What a slot has cost is known once the plan that stays was measured after it; nothing else is tried before. What
   is measured while processes start is not a plan's pace.
8. A plan that failed is not retried before the run is twice as long, then three times, and so on. What is expected
   of it then is between what it showed and what the cost model says, the nearer to the latter the longer ago that
   was: no plan is retried and again, and none is given up permanently.
9. Looks become rarer as the run continues, but for the one after a change of its pace, and take no more than ``regret``
   of the time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from cedar.control.settings import ControllerSettings


@dataclass(frozen=True)
class Candidate:
    """A plan that may be better.

    Args:
        key: names it: equal for plans that do the same in the same places with as many workers.
        seconds: expected per row; measured ones take their place.
        start: seconds until it can take over, in which the run continues as it is.
        later: what it saves comes in later epochs: it need not be faster now.
        alike: in the same places as the plan that runs: what is expected of both is wrong alike.
    """

    key: str
    seconds: float
    start: float = 0.0
    later: bool = False
    alike: bool = False


@dataclass(frozen=True)
class PlanTrial:
    """What a plan showed when it was tried, or left.

    Args:
        seconds: per row.
        at: the time of that.
        failed: how often it was tried without success.
    """

    seconds: float
    at: float
    failed: int = 0


@dataclass(frozen=True)
class Observation:
    """What a run shows, at a moment between two deliveries.

    Args:
        now: seconds that the run has taken.
        plan: the key of the one that runs.
        since: when that took over, as ``now``.
        delivered: rows since then.
        rows, seconds, waited, deliveries: since its first delivery: rows delivered, the wall time of that, the part of
            it in which the trainer waited, and how many deliveries there were. They never fall under one plan.
        rest: rows that are still to come; None if unknown: then as many as there were.
        informed: enough was seen of the operators for a look.
        looked: CPU seconds that looks have taken so far, with their checks.
        candidates: what the look in progress proposes, and expects of the plan that runs; None until it has ended.
        ready, refused: proposed plans that can take over at once, and those that never may.
        opening: seconds that the first delivery of an iteration took: so long may that of another plan take.
    """

    now: float
    plan: str
    since: float = 0.0
    delivered: float = 0.0
    rows: float = 0.0
    seconds: float = 0.0
    waited: float = 0.0
    deliveries: int = 0
    rest: float | None = None
    informed: bool = False
    looked: float = 0.0
    candidates: tuple[Candidate, ...] | None = None
    ready: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()
    opening: float = 0.0


@dataclass(frozen=True)
class Look:
    """Ask the cost model for plans, next to the run."""


@dataclass(frozen=True)
class Prepare:
    """Check a plan and start what it needs, next to the run."""

    key: str


@dataclass(frozen=True)
class Switch:
    """Go over to a plan at the next window's end."""

    key: str
    why: str


Action: TypeAlias = Look | Prepare | Switch
Phase: TypeAlias = Literal["runs", "looks", "tries", "returns"]


@dataclass(frozen=True)
class Pace:
    """Seconds per row of a plan, and of those the trainer's own; and seconds per delivery."""

    row: float
    trainer: float = 0.0
    delivery: float = 0.0

    @staticmethod
    def between(early: Observation, late: Observation) -> Pace:
        """Of what was delivered from one observation to the other, under one plan."""
        rows, deliveries = late.rows - early.rows, late.deliveries - early.deliveries
        taken, waited = late.seconds - early.seconds, late.waited - early.waited
        if rows <= 0:
            return Pace(math.inf)
        return Pace(taken / rows, max(taken - waited, 0.0) / rows, taken / max(deliveries, 1))

    @staticmethod
    def of(seen: Observation) -> Pace:
        """Of all that a plan delivered since it took over."""
        return Pace.between(replace(seen, rows=0.0, seconds=0.0, waited=0.0, deliveries=0), seen)


@dataclass(frozen=True)
class State:
    """What the controller remembers.

    Args:
        stays: the key of the plan that runs unless another one measures better.
        phase: what is in progress.
        mark: where the measurement of the plan that stays began.
        pace: what it showed last; None until it has shown something.
        judged: its seconds per row when it was last judged, or looked at; 0 until then.
        known: proposed plans by key.
        tried: what some of them showed, which is known better than what was expected of them.
        prepared: until when plans that are got ready are waited for, by key.
        trial: the key of the plan that is tried or left.
        slot: the last plan that was tried without success, its seconds and its rows, until it is known how long rows
        take now.
        spent: seconds that slots of worse plans, and looks after the first, have cost.
        looked, cost: CPU seconds of all looks so far, and of the last one.
        asked: the time of the last one.
        changed: the pace is another one since.
        looks: how many there were.
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
    """What to do now: see this module. ``seen`` never goes back in time."""
    if state.phase in ("tries", "returns"):
        return _in_flight(state, seen, settings)
    state = _measured(state, seen, settings)
    if state.phase == "looks":
        if seen.candidates is None:
            return state, ()
        state = _proposed(state, seen, settings)
    return _chosen(state, seen, settings)


# ---- the plan that stays ---------------------------------------------------------------------------------------------


def _measured(state: State, seen: Observation, settings: ControllerSettings) -> State:
    """With what the plan that stays has shown of late."""
    mark = None if _starting(state, seen) else state.mark
    if mark is None or mark.plan != seen.plan or mark.since != seen.since:
        return replace(state, mark=seen)
    if seen.seconds - mark.seconds < _slot(seen, settings) or seen.deliveries - mark.deliveries < settings.deliveries:
        return state
    if seen.rows <= mark.rows:  # all were skipped: they have no throughput to compare
        return state
    pace = Pace.between(mark, seen)
    state = replace(_scaled(state, pace), mark=seen, pace=pace)
    if not state.judged:
        return replace(state, judged=pace.row)
    apart = max(pace.row, state.judged) / max(min(pace.row, state.judged), 1e-12)
    if apart <= settings.changed:
        return state
    return replace(state, judged=pace.row, changed=True)


def _starting(state: State, seen: Observation) -> bool:
    """Processes that start share the cores with the run: what it shows meanwhile tells nothing of its plan."""
    under_way = state.prepared.keys() - seen.ready - seen.refused
    return any(seen.now < state.prepared[key] for key in under_way)


def _scaled(state: State, pace: Pace) -> State:
    """What is known of other plans, where rows take longer or shorter than before, as they will under those, too."""
    if state.pace is None or state.pace.row <= 0:
        return state
    times = pace.row / state.pace.row
    tried = {key: replace(each, seconds=each.seconds * times) for key, each in state.tried.items()}
    known = {key: replace(each, seconds=each.seconds * times) for key, each in state.known.items()}
    if state.slot is not None:  # half of what changed may have changed before it, or in it
        key, seconds, rows = state.slot
        tried[key] = replace(tried[key], seconds=tried[key].seconds / math.sqrt(times))
        lost = seconds - rows * math.sqrt(pace.row * state.pace.row)
        state = replace(state, spent=state.spent + max(lost, 0.0), slot=None)
    return replace(state, known=known, tried=tried)


def _slot(seen: Observation, settings: ControllerSettings) -> float:
    return max(settings.slot, settings.growth * seen.now)


def _rest(seen: Observation) -> float:
    return seen.rows if seen.rest is None else seen.rest


def _gain(candidate: Candidate, pace: Pace, seen: Observation) -> float:
    """Seconds that a plan should save yet; what the trainer takes, no plan saves."""
    rows = _rest(seen) - candidate.start / max(pace.row, 1e-12)
    return rows * (pace.row - max(candidate.seconds, pace.trainer))


# ---- looks -----------------------------------------------------------------------------------------------------------


def _proposed(state: State, seen: Observation, settings: ControllerSettings) -> State:
    """With what a look found, and what was tried before."""
    candidates = [_corrected(c, state, seen) for c in seen.candidates or ()]
    candidates = sorted(candidates, key=lambda c: (c.key != state.stays, c.seconds))[: settings.candidates + 1]
    known = {**state.known, **{c.key: c for c in candidates}}
    known = {key: c for key, c in known.items() if key in state.tried or c in candidates}
    cost = seen.looked - state.looked
    return replace(
        state, phase="runs", known=known, looked=seen.looked, cost=cost, looks=state.looks + 1, asked=seen.now,
        changed=False, spent=state.spent + (cost if state.looks else 0.0),
    )  # fmt: skip


def _corrected(candidate: Candidate, state: State, seen: Observation) -> Candidate:
    """By what the plan that runs is mispredicted: all of that holds in the same places, half of it in others."""
    expected = next((c.seconds for c in seen.candidates or () if c.key == state.stays), 0.0)
    if not expected:
        return candidate
    wrong = (state.pace or Pace.of(seen)).row / expected
    return replace(candidate, seconds=candidate.seconds * (wrong if candidate.alike else math.sqrt(wrong)))


def _may_look(state: State, seen: Observation, settings: ControllerSettings) -> bool:
    """A look is affordable, and something may come of it."""
    pace = state.pace or Pace.of(seen)
    if not seen.informed or not seen.rows or _rest(seen) * (pace.row - pace.trainer) < settings.least_gain:
        return False
    if not state.looks:
        return True
    pause = max(state.cost / settings.regret, settings.least_gain, 0.0 if state.changed else settings.rare * seen.now)
    return seen.now >= state.asked + pause and state.spent + state.cost <= settings.regret * seen.now


# ---- other plans -----------------------------------------------------------------------------------------------------


def _chosen(state: State, seen: Observation, settings: ControllerSettings) -> tuple[State, tuple[Action, ...]]:
    """Get the best plan ready that is worth it, try it, or look for more."""
    state = _roughly(state, seen, settings)
    pace = state.pace
    if pace is None:
        return (replace(state, phase="looks"), (Look(),)) if _may_look(state, seen, settings) else (state, ())
    if state.slot is not None:  # what it has cost is not known before the plan that stays was measured again
        return state, ()
    others = [_now_known(c, state, seen, settings) for c in state.known.values() if c.key != state.stays]
    worth = [c for c in others if c.key not in seen.refused and _worth(c, state, seen, settings)]
    worth.sort(key=lambda c: (_gain(c, pace, seen), c.key), reverse=True)
    for best in worth:
        if best.key not in state.prepared:
            until = seen.now + 2 * max(best.start, settings.slot)
            return replace(state, prepared={**state.prepared, best.key: until}), (Prepare(best.key),)
        if best.key in seen.ready:
            why = f"expected to take {best.seconds / pace.row:.0%} of the time of a row"
            return replace(state, phase="tries", trial=best.key, mark=None), (Switch(best.key, why),)
        if seen.now < state.prepared[best.key]:
            return state, ()  # another one that is tried meanwhile would hold it up for a window or two
    if not worth and _may_look(state, seen, settings):
        return replace(state, phase="looks", judged=pace.row), (Look(),)
    return state, ()


def _roughly(state: State, seen: Observation, settings: ControllerSettings) -> State:
    """Where a plan should be faster by far, two deliveries tell enough of the one that runs: each window counts."""
    if state.pace is not None or not state.known or seen.deliveries < settings.deliveries / 2:
        return state
    pace = Pace.of(seen)
    fast = any(c.seconds <= pace.row * settings.clear for c in state.known.values() if c.key != state.stays)
    return replace(state, pace=pace, judged=pace.row) if fast else state


def _now_known(candidate: Candidate, state: State, seen: Observation, settings: ControllerSettings) -> Candidate:
    """Between what it showed and what is expected of it, by how long ago that was; once ready, it starts at once."""
    tried = state.tried.get(candidate.key)
    if tried is not None:
        showed = settings.memory * tried.at / seen.now
        share = 1.0 if seen.now < (1 + tried.failed) * tried.at else showed / (1 + showed)
        seconds = candidate.seconds ** (1 - share) * tried.seconds**share
        candidate = replace(candidate, seconds=seconds, later=False)
    return replace(candidate, start=0.0) if candidate.key in seen.ready else candidate


def _worth(candidate: Candidate, state: State, seen: Observation, settings: ControllerSettings) -> bool:
    """It should save enough, also of what slots have cost so far; a start takes some of the cores."""
    assert state.pace is not None
    gain = _gain(candidate, state.pace, seen)
    if state.spent > settings.regret * (seen.now + max(gain, 0.0)):
        return False
    saves = candidate.seconds <= state.pace.row * (1 - settings.better)
    return candidate.later or (saves and gain >= max(settings.least_gain, candidate.start))


def _in_flight(state: State, seen: Observation, settings: ControllerSettings) -> tuple[State, tuple[Action, ...]]:
    """A slot continues, or ends; or the plan that stays is on its way back."""
    assert state.pace is not None
    if state.phase == "returns":
        if seen.plan != state.stays:
            return replace(state, mark=seen), ()
        last = state.mark
        slot = None if last is None else (state.trial, seen.since - last.since, last.delivered)
        return replace(state, phase="runs", trial="", mark=seen, slot=slot), ()
    if seen.plan != state.trial:
        return state, ()  # its window has not begun
    before = state.pace.row
    regret = seen.now - seen.since - seen.delivered * before
    showed = seen.seconds / seen.rows if seen.rows else math.inf
    whole = seen.seconds >= _slot(seen, settings) and seen.deliveries >= settings.deliveries
    lost = regret > seen.opening + settings.hopeless * max(_slot(seen, settings), state.pace.delivery)
    if not (whole or lost):
        return state, ()
    later = state.known[state.trial].later and not lost
    if whole and (later or showed <= before * (1 - settings.better)):
        return _stays(state, seen, max(regret, 0.0)), ()
    failed = state.tried[state.trial].failed if state.trial in state.tried else 0
    tried = {**state.tried, state.trial: PlanTrial(min(showed, before * settings.hopeless), seen.now, failed + 1)}
    why = "no row in its slot" if showed == math.inf else f"{showed / before:.2f} times the time of a row"
    back = Switch(state.stays, f"{why}: back to the plan before")
    return replace(state, phase="returns", tried=tried, mark=seen), (back,)


def _stays(state: State, seen: Observation, regret: float) -> State:
    """The plan that was tried is the one that runs now."""
    assert state.pace is not None
    key, before, pace = state.trial, state.pace.row, Pace.of(seen)
    known, tried = dict(state.known), {**state.tried, key: PlanTrial(pace.row, seen.now)}
    if known[key].later:  # what it costs now, the plan before did not: that is not a measure
        known.pop(state.stays, None)
    else:
        known.setdefault(state.stays, Candidate(state.stays, before))
        tried[state.stays] = PlanTrial(before, seen.now)
    known[key] = replace(known[key], later=False)
    return replace(
        state, phase="runs", stays=key, trial="", mark=seen, pace=pace, judged=pace.row, known=known, tried=tried,
        spent=state.spent + regret,
    )  # fmt: skip
