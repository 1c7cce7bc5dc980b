"""Plans that are tried in a run, kept where they are better, and left where they are not."""

from __future__ import annotations

import dataclasses
import itertools
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

import cedar
from cedar.core.block import Observation
from cedar.engine import background
from cedar.engine import observations as run_figures
from cedar.engine import plan_control as planning
from cedar.engine.background import Calls
from cedar.engine.binding import Binding
from cedar.engine.delivery import iteration
from cedar.engine.first_rows import FirstRows
from cedar.engine.metrics import Metrics
from cedar.engine.plan_control import Plans
from cedar.engine.runner import Runner
from cedar.executors import processes
from cedar.executors.choose import InlineExecutor
from cedar.operators import native as kernels
from cedar.operators.base import Env
from cedar.plan.data import Decision, Difference, Plan, Prediction
from cedar.plan.steps import Place
from cedar.profile import Machine, Profile
from cedar.tasks import chain, clocks
from cedar.tasks.chain import Timing
from tests.plan.toy_plans import stepped

pytestmark = pytest.mark.timeout(60)

# ---- a function whose cost changes in the middle of the epoch --------------------------------------------------------

ROWS = 12_000
CHEAP, DEAR = 5e-4, 1e-2  # seconds a row: all early looks are over when it changes


class Clock:
    """Time passes only where a function says that it took some."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    thread_time = perf_counter

    def reading(self) -> clocks.Reading:
        return clocks.Reading(self.now, self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time of the run; plans are made between two batches, and take none."""
    made = Clock()
    for module in (iteration, chain, planning, run_figures):
        monkeypatch.setattr(module, "time", made)
    monkeypatch.setattr(clocks, "now", made.reading)

    def at_once(work: Callable[..., None], *args: Any) -> threading.Thread:
        before = made.now
        work(*args)
        made.now = before  # what a check calls is not on the run's time
        return threading.Thread()

    monkeypatch.setattr(planning, "start_background_thread", at_once)
    return made


