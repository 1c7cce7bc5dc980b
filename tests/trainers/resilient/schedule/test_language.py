"""The schedule language: files, routes and redone steps."""

import json

import pytest

from cedar.simulate import one_f_one_b
from cedar.trainers.resilient.planner import Problem
from cedar.trainers.resilient.schedule import (
    ScheduleError,
    Worker,
    from_plain,
    load,
    pairs,
    save,
    serve,
    timeline,
    to_plain,
    validate,
)
from tests.trainers.resilient.schedule.toy_schedules import DEAD, small


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
        {"tied": ["a"]},
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
    with pytest.raises(ScheduleError, match="not JSON"):
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
    with pytest.raises(ScheduleError, match="nothing works micro-batch 0.9 at stage 1"):
        schedule.route(1, 0, 9)


def test_every_message_of_any_plan_goes_between_a_pair_that_is_warmed_up():
    warm = set(pairs(3, 2))
    for dead in (frozenset(), DEAD, frozenset({Worker(0, 0), Worker(1, 1)})):
        assert set(validate(small(dead=dead)).channels) <= warm
    assert (Worker(0, 0), Worker(2, 1)) not in warm
    assert (Worker(0, 0), Worker(2, 1)) in set(pairs(3, 2, tied=(0, 2)))


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
        validate(serve(small(tied=(0, 2)), frozenset({0})))
    validate(serve(small(tied=(0, 2)), frozenset({0, 2})))
