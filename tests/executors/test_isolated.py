"""Apart: types are learned from sample rows in a worker, where a loader's rows are worked on by processes."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import cedar
from cedar.executors import isolated as apart
from cedar.executors import processes
from cedar.executors.processes import pool as pools


def numbers(fn: Any, **options: Any) -> cedar.Pipeline:
    return cedar.from_items([{"x": i} for i in range(100)]).map(fn, "x", **options)


def run(pipeline: cedar.Pipeline, **options: Any) -> tuple[list[Any], cedar.Report]:
    with pipeline.batch(10, last="keep").loader(executor="processes", workers=1, **options) as loader:
        return [x for batch in loader for x in batch["x"].tolist()], loader.report()


@pytest.mark.parametrize("plan", ["off", "auto"])
def test_a_row_of_the_sample_that_ends_its_process_is_a_bad_row(plan: str) -> None:
    def ends(x: int):
        return os._exit(3) if x == 5 else x

    found, report = run(numbers(ends, on_error=cedar.Skip()), plan=plan)
    assert found == [x for x in range(100) if x != 5]
    assert report.restarts == 3  # one in the sample, one that did not mark rows, one that did


def test_a_row_of_the_sample_that_hangs_is_a_bad_row() -> None:
    def hangs(x: int):
        while x == 5:
            pass
        return x

    found, _ = run(numbers(hangs, timeout=2, on_error=cedar.Skip()), plan="off")
    assert found == [x for x in range(100) if x != 5]


def test_a_function_that_always_ends_its_process_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "_MAX_BAD_ROWS", 1)

    def ends(x: int):
        os._exit(3)

    with pytest.raises(cedar.WorkerError, match=r"map\(ends\) crashes every worker on the first rows"):
        run(numbers(ends, on_error=cedar.Skip()))


def test_what_does_not_travel_is_learned_here() -> None:
    locked = numbers(lambda x: (x, threading.Lock())).map(lambda pair: pair[0], "x", dtype=int)
    assert run(locked, plan="off")[0] == list(range(100))


def test_a_class_is_made_in_the_worker() -> None:
    class Where:
        def __init__(self) -> None:
            self.pid = os.getpid()

        def __call__(self, x: int):
            return self.pid

    assert os.getpid() not in run(numbers(Where))[0]


def killed_once(folder: Path, row: int) -> Any:
    """A function without a type, whose first process is killed at a row of the sample."""

    def fn(x: int):
        if x == row and not (folder / "seen").exists():
            (folder / "seen").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    return fn


def test_a_kill_in_the_sample_costs_no_row(tmp_path: Path) -> None:
    found, report = run(numbers(killed_once(tmp_path, 5)), plan="off")
    assert found == list(range(100))
    assert report.restarts == 1


@pytest.mark.heavy
def test_a_kill_while_workers_start_costs_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    processes.close()  # so that they start
    start, left = pools.WorkerProcess.__init__, [1]

    def killed(self: Any) -> None:
        start(self)
        if left:
            left.pop()
            self.kill()

    monkeypatch.setattr(pools.WorkerProcess, "__init__", killed)
    found, _ = run(numbers(lambda x: x), plan="off")
    assert found == list(range(100))
    assert not left


def test_rows_of_the_sample_that_crash_together_are_named() -> None:
    def damages(x: int):
        if x == 5:
            sys._damaged = 9  # type: ignore[attr-defined]
        return os._exit(3) if x == getattr(sys, "_damaged", None) else x

    with pytest.raises(cedar.RowError, match="BlockKilled: exit code 3.*on rows 0 to 63 together") as caught:
        run(numbers(damages, on_error=cedar.Skip(blocks=True)), plan="off")
    assert "give dtype=" in str(caught.value.fix)


def test_a_constructor_that_ends_its_process_is_no_rows_fault() -> None:
    class Ends:
        def __init__(self) -> None:
            os._exit(3)

        def __call__(self, x: int):
            return x

    with pytest.raises(cedar.WorkerError, match=r"map\(Ends\) crashes every worker on the first rows"):
        run(numbers(Ends, on_error=cedar.Skip()), plan="off")


@pytest.mark.parametrize(
    "maps",
    [
        [lambda batch: (batch["x"],), lambda one: one[0].sum(), lambda total: total + 1],
        [lambda batch: {"x": batch["x"][:1]}, lambda batch: {"x": batch["x"] + 1}],
    ],
)
def test_a_function_after_one_that_made_one_value_or_row_of_a_batch_gets_that(maps: list[Any]) -> None:
    p = cedar.from_items([{"x": i} for i in range(100)]).batch(50)
    for fn in maps:
        p = p.map(fn)
    inline, there = (list(p.loader(executor=e, workers=1)) for e in ("inline", "processes"))
    assert len(there) == 2
    assert str(there) == str(inline)