@pytest.mark.heavy
def test_a_function_that_becomes_dear_changes_the_plan(tmp_path: Any, clock: Clock) -> None:
    calls = itertools.count()
    dear: set[str] = set()

    def costs(name: str, seconds: float) -> None:
        clock.now += DEAR if name in dear else seconds

    def first(x: int) -> bool:
        costs("first", CHEAP)
        return x % 4 == 0

    def second(y: int) -> bool:
        if next(calls) == ROWS // 8:  # from here on, the other one had better come first
            dear.add("first")
        costs("second", CHEAP * 2)
        return y % 4 == 0

    table = [{"x": i, "y": i // 4} for i in range(ROWS)]
    cedar.from_items(table).write_parquet(str(tmp_path / "in"))
    pipeline = cedar.read_parquet(str(tmp_path / "in")).filter(first, "x").filter(second, "y").batch(16, last="keep")
    with pipeline.loader(executor=InlineExecutor(), workers=1) as run:
        found = [y for batch in run for y in batch["y"].tolist()]
        plan, history = run.plan, run._epochs.job.plans.history
    assert found == [row["y"] for row in table if row["x"] % 4 == 0 and row["y"] % 4 == 0]
    assert history, "the plan was replaced"
    assert [n.operator.label() for n in cedar.plan.graph.walk(plan.root)][1:3] == ["filter(second)", "filter(first)"]


# ---- what becomes of plans -------------------------------------------------------------------------------------------


_PLANNERS = itertools.count()


class Stubborn:
    """A planner that always proposes the same plans, whatever it is told."""

    most_workers: int | None = 32

    def __init__(self, *plans: Plan) -> None:
        self.plans, self.asked = plans, 0
        self.limits: tuple[object, ...] = (next(_PLANNERS),)  # so that a test does not receive another test's results

    def candidates(self, _: Profile) -> tuple[Plan, ...]:
        self.asked += 1
        return self.plans

    def checked(self, plan: Plan, *_: Any) -> Plan:
        return plan

    def admit(self, plan: Plan, *_: Any) -> Plan:
        return plan

    def with_prediction(self, plan: Plan, _: Profile) -> Plan:
        return plan


class Driven:
    """A run of one map whose counters a test moves on; every look and check is done at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, runner: Runner | None = None) -> None:
        monkeypatch.setattr(planning, "start_background_thread", lambda work, *args: work(*args) or threading.Thread())
        monkeypatch.setattr(clocks, "spent_by", lambda _: (0.0, 0.0))
        root = cedar.from_items([{"x": i} for i in range(100_000)]).map(abs, "x", dtype=int).batch(10).node
        self.binding = Binding(root, None, Env())
        self.metrics = Metrics(labels={i: str(i) for i in range(3)})
        self.first = Plan(root, root, prediction=Prediction(1000.0, "cores"))
        self.planner = Stubborn()
        self.plans = Plans(self.planner, self.first, self.binding, self.metrics)  # type: ignore[arg-type]
        self.runner = runner or Runner("inline", 1)
        self.begins()

    def begins(self) -> None:
        """An iteration."""
        self.plans.start(self.runner)
        self.plans.watcher(self.runner)

    def other(self, place: str, **changes: Any) -> Plan:
        """Another plan of the pipeline: its map runs elsewhere."""
        moved: Plan = stepped(self.first.root, (2, Place(("", place, ""))))
        return dataclasses.replace(moved, prediction=Prediction(3000.0, "cores"), **changes)

    def goes_on(self, seconds: float, speed: float, cost: float = 1e-3) -> None:
        """Tenths of a second, in which so many rows per second are read."""
        for _ in range(int(seconds * 10)):
            self.metrics.time.elapsed += 0.1
            self.metrics.time.waited += 0.1
            self.metrics.rows += int(speed / 10)
            self.metrics.batches += 1
            for ordinal in (0, 1):
                self.metrics.observe(ordinal, Observation(100, 100, 800, 800, cost * 100, cost * 100))
            rows = int(speed / 10)
            self.metrics.add(Timing(took=0.1, rows_read=rows), 0, rows=rows, operators=(1,))
            self.plans.poll()
            if self.plans._next is not None:
                self.plans.watcher(self.runner)


def test_a_plan_that_was_left_is_not_chosen_again_unless_costs_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Driven(monkeypatch)
    other = run.other("dask")
    run.planner.plans = (run.first, other)
    while run.plans.current.root is not other.root:
        run.goes_on(0.1, 1000)
    while run.plans.current.root is other.root:
        run.goes_on(0.1, 990)  # it is not a faster
    assert "back to the plan before" in run.plans.history[-1]
    changes = len(run.plans.history)
    run.goes_on(0.1, 1000)  # it is remembered for half of the time so far
    assert len(run.plans.history) == changes
    run.goes_on(10, 100, 1e-2)  # it costs something else now
    while run.plans.current.root is not other.root:
        run.goes_on(0.1, 100, 1e-2)
    run.goes_on(2, 1000)
    assert run.plans.current.root is other.root


def test_a_plan_that_was_better_is_tried_by_the_next_run_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [Driven(monkeypatch) for _ in range(3)]
    for run in runs:
        run.planner.limits = ("of one pipeline",)
        run.planner.plans = (run.first, run.other("processes", workers=3))
        run.plans._warming = Warm()  # type: ignore[assignment]
    runs[2].planner.limits = ("other limits",)
    searched = []
    for run in runs:
        while run.plans.current.workers is None:
            run.goes_on(0.1, 1000)
        searched.append(run.planner.asked > 0)
        run.goes_on(2, 3000)
        run.plans.close()
    assert searched == [True, False, True], "the second run knows the plan"


def test_a_plan_whose_trial_the_end_of_a_run_cuts_off_is_tried_by_the_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [Driven(monkeypatch) for _ in range(2)]
    for run in runs:
        run.planner.limits = ("of runs that are cut off",)
        run.planner.plans = (run.first, run.other("processes", workers=3))
        run.plans._warming = Warm()  # type: ignore[assignment]
        while run.plans.current.workers is None:
            run.goes_on(0.1, 1000)
        run.goes_on(0.5, 3000)
        assert run.plans._state.phase == "tries"
        run.plans.close()
    assert [run.planner.asked > 0 for run in runs] == [True, False]


def passes(*_: Any) -> None:
    """A check that finds no difference."""


def differs(*_: Any) -> Difference:
    return Difference("another row")


def fails(*_: Any) -> None:
    raise OSError("no space left")


def test_a_run_begins_with_the_last_good_plan_if_its_workers_are_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "_PLANNERS", itertools.repeat("of one pipeline and limit"))
    run = Driven(monkeypatch)
    run.planner.plans = (run.first, run.other("processes", workers=3))
    run.plans._warming = Warm()  # type: ignore[assignment]
    while run.plans.current.workers is None:
        run.goes_on(0.1, 1000)
    run.goes_on(2, 3000)
    run.plans.close()
    for ready, check in ((False, passes), (True, differs), (True, fails), (True, passes)):
        monkeypatch.setattr(processes, "ready", lambda _, ready=ready: ready)
        monkeypatch.setattr(FirstRows, "difference", check)
        again = Driven(monkeypatch, Runner("threads", 1))
        assert again.plans.current.workers == (3 if ready and check is passes else None)
        assert again.plans.rewrites == (ready and check is passes)
        assert len(again.plans._jobs) == (not ready), "results are loaded once"
    again.goes_on(2, 3000)
    assert again.plans.history == [], "it is not slower than it was"


def test_the_measured_speed_counts_rows_of_a_split_that_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Driven(monkeypatch)
    run.goes_on(2, 1000)
    run.metrics.rows_read = 0
    assert run.plans.measured() == pytest.approx(1000, rel=0.1)


class Warm:
    """Processes that are ready at once."""

    def __init__(self) -> None:
        self.keys: frozenset[str] = frozenset()

    def begin(self, key: str, *_: Any) -> None:
        self.keys |= {key}

    def settled(self) -> tuple[frozenset[str], frozenset[str]]:
        return self.keys, frozenset()


class Starting:
    """A pool whose workers take as long as a test wants to load what they are sent."""

    def __init__(self) -> None:
        self.loading: list[Future[None]] = []

    def submit(self, *_: Any) -> Future[None]:
        self.loading.append(Future())
        return self.loading[-1]


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch) -> Starting:
    pool = Starting()
    monkeypatch.setattr(processes, "warm", lambda _: pool)
    return pool


def test_a_plan_takes_over_when_its_processes_are_there_whatever_the_epoch(
    monkeypatch: pytest.MonkeyPatch, starting: Starting
) -> None:
    run = Driven(monkeypatch)
    other = run.other("processes")
    run.planner.plans = (other,)
    for _ in range(3):
        run.goes_on(5, 1000)
        assert run.plans.current.root is run.first.root
        run.plans.close()
        run.begins()
    assert len(starting.loading) == run.plans.figures.processes
    for loading in starting.loading:
        loading.set_result(None)
    run.goes_on(0.2, 1000)
    assert run.plans.current.root is other.root


@pytest.mark.parametrize("late", [True, False])
def test_a_plan_whose_processes_cannot_run_it_is_given_up(
    late: bool, monkeypatch: pytest.MonkeyPatch, starting: Starting
) -> None:
    run = Driven(monkeypatch)
    run.planner.plans = (run.other("processes"),)
    monkeypatch.setattr(background, "_WARMUP_PATIENCE", -1 if late else 20)
    run.goes_on(5, 1000)
    for loading in starting.loading:
        if late:
            loading.set_result(None)
        else:
            loading.set_exception(cedar.WorkerError("there is no module 'mine'"))
    run.goes_on(5, 1000)
    assert run.plans.current.root is run.first.root


def test_a_plan_with_another_number_of_threads_reads_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Driven(monkeypatch)
    run.runner = Runner("threads", 1)
    run.begins()
    watcher = run.plans.watcher(run.runner)
    run.planner.plans = (dataclasses.replace(run.first, workers=3, prediction=Prediction(3000.0, "waiting")),)
    while run.runner.workers == 1:
        run.goes_on(0.1, 1000)
    assert run.runner.workers == 3
    assert not watcher.fence
    while run.runner.workers != 1:  # they do no more than one
        run.goes_on(0.1, 1000)
    run.runner.close()


def test_as_many_threads_as_the_user_asked_for_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Driven(monkeypatch)
    run.runner = Runner("threads", 2)
    run.begins()
    run.planner.most_workers = None
    run.planner.plans = (dataclasses.replace(run.first, workers=1, prediction=Prediction(9000.0, "cores")),)
    run.goes_on(5, 1000)
    assert run.runner.workers == 2
    assert run.plans.history == []
    run.runner.close()


def test_a_plan_that_is_refused_is_not_taken_and_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Driven(monkeypatch)
    run.planner.plans = (run.other("dask"),)
    why = Decision("late", "all of it", applied=False, why="row 3 differs")
    as_written = dataclasses.replace(run.first, decisions=(why,))
    monkeypatch.setattr(run.planner, "checked", lambda *_: as_written)
    run.goes_on(5, 1000)
    assert run.plans.history == []
    assert run.planner.asked > 0
    assert why in run.plans.current.decisions


def test_a_plan_that_runs_in_the_same_stages_is_no_other_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Driven(monkeypatch)
    batch = dataclasses.replace(run.first.root, place="dask", origin=run.first.root)  # which has no tasks
    threads = run.other("threads")  # where the run works anyway
    run.planner.plans = (dataclasses.replace(run.first, root=batch), threads)
    run.goes_on(5, 1000)
    assert run.planner.asked > 0
    assert run.plans.history == []
    assert {run.plans._key_of(plan) for plan in run.planner.plans} == {run.plans._key}


def test_no_plan_is_made_for_what_is_nearly_over(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Driven(monkeypatch)
    run.goes_on(0.9, 500_000, 1e-7)  # a fifth of a second is all it takes
    assert run.planner.asked == 0
    run.begins()
    for _ in range(5):  # but epoch after epoch of it
        run.goes_on(0.1, 1_000_000, 1e-7)
        run.begins()
    assert run.planner.asked > 0


def test_no_plan_is_made_from_what_stands_in_for_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Driven(monkeypatch)
    monkeypatch.setattr(kernels, "is_compiling", lambda: True)
    run.goes_on(5, 1000)
    assert run.planner.asked == 0
    monkeypatch.setattr(kernels, "is_compiling", lambda: False)
    run.goes_on(5, 1000)
    assert run.planner.asked > 0


def test_a_plan_that_failed_is_not_brought_back_by_a_look_that_had_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Driven(monkeypatch)
    plan = dataclasses.replace(run.first, root=dataclasses.replace(run.first.root))
    run.plans.current = plan

    def candidates(_: Any) -> tuple[Any, ...]:
        assert run.plans.failed(MemoryError())  # an error without a text
        return ()

    monkeypatch.setattr(run.planner, "candidates", candidates)
    run.plans._search(Calls(inline=True))
    assert not run.plans.rewrites


def test_a_controller_that_fails_ends_no_run(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    run = Driven(monkeypatch)
    monkeypatch.setattr(planning, "step", lambda *_: 1 / 0)
    run.goes_on(5, 1000)
    assert run.plans.current.root is run.first.root
    assert [record.message for record in caplog.records] == [
        "the optimizer failed: the run continues with its current plan"
    ]


def test_what_the_trainer_takes_is_waited_for_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Driven(monkeypatch)
    run.planner.plans = (run.other("dask"),)
    for _ in range(100):
        run.metrics.time.waited -= 0.1
        run.goes_on(0.1, 1000)
    assert run.planner.asked == 0


# ---- a whole run -----------------------------------------------------------------------------------------------------


def steps_to_one(n: int) -> int:
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


@pytest.mark.heavy
def test_rows_stay_the_same_while_epochs_of_python_go_to_processes(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_figures, "machine", lambda measure: Machine(2, 1 << 34, start_seconds=0.3))
    rows = [{"x": 10**12 + i} for i in range(3000)]
    cedar.from_items(rows).write_parquet(str(tmp_path / "in"))
    pipeline = cedar.read_parquet(str(tmp_path / "in")).map(steps_to_one, "x", into="y", dtype=int).batch(100)
    expected = [steps_to_one(row["x"]) for row in rows]
    with pipeline.loader(workers=2) as run:
        for _ in range(12):  # an epoch is far too short for processes to start; in which they take over, figures say
            assert [y for batch in run for y in batch["y"].tolist()] == expected
            if "processes" in {node.place for node in cedar.plan.graph.walk(run.plan.root)}:
                break
        assert [y for batch in run for y in batch["y"].tolist()] == expected


def test_rows_that_were_read_ahead_make_no_plan_look_free(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Driven(monkeypatch)
    slower = dataclasses.replace(run.other("dask"), prediction=Prediction(300.0, "cores"))
    run.planner.plans = (slower,)
    run.metrics.rows_read = 50_000  # nothing is read while these are delivered
    for _ in range(100):
        run.goes_on(0.1, 1000)
        run.metrics.rows_read -= 100
    assert run.planner.asked > 0
    assert run.plans.history == []
