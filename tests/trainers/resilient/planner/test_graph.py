"""Orders of tasks as arrays: they take as long as their schedules do, and those that cannot be carried out are none."""

from __future__ import annotations

import pytest
from hypothesis import given

from cedar.trainers.resilient.planner import Problem
from cedar.trainers.resilient.planner.graph import Graph, emit, measure
from cedar.trainers.resilient.planner.search import policies, schedule
from cedar.trainers.resilient.schedule import Worker, timeline, validate
from tests.trainers.resilient.planner.toy_problems import problems

TWO = Problem(2, 1, 2)  # nodes of (0, 0) are 0 to 5, those of (1, 0) are 6 to 11


@given(problems())
def test_an_order_takes_as_long_as_its_schedule_does(problem):
    graph = Graph.from_problem(problem)
    order = schedule(graph, next(policies()))[-1]
    assert sorted(node for nodes in order for node in nodes) == list(range(graph.nodes))
    times, made = measure(graph, order), emit(problem, graph.tasks(order))
    validate(made)
    assert times.makespan == pytest.approx(timeline(made, problem.costs).makespan)


def test_what_was_sent_earlier_is_received_before_what_is_needed():
    made = emit(TWO, Graph.from_problem(TWO).tasks([[0, 3, 4, 5, 1, 2], [9, 10, 11, 6, 7, 8]]))
    told = [str(step) for step in made.work[Worker(1, 0)]]
    assert told[:5] == ["RECV_F 0.0 from 0", "RECV_F 0.1 from 0", "F 0.1", "B_INPUT 0.1", "SEND_B 0.1 to 0"]
    validate(made)


@pytest.mark.parametrize(
    "order",
    [
        [[1, 0, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]],  # a backward before its forward
        [[0, 1, 2, 3, 4, 5], [9, 10, 11, 6, 7, 8]],  # each waits for what the other does later
    ],
)
def test_an_order_that_cannot_be_carried_out_has_no_times(order):
    graph = Graph.from_problem(TWO)
    assert measure(graph, [sorted(nodes) for nodes in order]) is not None
    assert measure(graph, order) is None
