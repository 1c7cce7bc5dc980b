"""The schedule language: files, routes, redone steps, timelines and pictures."""

import json
from itertools import pairwise

import pytest

from cedar.trainers.resilient.planner import Problem, one_f_one_b, plan, zero_bubble
from cedar.trainers.resilient.schedule import (
    Costs,
    Instruction,
    Schedule,
    ScheduleError,
    Worker,
    chart,
    from_plain,
    gantt,
    load,
    pairs,
    save,
    serve,
    timeline,
    to_plain,
    validate,
)

DEAD = frozenset({Worker(2, 1)})


def small(**changes):
    return plan(Problem(**{"stages": 3, "replicas": 2, "micro_batches": 3, "dead": DEAD} | changes)).schedule


def test_a_schedule_comes_back_from_its_file_as_it_was(tmp_path):
    schedule = serve(small(memory=3, mode="sync"), frozenset({1}))
    save(schedule, str(tmp_path / "plan.json"))
    assert load(str(tmp_path / "plan.json")) == schedule
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize(
    "change",
    [
        {"stages": "3"},
        {"replicas": True},
        {"format": 1},
        {"mode": "fast"},
        {"tied": 1},
        {"caps": [1.5]},
        {"dead": [[1]]},
        {"dead": 3},
        {"work": 3},
        {"work": [[[0], []]]},
        {"work": [[[0, 0], [["F", 0]]]]},
        {"work": [[[0, 0], [["F", 0, 0, 0, 0]]]]},
        {"work": [[[0, 0], [["JUMP", 0, 0, -1]]]]},
        {"work": [[[0, 0], [["F", 0, "x", -1]]]]},
        {"work": [[[0, 0], [3]]]},
        {"serving": None},
    ],
)
def test_a_damaged_file_is_refused_with_its_name(tmp_path, change):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(to_plain(small()) | change))
    with pytest.raises(ScheduleError, match="plan.json"):
        load(str(path))


def test_what_is_no_json_or_not_there_is_refused(tmp_path):
    with pytest.raises(ScheduleError, match="cannot be read"):
        load(str(tmp_path / "none.json"))
    (tmp_path / "half.json").write_text('{"format": 1, ')
    with pytest.raises(ScheduleError, match="no JSON"):
        load(str(tmp_path / "half.json"))
    with pytest.raises(ScheduleError, match="cannot be read"):
        from_plain([1, 2])


def test_routes_lead_to_live_workers_and_home_where_home_is_alive():
    schedule = small()
    for stage in range(3):
        for replica in range(2):
            for number in range(3):
                worker = schedule.route(stage, replica, number)
                assert worker not in DEAD
                assert worker == (stage, replica) or (stage, replica) in DEAD
    with pytest.raises(ScheduleError, match="nobody works micro-batch 0.9 at stage 1"):
        schedule.route(1, 0, 9)


def test_every_message_of_any_plan_goes_between_a_pair_that_is_warmed_up():
    warm = set(pairs(3, 2))
    for dead in (frozenset(), DEAD, frozenset({Worker(0, 0), Worker(1, 1)})):
        assert set(validate(small(dead=dead)).channels) <= warm
    assert (Worker(0, 0), Worker(2, 1)) not in warm
    assert (Worker(0, 0), Worker(2, 1)) in set(pairs(3, 2, tied=True))


@pytest.mark.parametrize("mode", ["sync", "staggered"])
@pytest.mark.parametrize("stages", [{0}, {2}, {1, 2}, {0, 1, 2}])
def test_a_redone_step_is_proven_whichever_stages_only_serve(mode, stages):
    schedule = serve(small(mode=mode), frozenset(stages))
    facts = validate(schedule)
    for worker, instructions in schedule.work.items():
        kinds = {step.kind for step in instructions}
        assert ("STEP" in kinds) is ("B_WEIGHT" in kinds) is (worker.stage not in stages)
        assert facts.live[worker] <= 6
    assert timeline(schedule, iterations=2).ends[0] > 0


def test_a_fused_backward_is_served_as_b_input():
    schedule = serve(one_f_one_b(Problem(2, 2, 2)), frozenset({1}))
    validate(schedule)
    assert {step.kind for step in schedule.work[Worker(1, 0)]} == {"RECV_F", "F", "B_INPUT", "SEND_B"}


def test_tied_stages_serve_together():
    with pytest.raises(ScheduleError, match="step together"):
        validate(serve(small(tied=True), frozenset({0})))
    validate(serve(small(tied=True), frozenset({0, 2})))


def test_the_picture_of_1f1b_is_the_known_one():
    assert gantt(one_f_one_b(Problem(3, 1, 4))).splitlines() == [
        "(0, 0) F0F1F2. . . . D0D0F3D1D1. D2D2. D3D3",
        "(1, 0) . F0F1. . D0D0F2D1D1F3D2D2. D3D3. .",
        "(2, 0) . . F0D0D0F1D1D1F2D2D2F3D3D3. . . .",
    ]


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
    with pytest.raises(ScheduleError, match="wait for ever"):
        timeline(Schedule(2, 1, 1, {Worker(0, 0): one, Worker(1, 0): two}))


def test_pictures_show_work_for_other_pipelines_and_bubbles(tmp_path):
    schedule = small()
    lines = gantt(schedule, Costs(reduce=1, step=1)).splitlines()
    assert len(lines) == 5
    assert lines[-1].startswith("(2, 0) . . F")
    assert "f" in lines[-1]
    assert "A S" in lines[-1]
    assert all(len(line) <= 7 + 2 * 4 for line in gantt(schedule, width=4).splitlines())
    path = tmp_path / "plan.png"
    chart(schedule, str(path), iterations=2)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_zero_bubble_ends_sooner_than_1f1b_with_the_same_memory():
    problem = Problem(4, 2, 6, memory="1f1b", mode="sync")
    facts = validate(zero_bubble(problem))
    assert max(facts.live.values()) <= 4 == max(validate(one_f_one_b(problem)).live.values())
    assert timeline(zero_bubble(problem)).makespan < timeline(one_f_one_b(problem)).makespan
