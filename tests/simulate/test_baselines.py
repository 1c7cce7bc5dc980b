"""The schedules of others are those of their papers."""

import pytest

from cedar.simulate import one_f_one_b, zero_bubble
from cedar.trainers.resilient.planner import Problem
from cedar.trainers.resilient.schedule import Worker, timeline, validate


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (2, 5), (3, 2), (4, 8), (6, 3)])
def test_1f1b_without_failures_is_the_textbook_order(stages, micro_batches):
    schedule = one_f_one_b(Problem(stages, 2, micro_batches))
    for worker, instructions in schedule.work.items():
        warm = min(stages - worker.stage - 1, micro_batches)
        kinds = "F" * warm + "FB" * (micro_batches - warm) + "B" * warm
        assert "".join(s.kind for s in instructions if s.kind in {"F", "B"}) == kinds
    assert timeline(schedule).makespan == 3 * (micro_batches + stages - 1)
    for worker, live in validate(schedule).live.items():
        assert live == min(stages - worker.stage, micro_batches)


def test_zero_bubble_is_the_plan_of_a_strict_policy():
    assert validate(zero_bubble(Problem(3, 2, 4))).live[Worker(0, 0)] <= 3
