"""What is planned for: who works what for the dead, and which numbers are none."""

import pytest
from hypothesis import given

from cedar.trainers.resilient.planner import Problem
from cedar.trainers.resilient.schedule import Costs, ScheduleError, Worker
from tests.trainers.resilient.planner.toy_problems import problems


@given(problems())
def test_work_is_spread_evenly_over_the_live_workers_of_a_stage(problem):
    for stage, routes in enumerate(problem.routes):
        taken = [routes.count(replica) - problem.micro_batches for replica in problem.alive(stage)]
        assert max(taken) - min(taken) <= 1
        assert sum(taken) == problem.micro_batches * (problem.replicas - len(taken))
        assert problem.load[stage] == max(taken) + problem.micro_batches


def test_a_problem_that_cannot_be_planned_is_refused():
    for numbers in ((0, 1, 1), (1, 0, 1), (1, 1, 0), (True, 1, 1), (1.0, 1, 1)):
        with pytest.raises(ScheduleError, match="integer"):
            Problem(*numbers)
    with pytest.raises(ScheduleError, match="stage 1 has no live worker"):
        Problem(2, 1, 1, frozenset({Worker(1, 0)}))
    with pytest.raises(ScheduleError, match="not in a grid"):
        Problem(2, 1, 1, frozenset({Worker(2, 0)}))
    with pytest.raises(ScheduleError, match="mode"):
        Problem(2, 1, 1, mode="fast")
    for memory in (0, "2f2b"):
        with pytest.raises(ScheduleError, match="memory"):
            Problem(2, 1, 1, memory=memory)
    with pytest.raises(ScheduleError, match="3 values for 2 stages"):
        Problem(2, 1, 1, costs=Costs(forward=(1, 1, 1)))
