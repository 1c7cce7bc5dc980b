"""What the controller promises whatever it sees: random runs, and a few manually."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.control.controller import (
    Action,
    Candidate,
    ControllerSettings,
    Look,
    Observation,
    Pace,
    PlanTrial,
    Prepare,
    State,
    Switch,
    at_end,
    recall,
    step,
)

SETTINGS = ControllerSettings()
PLANS = ("first", "a", "b", "c", "d")


class Run:
    """A run whose plans take so many seconds a row; tasks have 10 rows."""

    def __init__(self, seconds: dict[str, float], rows: float | None = None, trainer: float = 0.0) -> None:
        self.seconds, self.trainer, self.left = seconds, trainer, rows
        self.state = State("first")
        self.seen = Observation(0.0, "first", informed=True, rest=rows)
        self.actions: list[Action] = []
        self.starts: dict[str, float] = {}

    def deliver(self, rows: float = 10.0, times: float = 1.0, **changes: Any) -> tuple[Action, ...]:
        """So many more rows, and what the controller says to them."""
        seen = self.seen
        makes, takes = self.seconds[seen.plan] * rows * times, self.trainer * rows
        taken = max(makes, takes)
        self.left = None if self.left is None else max(self.left - rows, 0.0)
        self.seen = replace(
            seen, now=seen.now + taken, finished=seen.finished + rows, starved=seen.starved + taken - takes,
            rows=seen.rows + rows, seconds=seen.seconds + taken, waited=seen.waited + taken - takes,
            tasks=seen.tasks + 1, rest=self.left, **changes,
        )  # fmt: skip
        return self.step()

    def step(self) -> tuple[Action, ...]:
        before = self.state
        self.state, actions = step(self.state, self.seen, SETTINGS)
        assert step(before, self.seen, SETTINGS) == (self.state, actions), "it is a pure function"
        self.seen = replace(self.seen, candidates=None)
        self.actions += actions
        return actions

    def takes_over(self, plan: str, cold: float = 0.0) -> None:
        now = self.seen.now
        self.seen = Observation(
            now + cold, plan, now, rest=self.left, informed=True, looked=self.seen.looked, ready=self.seen.ready,
            refused=self.seen.refused, opening=self.seen.opening,
        )  # fmt: skip

    def goes_on(self, seconds: float, found: tuple[Candidate, ...] = (), look: float = 0.01) -> None:
        """Whatever it wants is done at once."""
        end = self.seen.now + seconds
        while self.seen.now < end:
            for action in self.deliver():
                if isinstance(action, Look):
                    self.seen = replace(self.seen, candidates=found, looked=self.seen.looked + look)
                elif isinstance(action, Prepare):
                    self.seen = replace(self.seen, ready=self.seen.ready | {action.key})
                else:
                    self.takes_over(action.key)

    @property
    def switches(self) -> list[str]:
        return [action.key for action in self.actions if isinstance(action, Switch)]


# ---- manually
# ---------------------------------------------------------------------------------------------------------


def test_a_plan_that_measures_better_stays() -> None:
    run = Run({"first": 1e-3, "a": 4e-4}, rows=1e5)
    run.goes_on(3, (Candidate("a", 5e-4),))
    assert (run.state.stays, run.switches) == ("a", ["a"])


def test_a_plan_that_does_not_keep_what_was_expected_of_it_goes() -> None:
    run = Run({"first": 1e-3, "a": 1e-3}, rows=1e5)
    run.goes_on(2, (Candidate("a", 5e-4),))
    assert run.state.stays == "first"
    assert run.switches[:2] == ["a", "first"]


@pytest.mark.parametrize("opening", [0.0, 2.0])
def test_a_plan_that_finishes_nothing_is_left_before_its_slot_is_over(opening: float) -> None:
    """Its first task may take as long as that of the run did."""
    run = Run({"first": 1e-3, "a": 1e3}, rows=1e5)
    run.seen = replace(run.seen, opening=opening)
    while run.seen.plan == "first":
        run.goes_on(1e-9, (Candidate("a", 5e-4),))
    waited = run.seen.now
    while run.state.phase == "tries":
        run.seen = replace(run.seen, now=run.seen.now + 0.01, starved=run.seen.starved + 0.01)
        run.step()
    assert run.switches == ["a", "first"]
    may_save = 1e5 * (1e-3 - 5e-4)
    assert opening < run.seen.now - waited < opening + SETTINGS.regret * may_save + 0.2


def test_a_plan_that_is_faster_by_far_is_tried_after_a_task() -> None:
    sure = SETTINGS.tasks * 2 * (1 + SETTINGS.steady) + 1  # the first measurement begins with a task
    for expected, tasks in ((1e-3, math.ceil(SETTINGS.tasks / 2)), (1.8e-2, sure)):
        run = Run({"first": 2e-2, "a": expected}, rows=1e5)
        run.seen = replace(run.seen, ready=frozenset("a"), informed=False)
        run.state = replace(run.state, known={"a": Candidate("a", expected)}, prepared={"a": 0.0})
        while not run.switches:
            run.deliver()
        assert run.seen.tasks == tasks


def test_a_slot_in_which_the_machine_was_slower_is_not_held_against_its_plan() -> None:
    run = Run({"first": 1e-3, "a": 9e-4}, rows=1e5)
    while not run.switches:
        run.goes_on(1e-9, (Candidate("a", 5e-4),))
    run.seconds = {"first": 3e-3, "a": 2.7e-3}  # another program comes
    run.goes_on(2)
    assert run.switches == ["a", "first", "a"], "once it is known that all plans take longer now, it is the better one"
    assert run.state.stays == "a"
    assert run.state.spent < 0.06


@pytest.mark.parametrize(("starts", "tried"), [(0.9, "b"), (99.0, "a")], ids=["it starts in time", "it never does"])
def test_a_better_plan_whose_processes_start_is_waited_for_but_not_for_ever(starts: float, tried: str) -> None:
    run = Run({"first": 1e-2, "a": 8e-3, "b": 1e-3}, rows=1e5)
    found, asked = (Candidate("a", 8e-3), Candidate("b", 1e-3, start=1.0)), 0.0
    while not run.switches:
        for action in run.deliver():
            if isinstance(action, Look):
                run.seen = replace(run.seen, candidates=found)
            elif isinstance(action, Prepare):
                run.seen, asked = replace(run.seen, ready=frozenset("a")), asked or run.seen.now
        if asked and run.seen.now > asked + starts:
            run.seen = replace(run.seen, ready=frozenset("ab"))
    assert run.switches == [tried]
    measured = SETTINGS.tasks * 2 * SETTINGS.steady * 0.1  # the running plan is measured anew
    assert run.seen.now - asked == pytest.approx(min(starts, 2.0 + measured), abs=0.25)


def test_what_the_trainer_takes_is_not_to_be_gained() -> None:
    run = Run({"first": 1e-3, "a": 1e-4}, rows=1e6, trainer=2e-3)
    run.goes_on(20, (Candidate("a", 1e-4),))
    assert run.actions == []


def test_nothing_is_tried_where_too_little_is_left() -> None:
    run = Run({"first": 1e-3, "a": 1e-4}, rows=250)
    run.goes_on(0.2, (Candidate("a", 1e-4),))
    assert run.actions == []


def test_processes_must_save_more_than_their_start() -> None:
    run = Run({"first": 1e-3, "a": 5e-4}, rows=1_500)
    run.goes_on(1, (Candidate("a", 5e-4, start=0.9),))
    assert run.switches == []


def test_a_plan_that_pays_later_stays_though_it_is_no_faster() -> None:
    run = Run({"first": 1e-3, "a": 1.1e-3}, rows=1e5)
    run.goes_on(2, (Candidate("a", 1e-3, later=True),))
    assert run.state.stays == "a"


def test_a_plan_that_was_refused_is_not_switched_to() -> None:
    run = Run({"first": 1e-3, "a": 4e-4}, rows=1e5)
    run.seen = replace(run.seen, refused=frozenset("a"))
    run.goes_on(3, (Candidate("a", 5e-4),))
    assert run.switches == []


def test_looks_that_lead_to_nothing_become_rare() -> None:
    run = Run({"first": 1e-3}, rows=1e9)
    times = []
    while run.seen.now < 300:
        for action in run.deliver(100):
            assert isinstance(action, Look)
            times.append(run.seen.now)
            run.seen = replace(run.seen, candidates=(), looked=run.seen.looked + 0.02)
    pauses = [after - before for before, after in pairwise(times)]
    assert len(times) > 3
    assert all(after >= 2 * before for before, after in pairwise(times))
    assert pauses[-1] > 50 > 10 * pauses[0]
    assert 0.02 * len(times) < SETTINGS.regret * 300 / 2


@pytest.mark.heavy
def test_a_plan_that_failed_is_tried_again_ever_more_rarely() -> None:
    run = Run({"first": 1e-3, "a": 2e-3}, rows=1e9)
    run.goes_on(400, (Candidate("a", 6e-4),))
    assert run.state.stays == "first"
    assert 1 <= run.switches.count("a") <= 5, "what it showed counts less the longer ago that was"


@pytest.mark.heavy
def test_neighbors_that_come_and_go_do_not_make_a_bad_plan_worth_trying() -> None:
    run = Run({"first": 1e-3, "a": 3e-3}, rows=1e9)
    for i in range(20):
        run.seconds = {key: seconds * (2.0 if i % 2 else 0.5) for key, seconds in run.seconds.items()}
        run.goes_on(10, (Candidate("a", 0.7 * run.seconds["first"]),))
    assert run.state.stays == "first"
    assert run.switches.count("a") <= 6


def test_what_is_measured_while_processes_start_is_no_pace() -> None:
    run = Run({"first": 1e-3, "a": 1e-4}, rows=1e5)
    while not any(isinstance(action, Prepare) for action in run.actions):
        if any(isinstance(action, Look) for action in run.deliver()):
            run.seen = replace(run.seen, candidates=(Candidate("a", 2e-4, start=1.0),))
    assert run.state.pace is not None
    before, run.seconds["first"] = run.state.pace.row, 2e-3  # they take half of the cores
    for _ in range(30):
        run.deliver()
    assert run.state.pace.row == before
    run.seen = replace(run.seen, ready=frozenset("a"))
    run.deliver()
    assert run.switches == ["a"]


def test_rows_that_were_all_skipped_tell_no_pace() -> None:
    run = Run({"first": 1e-3, "a": 2e-3})
    run.goes_on(3, (Candidate("a", 5e-4),))
    assert run.state.tried
    for _ in range(8):
        seen = run.seen
        run.seen = replace(seen, now=seen.now + 0.1, seconds=seen.seconds + 0.1, tasks=seen.tasks + 1)
        run.step()
    run.goes_on(1)
    assert run.state.pace is not None
    assert math.isfinite(run.state.pace.row)
    assert all(math.isfinite(each.seconds) for each in run.state.tried.values())


def test_the_best_plan_alone_is_got_ready() -> None:
    run = Run({"first": 1e-3, "a": 3e-4, "c": 5e-4}, rows=2e4)
    run.goes_on(0.3, (Candidate("a", 3e-4), Candidate("b", 2.9e-4, start=2.0), Candidate("c", 5e-4)))
    assert [action for action in run.actions if isinstance(action, Prepare)] == [Prepare("a")]


def recalled(run: Run, **results: PlanTrial) -> None:
    """What earlier runs measured, received at the first delivery."""
    run.state = recall(run.state, results, Pace(0.0), {"a": 0.2})


def test_a_plan_that_was_better_in_an_earlier_run_is_tried_at_once() -> None:
    run = Run({"first": 1e-2, "a": 5e-3}, rows=1000)
    recalled(run, first=PlanTrial(1e-2, 1.0), a=PlanTrial(5e-3, 1.5))
    assert run.deliver() == (Prepare("a"),)
    run.seen = replace(run.seen, ready=frozenset({"a"}))
    while not run.switches:
        run.deliver()
    assert run.seen.tasks <= 2 * SETTINGS.tasks + 2, "after the first measurement"
    run.takes_over("a")
    run.goes_on(2)
    assert (run.state.stays, run.switches) == ("a", ["a"])


def test_a_plan_that_was_better_once_and_is_no_longer_goes() -> None:
    run = Run({"first": 1e-2, "a": 2e-2}, rows=10_000)
    recalled(run, first=PlanTrial(1e-2, 1.0), a=PlanTrial(5e-3, 1.5))
    run.goes_on(6)
    assert (run.state.stays, run.switches[:2]) == ("first", ["a", "first"])


def test_a_plan_that_failed_once_in_an_earlier_run_is_tried_when_a_search_proposes_it() -> None:
    run = Run({"first": 1e-2, "a": 5e-3}, rows=10_000)
    recalled(run, first=PlanTrial(1e-2, 1.0), a=PlanTrial(2e-2, 4.0, failed=1))
    run.goes_on(3.9, (Candidate("first", 1e-2), Candidate("a", 5e-3)))
    assert (run.state.stays, run.switches) == ("a", ["a"]), "one noisy trial does not exclude it from later runs"
    assert not run.state.tried["a"].failed


def test_a_plan_that_was_replaced_in_an_earlier_run_is_tried_when_a_search_proposes_it() -> None:
    """Both results may be noise of one moment, and short runs end before they are outdated."""
    run = Run({"first": 1e-2, "a": 5e-3}, rows=300)
    recalled(run, first=PlanTrial(1e-2, 9.0), a=PlanTrial(9.8e-3, 9.0))
    run.goes_on(3, (Candidate("first", 1e-2), Candidate("a", 5e-3)))
    assert (run.state.stays, run.switches) == ("a", ["a"])


@pytest.mark.parametrize(("seconds", "learned"), [(5e-3, True), (2e-2, False)])
def test_a_trial_that_the_end_of_the_run_cuts_off_is_known_if_it_was_faster(seconds: float, learned: bool) -> None:
    run = Run({"first": 1e-2, "a": seconds}, rows=10_000)
    while not run.switches:
        run.goes_on(1e-9, (Candidate("a", 5e-3),))
    assert at_end(run.state, run.seen) == run.state, "no task of the plan has finished"
    run.deliver()
    assert run.state.phase == "tries"
    ended = at_end(run.state, run.seen)
    assert (ended.stays, "a" in ended.tried) == ("first", learned)
    if learned:
        assert ended.tried["a"] == PlanTrial(seconds, run.seen.now)


def test_a_plan_that_failed_again_is_not_tried_at_once() -> None:
    run = Run({"first": 1e-2, "a": 5e-3}, rows=10_000)
    recalled(run, first=PlanTrial(1e-2, 1.0), a=PlanTrial(2e-2, 3.0, failed=2))
    better = (Candidate("first", 1e-2), Candidate("a", 5e-3))
    assert run.state.tried["a"].at == 1.5
    run.goes_on(4.4, better)
    assert run.switches == []
    run.goes_on(60, better)
    assert run.state.stays == "a", "it is retried in the end"


def test_earlier_results_are_dropped_if_the_speed_is_another() -> None:
    """The function is the same, but its data may differ."""
    better = (Candidate("first", 1e-2), Candidate("a", 5e-3))
    for seconds, switches in ((8e-3, []), (4e-3, ["a"])):
        run = Run({"first": 1e-2, "a": 5e-3}, rows=10_000)
        recalled(run, first=PlanTrial(seconds, 9.0), a=PlanTrial(2 * seconds, 9.0, failed=3))
        run.goes_on(4, better)
        assert run.switches == switches


def test_what_this_run_measured_itself_is_not_replaced_by_earlier_results() -> None:
    run = Run({"first": 1e-2, "a": 5e-3})
    run.goes_on(1)
    before = run.state
    recalled(run, first=PlanTrial(1.0, 1.0), a=PlanTrial(5e-3, 1.5))
    assert run.state == before
    other = Run({"first": 1e-2})
    recalled(other, b=PlanTrial(1.0, 1.0), a=PlanTrial(5e-3, 1.5))
    assert other.state == State("first"), "the results are not of the plan that runs"


def test_costs_that_change_make_it_look_again() -> None:
    run = Run({"first": 1e-3, "a": 5e-3}, rows=1e9)
    run.goes_on(60, (Candidate("a", 5e-3),))
    assert run.state.stays == "first"
    assert run.switches == []
    run.seconds["first"] = 1e-2
    run.goes_on(20, (Candidate("a", 5e-3),))
    assert run.state.stays == "a"


def test_noise_does_not_make_it_flap() -> None:
    run = Run({"first": 1e-3, "a": 1e-3}, rows=1e9)
    for i in range(8_000):
        for action in run.deliver(times=0.9 if i % 2 else 1.1):
            if isinstance(action, Look):
                run.seen = replace(run.seen, candidates=(Candidate("a", 9e-4),), looked=run.seen.looked + 0.01)
            elif isinstance(action, Prepare):
                run.seen = replace(run.seen, ready=frozenset("a"))
            else:
                run.takes_over(action.key)
    assert run.seen.now > 50
    assert len(run.switches) < 20


# ---- whatever happens ------------------------------------------------------------------------------------------------

costs = st.dictionaries(st.sampled_from(PLANS), st.floats(1e-5, 1e-1), min_size=len(PLANS))
candidates = st.lists(
    st.builds(
        Candidate, st.sampled_from(PLANS), st.floats(1e-6, 1e-1), st.sampled_from((0.0, 0.0, 1.0)), st.booleans()
    ),
    max_size=5,
)
events = st.lists(
    st.tuples(
        st.integers(1, 200),  # rows
        st.floats(0.2, 5.0),  # times as slow as usual
        st.booleans(),  # a look ends
        st.booleans(),  # what was wanted is ready
        st.booleans(),  # a window ends
        candidates,
    ),
    min_size=20,
    max_size=120,
)


@pytest.mark.heavy
@given(costs, events, st.one_of(st.none(), st.floats(0, 1e6)), st.floats(0, 1e-3), st.sets(st.sampled_from(PLANS[1:])))
def test_its_invariants_hold(
    seconds: dict[str, float], steps: list[Any], rows: float | None, trainer: float, refused: set[str]
) -> None:
    run = Run(seconds, rows, trainer)
    run.seen = replace(run.seen, refused=frozenset(refused))
    looking, under_way, wanted = False, "", set[str]()
    for number, times, ends, ready, window, found in steps:
        if looking and ends:
            run.seen, looking = replace(run.seen, candidates=tuple(found), looked=run.seen.looked + 0.01), False
        if ready:
            run.seen = replace(run.seen, ready=run.seen.ready | (wanted - refused))
        if under_way and window:
            run.takes_over(under_way, cold=0.05)
            under_way = ""
        before = run.state
        for action in run.deliver(number, times):
            if isinstance(action, Look):
                assert not looking
                looking = True
            elif isinstance(action, Prepare):
                assert action.key not in refused
                assert action.key not in wanted
                wanted.add(action.key)
            else:
                assert not under_way, "one switch in flight at most"
                under_way = action.key
                if run.state.phase == "tries":
                    _check_begins(before, run, action.key)
                else:
                    assert action.key == run.state.stays
        _check_stays(before, run)
        assert run.state.spent >= before.spent


def _check_begins(before: State, run: Run, key: str) -> None:
    """A slot is worth its cost, by what was known."""
    state, seen = run.state, run.seen
    assert key in seen.ready
    assert key not in seen.refused
    assert key != state.stays
    assert state.pace is not None
    rest = seen.rows if seen.rest is None else seen.rest
    most = rest * (state.pace.row - state.pace.trainer)
    assert state.known[key].later or most >= SETTINGS.least_gain - 1e-9
    assert state.spent <= SETTINGS.regret * (seen.now + max(most, 0.0)) + 1e-9


def _check_stays(before: State, run: Run) -> None:
    if run.state.stays == before.stays:
        return
    assert before.phase == "tries"
    assert run.state.stays == before.trial
    assert before.pace is not None
    assert run.state.pace is not None
    later = before.known[before.trial].later
    assert later or run.state.pace.row <= before.pace.row * (1 - SETTINGS.better)


@pytest.mark.parametrize("field", ["regret", "tasks"])
def test_the_settings_are_fixed(field: str) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(SETTINGS, field, 1.0)


def test_there_are_a_dozen_constants_at_most() -> None:
    fields = dataclasses.fields(ControllerSettings)
    assert len(fields) <= 12
    for each in fields:
        assert f"        {each.name}: " in (ControllerSettings.__doc__ or ""), "its unit, and why"
