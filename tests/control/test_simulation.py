"""The controller on simulated machines: some of what ``python -m benchmarks.controller`` replays."""

from __future__ import annotations

import pytest

from benchmarks.controller_simulation import PROCESSES, THREADS, WRITTEN, Trace, controlled, fixed, regret, traces
from cedar.control.controller import ControllerSettings

TRACES = 100


@pytest.mark.heavy
def test_it_is_near_the_best_plan_in_hindsight() -> None:
    found = [regret(trace) for trace in traces(TRACES, seed=1)]
    least = ControllerSettings().least_gain
    within = [each.beyond(each.window + least) <= 0.03 for each in found]
    assert sum(within) >= 0.9 * TRACES
    assert sum(each.slower <= 0.03 for each in found) >= 0.97 * TRACES


def test_a_trace_is_replayed_alike() -> None:
    for trace in traces(5, seed=2):
        assert controlled(trace) == controlled(trace)
        assert fixed(trace, WRITTEN) == fixed(trace, WRITTEN)


def _quiet(trace: Trace) -> bool:
    return not trace.busy and trace.later is trace.costs and trace.costs.cpu * trace.rows * trace.epochs > 30


@pytest.mark.heavy
def test_a_quiet_run_ends_with_the_plan_that_is_best_by_far() -> None:
    ends = []
    for trace in traces(TRACES, seed=3):
        took = {plan: fixed(trace, plan) for plan in trace.plans}
        best = min(took, key=lambda plan: took[plan])
        second = min(seconds for plan, seconds in took.items() if plan != best)
        if _quiet(trace) and second > 1.3 * took[best] and min(took.values()) > 5:
            ends.append(controlled(trace).plan == best)
    assert len(ends) > 5
    assert all(ends)


def test_the_plans_of_a_trace_are_those_that_a_user_may_choose() -> None:
    trace = next(traces(1))
    assert {WRITTEN, THREADS, PROCESSES} <= set(trace.plans)
