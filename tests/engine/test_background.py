"""Workers load what a plan's functions need before it takes over."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import cedar
from cedar.engine.background import Calls, RunOver, WorkerWarmup, start_background_thread
from cedar.executors import processes
from cedar.plan.data import Plan
from tests.waiting import eventually

MODULE = """
from pathlib import Path
Path({path!r}).touch()
def double(x): return 2 * x
"""


def settled(plan: Plan) -> tuple[frozenset[str], frozenset[str]]:
    warming = WorkerWarmup()
    warming.begin("1", plan, 1)
    found = frozenset[str](), frozenset[str]()

    def something() -> bool:
        nonlocal found
        found = warming.settled()
        return found != (set(), set())

    assert eventually(something)
    assert warming.settled() == found
    return found


def initial_plan(pipeline: cedar.Pipeline) -> Plan:
    return Plan.as_written(pipeline.node)


@pytest.mark.heavy
def test_modules_of_functions_are_imported_in_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_to_import.py").write_text(MODULE.format(path=str(tmp_path / "imported")))
    monkeypatch.syspath_prepend(tmp_path)
    import slow_to_import  # type: ignore[import-not-found]

    (tmp_path / "imported").unlink()
    processes.close()
    p = cedar.from_items([{"x": 1}]).map(slow_to_import.double, "x", dtype=int).batch(1)
    assert settled(initial_plan(p)) == ({"1"}, set())
    assert (tmp_path / "imported").exists()


def test_a_plan_whose_functions_cannot_be_sent_is_unfit() -> None:
    lock = threading.Lock()
    p = cedar.from_items([{"x": 1}]).map(lambda x: (lock, x)[1], "x", dtype=int).batch(1)
    assert settled(initial_plan(p)) == (set(), {"1"})


def test_a_plan_whose_functions_no_worker_can_load_is_unfit(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("only_here")
    exec("def double(x): return 2 * x", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", module)
    p = cedar.from_items([{"x": 1}]).map(module.double, "x", dtype=int).batch(1)
    assert settled(initial_plan(p)) == (set(), {"1"})


def test_calls_are_made_where_they_are_asked_for_until_the_run_ends() -> None:
    calls = Calls(inline=False)
    assert calls.run(threading.get_ident) == threading.get_ident()
    assert not calls.over
    calls.end()
    assert calls.over
    with pytest.raises(RunOver):
        calls.run(int)


def test_what_only_the_runs_own_thread_may_call_waits_until_it_looks_in() -> None:
    calls, found = Calls(inline=True), []

    def asks() -> None:
        found.append(calls.run(threading.get_ident))
        for work in (lambda: 1 // 0, lambda: next(_timed_out())):
            try:
                calls.run(work)
            except (ZeroDivisionError, TimeoutError) as error:
                found.append(str(error))

    thread = start_background_thread(asks)
    while thread.is_alive():
        calls.serve()
        thread.join(0.001)
    assert found == [threading.get_ident(), "integer division or modulo by zero", "the function's own"]
    calls.end()
    with pytest.raises(RunOver):
        calls.run(int)


def _timed_out() -> Any:
    raise TimeoutError("the function's own")
