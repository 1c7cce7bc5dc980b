"""What was measured predicts the run that it comes from."""

import pytest

from cedar.simulate import Durations, error, predict
from cedar.trainers.resilient.planner import Problem, plan
from cedar.trainers.resilient.schedule import Costs, Instruction, Worker, timeline


def test_durations_that_were_measured_predict_the_run_they_come_from():
    problem = Problem(3, 2, 4, frozenset({Worker(1, 0)}), costs=Costs((0.1, 0.2, 0.1), 0.1, 0.05, 0.01, 0.3, 0.1))
    schedule = plan(problem).schedule
    real = timeline(schedule, problem.costs, iterations=4, spans=True)
    computed = [s for s in real.spans if s.step.kind[:4] not in {"SEND", "RECV"}]
    durations = Durations({(s.step.kind, s.worker.stage): s.end - s.start for s in computed}, transfer=0.01)
    assert durations(Worker(1, 1), Instruction("F", 0, 0)) == pytest.approx(0.2)
    assert durations(Worker(1, 1), Instruction("SEND_F", 0, 0, 0)) == 0
    assert error(predict(schedule, durations, 4).period, real.period) < 1e-6
    assert error(1.05, 1.0) == 0.05
