"""Timelines: costs, one thing at a time, and an end."""

from itertools import pairwise

import pytest

from cedar.simulate import one_f_one_b, zero_bubble
from cedar.trainers.resilient.planner import Problem
from cedar.trainers.resilient.schedule import Costs, Instruction, Schedule, ScheduleError, Worker, timeline, validate
from tests.trainers.resilient.schedule.toy_schedules import small


def test_timelines_follow_the_costs():
    schedule = one_f_one_b(Problem(3, 1, 4))
    assert timeline(schedule).makespan == (4 + 3 - 1) * 3
    assert timeline(schedule, iterations=4).period == (4 + 3 - 1) * 3
    slow = Costs(forward=2, backward_input=2, backward_weight=2, step=5, reduce=1)
    assert timeline(schedule, slow).makespan == 2 * 18 + 6
    late = timeline(schedule, Costs(transfer=1)).makespan
    assert late == timeline(schedule, Costs().of, transfer=1).makespan > 18
    with pytest.raises(ScheduleError, match="2 values for 3 stages"):
        timeline(schedule, Costs(forward=(1, 1)))
    with pytest.raises(ScheduleError, match="forward"):
        Costs(forward=-1)


def test_a_worker_does_one_thing_at_a_time_and_receives_what_was_sent():
    schedule = small(memory="1f1b")
    spans = timeline(schedule, Costs(transfer=0.5), iterations=2, spans=True).spans
    assert len(spans) == 2 * sum(map(len, schedule.work.values()))
    for worker in schedule.live:
        mine = [span for span in spans if span.worker == worker]
        assert [span.step for span in mine if span.iteration == 0] == list(schedule.work[worker])
        assert all(a.end <= b.start for a, b in pairwise(mine))
    sent = {
        (s.iteration, s.worker, s.step.other(s.worker), s.step[1:3]): s.end for s in spans if s.step.kind[:4] == "SEND"
    }
    got = {
        (s.iteration, s.step.other(s.worker), s.worker, s.step[1:3]): s.end for s in spans if s.step.kind[:4] == "RECV"
    }
    assert sent.keys() == got.keys()
    assert all(got[key] >= sent[key] + 0.5 for key in sent)


def test_a_timeline_of_workers_that_wait_for_each_other_ends_in_an_error():
    one = (Instruction("RECV_B", 0, 0, 0), Instruction("F", 0, 0))
    two = (Instruction("RECV_F", 0, 0, 0), Instruction("F", 0, 0))
    with pytest.raises(ScheduleError, match="wait forever"):
        timeline(Schedule(2, 1, 1, {Worker(0, 0): one, Worker(1, 0): two}))


def test_zero_bubble_ends_sooner_than_1f1b_with_the_same_memory():
    problem = Problem(4, 2, 6, memory="1f1b", mode="sync")
    facts = validate(zero_bubble(problem))
    assert max(facts.live.values()) <= 4 == max(validate(one_f_one_b(problem)).live.values())
    assert timeline(zero_bubble(problem)).makespan < timeline(one_f_one_b(problem)).makespan
