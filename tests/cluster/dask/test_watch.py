"""Looks at a cluster: what its scheduler knows, and which workers are avoided."""

from __future__ import annotations

import asyncio
import itertools
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from dask import config

from cedar.cluster.dask.watch import ClusterView, Watch, is_service, look
from cedar.executors.recovery.waiting import StallTimer
from tests.executors.recovery.clock import Clock

pytestmark = [pytest.mark.heavy, pytest.mark.waits]


def asked(question: Any, *args: Any, callback_timeout: float) -> Any:
    """As a client does it, in its own loop."""
    return question(*args)


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
    assert [is_service(plain), is_service(service)] == [False, True]
    look([], "a signal", plain)
    look([], None, service)
    look([], "a signal", service)
    assert heard == ["a signal"]


def test_silent_workers_are_avoided_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    client = SimpleNamespace(nthreads=lambda: {"a": 1, "b": 2}, run_on_scheduler=lambda fn: fn(scheduler()), sync=asked)
    executor: Any = SimpleNamespace(client=client)
    watch = Watch(executor)
    assert (watch.threads, watch.service, watch.live_workers()) == (3, False, None)
    with caplog.at_level(logging.WARNING, "cedar"):
        for _ in range(2):
            watch._note_silent_workers(ClusterView({"a": 0.1, "b": 1000.0}, {"a": 1, "b": 2}, {}))
    assert (watch.threads, watch.live_workers()) == (1, ["a"])
    (record,) = caplog.records
    assert "the Dask worker b has been silent for 1000.0 s: other workers run its tasks" in record.getMessage()
    watch._note_silent_workers(ClusterView({"a": 0.1, "b": 0.1}, {"a": 1, "b": 2}, {}))
    assert (watch.threads, watch.live_workers()) == (3, None)


_numbers = itertools.count()


def needs_help(watch: Watch, task: Any, view: ClusterView) -> bool:
    return task in (watch._tasks_in_need([task], view) or [])


def a_try(key: int, over: bool = False) -> Any:
    return SimpleNamespace(future=SimpleNamespace(key=key), following=SimpleNamespace(done=lambda: over))


def helped(*tries: Any) -> Any:
    """A task."""
    return SimpleNamespace(tries=list(tries), over=False, number=next(_numbers))


@pytest.fixture
def watch() -> Watch:
    """Of an executor that never holds results back."""
    client = SimpleNamespace(nthreads=dict, run_on_scheduler=lambda _: False, sync=asked)
    executor: Any = SimpleNamespace(client=client, waits_for_room=lambda _: False)
    return Watch(executor)


def seen(silent: set[str], *places: tuple[str, str]) -> ClusterView:
    """Two workers, and where tries are."""
    known = {number: (state, [at]) for number, (state, at) in enumerate(places)}
    return ClusterView({at: 1000.0 * (at in silent) for at in "ab"}, {"a": 1, "b": 1}, known)


def test_where_no_worker_is_heard_of_no_task_is_done_again(watch: Watch) -> None:
    one, all_of_them = seen({"b"}, ("processing", "b")), seen({"a", "b"}, ("processing", "b"))
    watch._note_silent_workers(all_of_them)
    assert not needs_help(watch, helped(a_try(0)), all_of_them), "a call that holds the interpreter's lock, maybe"
    watch._note_silent_workers(one)
    assert needs_help(watch, helped(a_try(0)), one)


def test_a_result_that_is_long_on_its_way_is_waited_for_longer_with_each_try(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, task, asked = Clock(), helped(a_try(0)), []
    monkeypatch.setattr(watch, "_still", StallTimer(clock, 1.0))
    watch._note_silent_workers(seen(set()))
    for clock.now in range(1, 1000):
        if needs_help(watch, task, seen(set(), *[("memory", "a")] * 4)):
            asked.append(clock.now)
            task.tries.append(a_try(len(task.tries)))
        if len(asked) == 4:  # then there is no more than to give it up
            break
    assert asked == [31, 31 + 61, 31 + 61 + 121, 31 + 61 + 121 + 241], "from the first look at a try"


def test_a_cluster_without_workers_is_given_up_but_not_for_a_pause_of_the_trainer(watch: Watch) -> None:
    clock = Clock()
    watch._still = StallTimer(clock, 1.0)
    nobody = ClusterView({}, {}, {})
    watch._note_silent_workers(nobody)
    given_up = []
    for clock.now in (1.0, 2.0, 5000.0, 5001.0, *range(5002, 5060)):
        if watch._tasks_in_need([], nobody) is None:
            given_up.append(clock.now)
    assert given_up[0] == 5028, "30 seconds that were seen to pass, and those of the pause that a look may miss"


def test_a_try_that_a_worker_works_on_is_waited_for(watch: Watch) -> None:
    watch._note_silent_workers(seen({"b"}))
    both = [a_try(0), a_try(1)]
    with config.set({"cedar.dask.stuck": "0s"}):
        assert not needs_help(watch, helped(*both), seen({"b"}, ("memory", "a"), ("processing", "a")))
        assert needs_help(watch, helped(*both), seen({"b"}, ("memory", "a"), ("processing", "b")))
        failed = [a_try(0, over=True), a_try(1)]
        assert needs_help(watch, helped(*failed), seen({"b"}, ("erred", "a"), ("memory", "a")))


def test_a_look_that_fails_is_not_the_last_one(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks: list[Any] = []

    async def look(tasks: list[Any]) -> ClusterView:
        looks.append(tasks)
        if len(looks) == 1:
            raise ValueError("the process group has not been initialized")
        return seen(set())

    executor: Any = watch._executor
    executor.client.status = "running"
    executor.pending = lambda: [helped()] * (len(looks) < 3)
    monkeypatch.setattr("cedar.cluster.dask.watch._TICK", 0.0)
    monkeypatch.setattr(watch, "_ask_scheduler", look)
    asyncio.run(asyncio.wait_for(watch._watch(), 20))
    assert len(looks) == 3
    assert "checking the Dask cluster failed" in caplog.text


def test_a_task_whose_tries_are_all_silent_is_tried_elsewhere_and_then_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = helped()
    done: list[str] = []

    class Executor:
        client = SimpleNamespace(status="running", nthreads=dict, run_on_scheduler=lambda _: False, sync=asked)

        def pending(self) -> list[Any]:
            return [] if task.over else [task]

        async def again(self, _: Any) -> None:
            done.append("again")
            task.tries.append(a_try(len(task.tries)))

        def give_up(self, _: Any) -> None:
            done.append("given up")
            task.over = True

        def waits_for_room(self, _: Any) -> bool:
            return False

    async def look(_: Any) -> ClusterView:
        places = {one.future.key: ("processing", ["b"]) for one in task.tries}
        return ClusterView({"a": 0.1, "b": 1000.0}, {"a": 1, "b": 1}, places)

    monkeypatch.setattr("cedar.cluster.dask.watch._TICK", 0.0)
    executor: Any = Executor()
    watch = Watch(executor)
    monkeypatch.setattr(watch, "_ask_scheduler", look)
    asyncio.run(executor.again(task))
    with config.set({"cedar.dask.stuck": "0s"}):
        asyncio.run(asyncio.wait_for(watch._watch(), 20))
    assert done == ["again"] * 4 + ["given up"]
