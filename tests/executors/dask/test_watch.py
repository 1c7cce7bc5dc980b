"""Looks at a cluster: what its scheduler knows, and which workers are avoided."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from cedar.executors.dask.watch import View, Watch, look, serves


def scheduler(**extensions: Any) -> Any:
    workers = {
        at: SimpleNamespace(address=at, last_seen=0.0, nthreads=n) for at, n in (("tls://a:1", 1), ("tls://b:1", 2))
    }
    first, second = workers.values()
    tasks = {
        "done": SimpleNamespace(state="memory", who_has=[second], processing_on=None),
        "running": SimpleNamespace(state="processing", who_has=None, processing_on=first),
        "waiting": SimpleNamespace(state="no-worker", who_has=None, processing_on=None),
    }
    return SimpleNamespace(workers=workers, tasks=tasks, extensions=extensions)


def test_a_look_tells_where_tasks_are_and_since_when_workers_are_silent() -> None:
    view = look(["done", "running", "waiting", "gone"], None, scheduler())
    assert view.places == {
        "done": ("memory", ["tls://b:1"]), "running": ("processing", ["tls://a:1"]), "waiting": ("no-worker", []),
    }  # fmt: skip
    assert view.threads == {"tls://a:1": 1, "tls://b:1": 2}
    assert all(silent > 1e9 for silent in view.silent.values()), "never heard of"


def test_a_service_hears_how_a_run_does() -> None:
    heard: list[str] = []
    plain, service = scheduler(), scheduler(cedar=SimpleNamespace(hear=heard.append))
    assert [serves(plain), serves(service)] == [False, True]
    look([], "a signal", plain)
    look([], None, service)
    look([], "a signal", service)
    assert heard == ["a signal"]


def test_silent_workers_are_avoided_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    client = SimpleNamespace(nthreads=lambda: {"a": 1, "b": 2}, run_on_scheduler=lambda fn: fn(scheduler()))
    executor: Any = SimpleNamespace(client=client)
    watch = Watch(executor)
    assert (watch.threads, watch.service, watch.loud()) == (3, False, None)
    with caplog.at_level(logging.WARNING, "cedar"):
        for _ in range(2):
            watch._heed(View({"a": 0.1, "b": 1000.0}, {"a": 1, "b": 2}, {}))
    assert (watch.threads, watch.loud()) == (1, ["a"])
    (record,) = caplog.records
    assert "the Dask worker b has not been heard of for 1000.0 s: its tasks go to others" in record.getMessage()
    watch._heed(View({"a": 0.1, "b": 0.1}, {"a": 1, "b": 2}, {}))
    assert (watch.threads, watch.loud()) == (3, None)


def test_a_task_whose_tries_are_all_silent_is_tried_elsewhere_and_then_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = SimpleNamespace(tries=[], over=False, stuck_since=None)
    done: list[str] = []

    class Executor:
        client = SimpleNamespace(status="running", nthreads=dict, run_on_scheduler=lambda _: False)

        def pending(self) -> list[Any]:
            return [] if task.over else [task]

        async def again(self, _: Any) -> None:
            done.append("again")
            task.tries.append(SimpleNamespace(future=SimpleNamespace(key=len(task.tries))))

        def give_up(self, _: Any) -> None:
            done.append("given up")
            task.over = True

    async def look(_: Any) -> View:
        places = {one.future.key: ("processing", ["b"]) for one in task.tries}
        return View({"a": 0.1, "b": 1000.0}, {"a": 1, "b": 1}, places)

    monkeypatch.setattr("cedar.executors.dask.watch._TICK", 0.0)
    executor: Any = Executor()
    watch = Watch(executor)
    monkeypatch.setattr(watch, "_look", look)
    asyncio.run(executor.again(task))
    asyncio.run(asyncio.wait_for(watch._watch(), 20))
    assert done == ["again"] * 4 + ["given up"]
