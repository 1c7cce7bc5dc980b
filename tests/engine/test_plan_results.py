"""Results of plans that a run stores for later runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cedar
from cedar.control.controller import Pace, PlanTrial, State
from cedar.core.block import Observation
from cedar.engine import plan_results
from cedar.engine.plan_results import PlanResults, ResultsStore
from cedar.plan.data import Plan
from cedar.plan.steps import Place
from tests.plan.toy_plans import stepped

LEARNED = State("1", pace=Pace(2e-3, 1e-4, 0.02), tried={"0": PlanTrial(4e-3, 1.5), "1": PlanTrial(3e-3, 1.5)})


def rows(step: int) -> cedar.Pipeline:
    return cedar.from_numpy({"x": np.arange(100)}).map(lambda x: x + step, "x", dtype=int).batch(10)


def plans_of(p: cedar.Pipeline) -> list[Plan]:
    return [Plan.as_written(p.node), replace(stepped(p.node, (2, Place(("", "processes", "")))), workers=2)]


@pytest.fixture(autouse=True)
def empty_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def stored(p: cedar.Pipeline, state: State, *limits: Any) -> ResultsStore:
    made = ResultsStore(p.node, None)
    assert made.load(limits) is None
    made.save(state, plans_of(p), 5.0, gil=0.25)
    return made


def test_results_are_loaded_as_they_were_saved() -> None:
    stored(rows(1), LEARNED, "limit")
    found = ResultsStore(rows(1).node, None).load(("limit",))
    assert found is not None
    (used, result), (written, replaced) = found.plans
    assert (used.workers, used.in_processes, written.workers, written.in_processes) == (2, True, None, False)
    assert (result, replaced) == (PlanTrial(2e-3, 1.5), LEARNED.tried["0"]), "the last pace is the plan's result"
    assert (found.pace, found.gil) == (LEARNED.pace, 0.25)


def test_a_run_in_processes_knows_how_long_threads_held_the_gil(monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = PlanResults((), Pace(2e-3), gil=0.25)
    monkeypatch.setattr(ResultsStore, "load", lambda *_: earlier)
    with rows(1).loader() as loader:
        plans = loader._epochs.job.plans
        plans._load_results()
        plans.metrics.observe(1, Observation(100, 100, 0, 0, 0.01, 0.01))
        assert plans.figures.profile(local=False).operators[1].gil == 0.25


@pytest.mark.parametrize(("step", "limit"), [(2, "limit"), (1, "other")])
def test_another_function_or_limit_has_results_of_its_own(step: int, limit: str) -> None:
    stored(rows(1), LEARNED, "limit")
    assert ResultsStore(rows(step).node, None).load((limit,)) is None


def test_nothing_is_saved_before_another_plan_was_tried() -> None:
    stored(rows(1), replace(LEARNED, tried={}, stays="0"), "limit")
    stored(rows(1), replace(LEARNED, pace=None), "limit")
    assert ResultsStore(rows(1).node, None).load(("limit",)) is None


def test_the_same_result_is_saved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[str] = []
    monkeypatch.setattr(plan_results, "save", lambda _, name, write: saved.append(name))
    store = stored(rows(1), LEARNED, "limit")
    store.save(replace(LEARNED, pace=Pace(1.0)), plans_of(rows(1)), 9.0)
    assert len(saved) == 1
    store.save(replace(LEARNED, tried={"0": PlanTrial(4e-3, 1.5, failed=1)}), plans_of(rows(1)), 9.0)
    assert len(saved) == 2


def test_results_that_are_no_numbers_are_not_used() -> None:
    stored(rows(1), replace(LEARNED, pace=Pace(2e-3, float("inf"))), "limit")
    assert ResultsStore(rows(1).node, None).load(("limit",)) is None


def test_plans_that_cannot_be_written_are_not_saved() -> None:
    p = rows(1)
    store = ResultsStore(p.node, None)
    store.load(())
    unknown = replace(p.node, origin=p.node)  # no step makes it
    store.save(LEARNED, [Plan.as_written(p.node), Plan(p.node, unknown)], 5.0)
    assert ResultsStore(p.node, None).load(()) is None


def test_the_data_that_a_function_uses_do_not_count() -> None:
    def using(table: np.ndarray) -> cedar.Pipeline:  # type: ignore[type-arg]
        return cedar.from_numpy({"x": np.arange(100)}).map(lambda x: table[x], "x", dtype=int).batch(10)

    stored(using(np.arange(100)), LEARNED)
    assert ResultsStore(using(np.arange(100) * 2).node, None).load(()) is not None
