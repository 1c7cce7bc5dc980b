"""What was measured, as costs of plans and as seconds of instructions."""

from cedar.trainers.resilient.schedule import Durations, Instruction, Worker

MEASURED = Durations({("F", 0): 0.101, ("B", 0): 0.2, ("ALL_REDUCE", 0): 0.3, ("STEP", 0): 0.1}, transfer=0.012)


def test_costs_are_rounded_to_a_twentieth_of_the_largest():
    costs = MEASURED.costs(1)
    assert costs.stage(0) == (0.101, 0.101, 0.101)  # a backward in one counts as two halves
    assert (costs.reduce, costs.step) == (0.3, 0.1)
    assert abs(costs.transfer - 0.0101) < 1e-9


def test_seconds_are_those_of_the_kind_at_the_stage():
    assert MEASURED(Worker(0, 3), Instruction("F", 0, 0)) == 0.101
    assert MEASURED(Worker(1, 0), Instruction("F", 0, 0)) == 0.0
