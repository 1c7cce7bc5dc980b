"""How fast a run goes, what it takes around its operators, and which tasks are measured."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cedar
from cedar.control.timeline import TaskTime
from cedar.core.block import Observation
from cedar.engine import observations as run_figures
from cedar.engine.binding import Binding
from cedar.engine.metrics import Metrics
from cedar.engine.observations import RunMeasurements
from cedar.engine.runner import Runner
from cedar.operators.base import Env
from cedar.profile import Machine
from cedar.tasks import clocks
from cedar.tasks.chain import Timing


def test_what_is_around_operators_is_what_tasks_did_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics, spent = Metrics(), [0.0, 0.0]
    monkeypatch.setattr(clocks, "spent_by", lambda _: tuple(spent))
    figures, runner = RunMeasurements(_binding(), metrics), Runner("threads", 2)
    figures.start(runner)
    metrics.time.add(TaskTime([(("operator", (1,)), 5.0, 5.0)]))
    spent[:] = [9.0, 1.0]  # before each worker finished a task: not of this plan
    finish(metrics, figures, 100, tasks=2)
    for _ in range(10):
        metrics.time.elapsed += 0.1
        metrics.time.waited += 0.05
        metrics.time.own += 0.01
        metrics.time.add(TaskTime([(("operator", (1,)), 0.06, 0.06), (("gather", ()), 0.03, 0.02)]))
        spent[0] += 0.08
        spent[1] += 0.02
        finish(metrics, figures, 100)
    profile = figures.profile(local=True)
    assert profile.own == pytest.approx(1e-4)
    assert profile.around == pytest.approx(2e-4)
    assert figures.crowded == pytest.approx(1.25), "others had the cores for a while"
    spent[1] = 0.5
    assert figures.crowded == 1.0, "the system tells nothing of a thread that has ended"
    assert figures.seen.waited == pytest.approx(0.5)
    assert figures.progress == (1000, 10)
    figures.start(runner)  # another epoch under the same plan
    metrics.time.elapsed += 5.0
    finish(metrics, figures, 100, tasks=2)
    metrics.time.elapsed += 0.5
    assert figures.seen.elapsed == pytest.approx(1.5), "its start is not counted"
    figures.renew()
    assert figures.seen.elapsed == 0.0
    runner.close()


@pytest.mark.parametrize(
    ("cores", "planned", "gil"),
    [
        (1.0, 0.0, 1.0),
        (0.7, 0.0, 1.0),  # they may idle for an import, or a slow start
        (1.4, 0.0, pytest.approx(0.65, abs=0.05)),
        (1.9, 0.0, pytest.approx(0.1, abs=0.15)),  # any code that is that busy waits for no other worker
        (1.9, 3.0, pytest.approx(0.1, abs=0.15)),  # while plans were searched, the threads waited for the GIL
    ],
)
def test_how_many_cores_threads_keep_busy_bounds_how_long_the_gil_is_held(
    monkeypatch: pytest.MonkeyPatch, cores: float, planned: float, gil: Any
) -> None:
    monkeypatch.setattr(run_figures, "machine", lambda measure: Machine(2, 1 << 34))
    metrics = Metrics(labels={1: "map"})
    metrics.time.add(TaskTime([(("operator", (1,)), 1.0, 0.0)]))
    figures, runner, ran, clock = RunMeasurements(_binding(), metrics), Runner("threads", 2), [0.0], [0.0]
    monkeypatch.setattr(clocks, "spent_by", lambda _: (ran[0], 0.0))
    clock_time = SimpleNamespace(perf_counter=lambda: clock[0], thread_time=lambda: clock[0])
    monkeypatch.setattr(run_figures, "time", clock_time)
    figures.start(runner)
    finish(metrics, figures, 0, tasks=2)
    clock[0], metrics.time.elapsed, metrics.rows_read, ran[0] = 1.0, 1.0, 100, cores
    with figures.during_planning():
        clock[0], ran[0] = 1.0 + planned, cores + planned / 9
        metrics.time.own = 1.0  # the loader's thread holds the GIL itself, so it is no evidence
        metrics.observe(1, Observation(100, 100, 0, 0, 0.01, 0.01))
        assert figures.profile(local=True).operators[1].gil == gil
    assert figures.profile(local=True).operators[1].gil == gil
    assert figures.planned == planned
    assert figures.profile(local=False).operators[1].gil == gil, "the latest share on threads"
    runner.close()


@pytest.mark.parametrize("ask", [lambda f: f.crowded, lambda f: f.profile(local=True).own], ids=["crowded", "own"])
def test_an_epoch_may_end_while_a_plan_is_made_beside_it(monkeypatch: pytest.MonkeyPatch, ask: Any) -> None:
    figures, runner = RunMeasurements(_binding(), Metrics()), Runner("threads", 2)
    figures.start(runner)
    finish(figures._metrics, figures, 0, tasks=2)
    monkeypatch.setattr(clocks, "spent_by", lambda _: figures.renew() or (1.0, 1.0))
    ask(figures)
    runner.close()


def test_as_many_epochs_are_expected_as_were_begun() -> None:
    metrics, runner = Metrics(), Runner("inline", 1)
    figures = RunMeasurements(_binding(100_000), metrics)
    for epochs in range(1, 4):
        figures.start(runner)
        finish(metrics, figures, 50_000)
        assert figures.rest() == pytest.approx((epochs - 1) * 100_000 + 50_000, rel=0.1)
        finish(metrics, figures, 50_000)


def test_a_rank_counts_its_own_share_of_what_is_left() -> None:
    metrics = Metrics()
    figures = RunMeasurements(_binding(100_000), metrics)
    figures.start(Runner("inline", 1))
    figures.share = 0.25
    finish(metrics, figures, 5_000)
    left = figures.remaining()
    assert left == 20_000


def test_rows_are_estimated_from_bytes_where_no_metadata_count_them(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("ten bytes\n" * 10_000)
    root = cedar.read_text(str(tmp_path / "a.txt")).map(str.upper, "text", dtype=str).batch(10).node
    metrics = Metrics()
    figures = RunMeasurements(Binding(root, None, Env()), metrics)
    figures.start(Runner("inline", 1))
    assert figures.rest() is None
    metrics.read_so_far(0, 1_000, (1,), left=1_000, size=10_000)
    assert figures.rest() == pytest.approx(10_000, rel=0.01)
    metrics.add(Timing(took=1e-3, rows_read=1_000, rows_passed=1_000, read_columns={"text": 20_000}), 0)
    assert figures.remaining() == pytest.approx(5_000, rel=0.01), "the whole split's rows are longer"


def test_processes_are_as_many_as_the_pool_has_that_a_plan_would_use() -> None:
    figures, runner = RunMeasurements(_binding(), Metrics()), Runner("threads", 3, places=True)
    try:
        runner.resize(9)  # threads that wait
        figures.start(runner)
        assert (figures.workers, figures.processes) == (9, 3)
        assert runner.of("processes").workers == figures.processes
    finally:
        runner.close()


def test_rows_of_readers_that_are_a_window_ahead_are_not_taken_for_done() -> None:
    """A plan that has read all of a window, and worked on a tenth of it, has not done all that the window takes."""
    metrics = Metrics()
    figures, runner = RunMeasurements(_binding(), metrics), Runner("inline", 1)
    figures.start(runner)

    def work(reads: int, above: int) -> None:
        for _ in range(reads):
            metrics.add(Timing(took=0.01, rows_read=100), 0, rows=100, operators=(1,), left=50)  # half of them
            figures.note_task()
        for _ in range(above):
            metrics.add(Timing(took=0.09), None, rows=50, operators=(3,))
            figures.note_task()

    work(10, 10)
    figures.renew()
    work(11, 1)  # one begins what is measured
    assert figures.progress.tasks == 10, "of the readers, which worked longer"
    done = (10 * 0.01 + 0.09) / (0.01 / 100 + 0.09 * 0.5 / 50)
    assert figures.progress.rows == pytest.approx(done)
    assert figures.progress.rows < 200 < figures.read
    assert figures.finished < 1_500 < figures.read


def test_rows_that_other_stages_finished_under_an_earlier_plan_stay_finished() -> None:
    metrics = Metrics()
    figures = RunMeasurements(_binding(), metrics)
    figures.start(Runner("inline", 1))
    metrics.add(Timing(took=0.01, rows_read=1000), 0, rows=1000, operators=(), left=1000)
    metrics.add(Timing(took=0.99), None, rows=1000, operators=(1, 2))
    assert figures.finished == pytest.approx(1000)
    figures.renew()  # the next plan runs the two operators in two stages
    for stage in (1, 2):
        metrics.add(Timing(took=0.05), None, rows=10, operators=(stage,))
    assert figures.finished == pytest.approx(1010)


def test_tasks_that_began_with_more_threads_are_not_measured() -> None:
    metrics = Metrics()
    figures, runner = RunMeasurements(_binding(), metrics), Runner("threads", 2)
    figures.start(runner)
    finish(metrics, figures, 100, tasks=2)
    figures.workers = 1
    figures.renew()
    finish(metrics, figures, 100, tasks=2)  # both may have begun before
    assert figures.progress == (0, 0)
    finish(metrics, figures, 100, tasks=1)
    assert figures.progress == (100, 1)
    runner.close()


def test_what_is_measured_begins_once_each_worker_finished_a_task() -> None:
    metrics = Metrics()
    figures, runner = RunMeasurements(_binding(), metrics), Runner("threads", 3)
    figures.start(runner)
    finish(metrics, figures, 100, tasks=2)
    assert figures.progress == (0, 0)
    finish(metrics, figures, 100, tasks=3)
    assert figures.progress == (200, 2)
    runner.close()


def finish(metrics: Metrics, figures: RunMeasurements, rows: int, tasks: int = 1, wall: float = 1e-3) -> None:
    """So many tasks that read as many rows each."""
    for _ in range(tasks):
        metrics.add(Timing(took=wall, rows_read=rows), 0, rows=rows, operators=(1,))
        figures.note_task()


def _binding(rows: int = 1) -> Binding:
    root = cedar.from_items([{"x": i} for i in range(rows)]).map(abs, "x", dtype=int).batch(10).node
    return Binding(root, None, Env())
