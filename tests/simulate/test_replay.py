"""The simulator: other systems manually-worked numbers, traces, and what is lost and done while they are replayed."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.simulate import (
    SYSTEMS,
    Event,
    Trace,
    bamboo_time,
    drop_replica_time,
    fault_free_time,
    one_f_one_b_time,
    oobleck_time,
    phases,
    random_dead,
    random_trace,
    read_trace,
    replay,
    resilient_time,
    throughput_bound,
    zero_bubble_time,
)
from cedar.trainers.resilient.planner import Problem, normal, plan
from cedar.trainers.resilient.schedule import Costs, ScheduleError, Worker, grid

TOY = Problem(4, 3, 6, frozenset({Worker(2, 1)}))

# ---- other systems ---------------------------------------------------------------------------------------------------


def test_other_systems_take_what_is_worked_out_by_hand():
    assert one_f_one_b_time(TOY) == 27
    assert drop_replica_time(TOY) == (9 + 3) * 3
    # 4 slots of 3 spread over 3 workers are 4 each: 5 micro-batches there, 6 and 7 in the other pipelines
    assert oobleck_time(TOY) == 30
    # the damaged pipeline takes 6.9 a slot, the others 3.45: 2 micro-batches there, 8 and 8 in the others
    assert bamboo_time(TOY) == pytest.approx((8 + 3) * 3.45)
    assert throughput_bound(TOY) == 1.0
    assert throughput_bound(replace(TOY, micro_batches=24)) == pytest.approx(2 / 3 * 27 / 24)


def test_without_failures_the_others_take_what_1f1b_takes():
    whole = replace(TOY, dead=frozenset(), costs=Costs(reduce=2, step=1))
    assert drop_replica_time(whole) == oobleck_time(whole) == one_f_one_b_time(whole) == 30
    assert bamboo_time(whole) == pytest.approx(27 * 1.15 + 3)


def test_what_a_system_cannot_live_through_takes_for_ever():
    every = frozenset(Worker(replica, replica) for replica in range(3))
    assert drop_replica_time(replace(TOY, dead=every)) == math.inf
    neighbors = frozenset(Worker(stage, replica) for replica in range(3) for stage in (replica, replica + 1))
    broken = Problem(5, 4, 2, neighbors | {Worker(0, 3), Worker(4, 3)})
    assert bamboo_time(broken) == math.inf
    halves = Problem(4, 2, 2, frozenset({Worker(0, 0), Worker(1, 0), Worker(2, 0), Worker(3, 1)}))
    assert oobleck_time(halves) == (4 + 3 - 1) * 4, "a pipeline of less than half its workers does not continue"
    assert resilient_time(replace(TOY, dead=every)) < math.inf


def test_our_plans_lose_nothing_to_one_failure_of_the_toy_and_own_baselines_stand_beside():
    assert resilient_time(TOY) == one_f_one_b_time(TOY)
    assert fault_free_time(TOY) < zero_bubble_time(TOY) < one_f_one_b_time(TOY)


@pytest.mark.heavy
@pytest.mark.parametrize("rate", [0.01, 0.05, 0.1])
def test_at_the_memory_of_1f1b_plans_are_never_below_bamboo_and_drop_a_replica(rate):
    base = Problem(4, 8, 8, memory="1f1b")
    for seed in range(3):
        problem = replace(base, dead=random_dead(base, rate, seed))
        ours = plan(problem).period
        assert ours <= bamboo_time(problem)
        assert ours <= drop_replica_time(problem)
    spread = replace(base, dead=normal(base, len(problem.dead)))
    assert plan(spread).period <= oobleck_time(spread) / 0.93


# ---- traces ----------------------------------------------------------------------------------------------------------

SPOT = """\
480000,add,node1
540000,add,node2
540000,add,node3
600000,add,node4
1440000,remove,node3
1500000,add,node5
1560000,remove,node1
1560000,remove,node2
"""


def test_a_spot_trace_is_read(tmp_path):
    path = tmp_path / "spot.csv"
    path.write_text(SPOT)
    trace = read_trace(str(path))
    assert trace.events[0] == Event(480.0, "add", "node1")
    assert trace.events[4] == Event(1440.0, "remove", "node3")
    assert (len(trace.events), trace.seconds) == (8, 1560.0)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("soon,add,node9", "event 9: 'soon,add,node9' is not milliseconds"),
        ("1600000,reboot,node4", "is not milliseconds"),
        ("1600000,remove", "is not milliseconds"),
        ("1600000,remove,node4,now", "is not milliseconds"),
        ("1600000,remove,", "is not milliseconds"),
        ("-5,remove,node4", "is not milliseconds"),
        ("1000,remove,node4", "event 9: 1 s is before 1560 s"),
        ("1600000,remove,node1", "remove node1, which is not there"),
        ("1600000,add,node4", "add node4, which is there"),
    ],
)
def test_a_line_that_is_no_event_is_refused_with_its_number(tmp_path, line, told):
    path = tmp_path / "spot.csv"
    path.write_text(SPOT + line + "\n")
    with pytest.raises(ScheduleError) as failure:
        read_trace(str(path))
    assert told in str(failure.value)
    assert "spot.csv" in str(failure.value)


def test_a_trace_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ScheduleError, match="cannot be read"):
        read_trace(str(tmp_path / "none.csv"))
    (tmp_path / "image.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScheduleError, match="cannot be read"):
        read_trace(str(tmp_path / "image.csv"))


def test_random_traces_are_fixed_by_their_seed_and_as_bad_as_asked():
    trace = random_trace(50, failure=900, repair=100, seconds=20_000, seed=3)
    assert trace == random_trace(50, failure=900, repair=100, seconds=20_000, seed=3)
    assert trace != random_trace(50, failure=900, repair=100, seconds=20_000, seed=4)
    up, before, there = 0.0, 0.0, 0
    for event in trace.events:
        up += there * (event.seconds - before)
        before, there = event.seconds, there + (1 if event.kind == "add" else -1)
    assert up / (50 * before) == pytest.approx(0.9, abs=0.02)


def test_random_failures_leave_every_stage_a_worker():
    problem = Problem(4, 3, 2)
    for seed in range(20):
        dead = random_dead(problem, 0.6, seed)
        assert len(dead) == 7
        assert all(len({w for w in dead if w.stage == stage}) < 3 for stage in range(4))
    assert random_dead(problem, 0) == frozenset()
    assert len(random_dead(problem, 0.001)) == 1
    with pytest.raises(ScheduleError, match="kills 11 of 12"):
        random_dead(problem, 0.9)


# ---- replay ----------------------------------------------------------------------------------------------------------


def test_machines_fill_the_weakest_stage_wait_as_spares_and_step_in(tmp_path):
    (tmp_path / "spot.csv").write_text(SPOT)
    found = list(phases(Problem(2, 2, 2), read_trace(str(tmp_path / "spot.csv")), seconds=2000))
    every = set(grid(2, 2))
    assert [(p.start, p.end) for p in found] == [
        (0, 480), (480, 540), (540, 600), (600, 1440), (1440, 1500), (1500, 1560), (1560, 2000),
    ]  # fmt: skip
    dead = [p.dead for p in found]
    assert dead[:3] == [None, None, frozenset({Worker(1, 1)})]
    assert dead[3] == dead[5] == frozenset()
    assert dead[4] == frozenset({Worker(0, 1)})
    assert dead[6] is None or len(every - dead[6]) == 2
    spare = Trace((*(Event(0, "add", f"n{i}") for i in range(3)), Event(5, "remove", "n0"), Event(9, "remove", "n2")))
    assert [p.dead for p in phases(Problem(2, 1, 1), spare)] == [frozenset(), frozenset()]
    assert [p.dead for p in phases(Problem(2, 1, 1), spare, seconds=10)] == [frozenset(), frozenset(), None]


@given(st.integers(0, 1000), st.integers(1, 3), st.integers(1, 3), st.integers(0, 3))
def test_phases_cover_the_trace_and_count_machines(seed, stages, replicas, spares):
    trace = random_trace(stages * replicas + spares, 50, 30, 200, seed)
    found = list(phases(Problem(stages, replicas, 1), trace, seconds=200))
    assert all(a.end == b.start for a, b in pairwise(found))
    assert found[0].start == 0
    assert found[-1].end == 200
    for phase in found:
        there = {e.node for e in trace.events if e.kind == "add" and e.seconds <= phase.start} - set()
        for event in trace.events:
            if event.seconds <= phase.start:
                (there.add if event.kind == "add" else there.discard)(event.node)
        used = min(len(there), stages * replicas)
        if phase.dead is not None:
            assert len(phase.dead) == stages * replicas - used


def test_a_replay_counts_steps_pauses_and_idle_time():
    trace = Trace(
        (*(Event(0, "add", f"n{i}") for i in range(4)), Event(90, "remove", "n3"), Event(150, "remove", "n2"))
    )
    problem = Problem(2, 2, 2)
    time_of = lambda p: 9.0 if not p.dead else 12.0 if len(p.dead) == 1 else math.inf
    found = replay(problem, trace, time_of, seconds=200, pause=2)
    assert found.steps == pytest.approx(90 / 9 + (60 - 2 - 6) / 12)
    assert (found.changes, found.seconds) == (2, 200)
    assert found.idle == pytest.approx(2 + 6 + 50)
    assert found.rate == found.steps / 200
    assert replay(problem, trace, time_of, slot=2, seconds=90).steps == 5


@pytest.mark.heavy
def test_every_system_replays_a_trace_and_ours_does_no_less_than_bamboo_and_drop_a_replica():
    problem = Problem(4, 4, 6, memory="1f1b")
    trace = random_trace(16, failure=3000, repair=300, seconds=3000, seed=1)
    steps = {name: replay(problem, trace, name, slot=0.5, pause=1).steps for name in SYSTEMS}
    assert min(steps.values()) >= 0
    assert steps["resilient"] > max(steps["bamboo"], steps["drop a replica"]) > 0
