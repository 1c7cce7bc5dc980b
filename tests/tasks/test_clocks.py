"""Clocks: what threads took of the cores."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from pathlib import Path
from typing import Any

import pytest

import cedar
from cedar.control.timeline import Part
from cedar.tasks import clocks
from tests.waiting import eventually


def test_the_time_of_other_threads_is_told_while_they_live() -> None:
    go = threading.Event()

    def works() -> None:
        sum(range(200_000))
        go.wait(30)

    thread = threading.Thread(target=works)
    thread.start()
    before = clocks.spent_by([thread])
    go.set()
    thread.join()
    assert before[0] >= 0.0
    # the system's thread ends a little after Python's
    assert eventually(lambda: not os.path.exists(f"/proc/self/task/{thread.native_id}"))
    assert clocks.spent_by([thread]) == (0.0, 0.0)


def test_what_sending_took_is_told_once() -> None:
    clocks.shipped()
    for _ in range(2):
        clocks.ship(0.0)  # since the clock began
    assert clocks.shipped() > 0
    assert clocks.shipped() == 0.0


def test_readings_are_of_two_clocks() -> None:
    both = clocks.Reading(5.0, 3.0).since(clocks.Reading(1.0, 1.0))
    assert both == clocks.Reading(4.0, 2.0)
    assert both.plus(both) == clocks.Reading(8.0, 4.0)


WORK: Part = ("operator", (1,))


@pytest.mark.parametrize(
    ("thread", "cpu", "expected"),
    [
        (0, 1.0, [(WORK, 3.0, 1.0), (("import", ()), 2.0, 1.0)]),  # this thread's own
        (1, 2.0, [(WORK, 3.0, 2.0), (("import", ()), 2.0, 0.0)]),  # it waits for another's
        (1, 4.0, [(WORK, 4.0, 4.0), (("import", ()), 1.0, 0.0)]),  # it works next to that
    ],
)
def test_what_was_prepared_leaves_the_part_that_met_it(
    monkeypatch: pytest.MonkeyPatch, thread: int, cpu: float, expected: Any
) -> None:
    span = clocks._ThreadSpan("import", "x", threading.get_ident() + thread, began=9.0, ended=12.0, cpu=1.0)
    monkeypatch.setattr(clocks, "_spans", deque([span]))
    parts = [(("read", (0,)), 0.5, 0.5), (WORK, 5.0, cpu + (not thread))]
    clocks.separate_preparation(parts, 10.0)
    assert parts[1:] == [(part, pytest.approx(wall), pytest.approx(used)) for part, wall, used in expected]
    before = list(parts)
    clocks.separate_preparation(parts, 12.5)
    assert parts == before, "of an earlier task"


def lines(p: cedar.Pipeline, executor: str) -> set[str]:
    with p.batch(8).loader(executor=executor, workers=1) as loader:
        assert sum(1 for _ in loader) == 8
    return {line.label for line in loader.report().workers_time}


@pytest.mark.parametrize("executor", ["inline", "threads", pytest.param("processes", marks=pytest.mark.heavy)])
def test_imports_of_functions_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executor: str) -> None:
    """The import of a module continues while it imports others."""
    (tmp_path / f"outer_{executor}.py").write_text(f"import inner_{executor}")
    (tmp_path / f"inner_{executor}.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))

    def fn(x: int) -> int:
        __import__(f"outer_{executor}")
        return x

    rows = cedar.from_items([{"x": i} for i in range(64)]).map(fn, "x", dtype=int)
    assert "importing libraries" in lines(rows, executor)
    for name in ("outer", "inner"):
        sys.modules.pop(f"{name}_{executor}", None)


@pytest.mark.heavy
def test_what_numba_compiles_is_named() -> None:
    numba = pytest.importorskip("numba")
    twice = numba.njit(lambda x: x * 2)
    rows = cedar.from_items([{"x": i} for i in range(64)]).map(lambda x: int(twice(x)), "x", dtype=int)
    assert "compiling functions" in lines(rows, "threads")
