"""Apart: types are learnt from sample rows in a worker, where a loader's rows are worked on by processes."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

import cedar
from cedar.execution import apart


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
    monkeypatch.setattr(apart, "_MOST", 1)

    def ends(x: int):
        os._exit(3)

    with pytest.raises(cedar.WorkerError, match=r"map\(ends\) ends worker after worker on the first rows"):
        run(numbers(ends, on_error=cedar.Skip()))


def test_what_does_not_travel_is_learnt_here() -> None:
    locked = numbers(lambda x: (x, threading.Lock())).map(lambda pair: pair[0], "x", dtype=int)
    assert run(locked, plan="off")[0] == list(range(100))


def test_a_class_is_made_in_the_worker() -> None:
    class Where:
        def __init__(self) -> None:
            self.pid = os.getpid()

        def __call__(self, x: int):
            return self.pid

    assert os.getpid() not in run(numbers(Where))[0]
