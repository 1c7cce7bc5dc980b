"""Pictures of schedules: the known one, other pipelines' work, and bubbles."""

from cedar.trainers.resilient.planner import Problem, one_f_one_b
from cedar.trainers.resilient.schedule import Costs, chart, gantt
from tests.trainers.resilient.schedule.toy_schedules import small


def test_the_picture_of_1f1b_is_the_known_one():
    assert gantt(one_f_one_b(Problem(3, 1, 4))).splitlines() == [
        "(0, 0) F0F1F2. . . . D0D0F3D1D1. D2D2. D3D3",
        "(1, 0) . F0F1. . D0D0F2D1D1F3D2D2. D3D3. .",
        "(2, 0) . . F0D0D0F1D1D1F2D2D2F3D3D3. . . .",
    ]


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
