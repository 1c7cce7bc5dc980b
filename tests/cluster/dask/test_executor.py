"""Executor "dask": tasks and code on a cluster, deaths and silences, errors within seconds, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import types
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import cedar
from cedar.cluster import dask
from cedar.cluster.dask import executor as executor_module
from cedar.cluster.dask.clients import check_versions, client_at
from cedar.cluster.dask.executor import DaskExecutor
from cedar.cluster.dask.kept import KEPT, SharedResult
from cedar.cluster.dask.keys import security_at
from cedar.cluster.dask.local import LocalHost, local_address
from cedar.cluster.dask.remote import LOCAL_CLUSTER_VARIABLE, Parcel, RemoteCall
from cedar.executors.processes.pool import WorkerDied
from cedar.plan import graph
from cedar.tasks.code import Code
from tests.how_much import LONG
from tests.waiting import LIMIT, eventually

pytestmark = [pytest.mark.heavy, pytest.mark.waits]

WORKERS = 2
NOBODY = "tcp://127.0.0.1:9"


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    yield
    dask.close()


@pytest.fixture
def executor() -> Iterator[DaskExecutor]:
    executor = dask.open_cluster("dask", WORKERS)
    assert isinstance(executor, DaskExecutor)
    yield executor
    executor.shutdown(cancel_futures=True)


def limits(**limits: str) -> Any:
    """As a user sets them."""
    from dask import config

    return config.set({f"cedar.dask.{name.replace('_', '-')}": limit for name, limit in limits.items()})


def keys(client: Any, run: str = "") -> list[Any]:
    """What the cluster still knows of us, or of one run."""
    found: list[Any] = client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks))
    return [key for key in found if run in str(key)]


def pids(client: Any) -> list[int]:
    return list(client.run(os.getpid, on_error="ignore").values())  # one that died may be known still


def numbers(n: int = 600) -> cedar.Pipeline:
    def slow(x: int) -> int:
        time.sleep(0.002)
        return x * 2

    return cedar.from_items([{"x": i} for i in range(n)]).map(slow, "x", into="y", dtype=int).batch(20)


def taken(loader: Any) -> list[Any]:
    return [batch["y"].tolist() for batch in loader]


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    return taken(numbers().loader(executor="inline", plan="off"))


# ---- what a task is --------------------------------------------------------------------------------------------------


def test_results_and_errors_come_back(executor: DaskExecutor) -> None:
    def raises() -> None:
        raise KeyError("name")

    assert [f.result() for f in [executor.submit(pow, i, 2) for i in range(20)]] == [i * i for i in range(20)]
    with pytest.raises(KeyError, match="name") as caught:
        executor.submit(raises).result()
    assert "in raises" in "".join(caught.value.__notes__)
    with pytest.raises(SystemExit):
        executor.submit(sys.exit, 3).result()


def test_what_cannot_be_sent_is_said(executor: DaskExecutor) -> None:
    with pytest.raises(cedar.WorkerError, match="cannot be sent"):
        executor.submit(id, threading.Lock()).result()
    with pytest.raises(cedar.WorkerError, match="cannot be sent"):
        executor.submit(threading.Lock).result()


def test_code_is_sent_once_and_again_to_a_worker_that_lost_it(executor: DaskExecutor) -> None:
    def size(code: Code) -> tuple[int, int]:
        return len(code.load()[0]), os.getpid()

    code = Code.of((bytes(1 << 20),))
    assert executor.submit(size, code).result()[0] == 1 << 20
    assert executor.submit(size, code.known()).result()[0] == 1 << 20  # which has nothing to send
    before = set(executor.client.nthreads())
    for pid in pids(executor.client):
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: len(now := set(executor.client.nthreads())) == WORKERS and not now & before)

    def done() -> bool:
        try:
            return bool(executor.submit(size, code).result(LIMIT)[0] == 1 << 20)
        except WorkerDied:  # the scheduler sent it to one of the killed workers: a run sends it again
            return False

    assert eventually(done)


def test_a_killed_worker_fails_its_task_at_once(executor: DaskExecutor) -> None:
    with pytest.raises(WorkerDied, match="worker of the Dask cluster died"):
        executor.submit(os._exit, 3).result(30)
    assert executor.submit(abs, -1).result(30) == 1


def test_the_tasks_of_a_silent_worker_are_done_elsewhere(
    executor: DaskExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    assert eventually(lambda: len(pids(executor.client)) == WORKERS)
    stopped = pids(executor.client)[0]
    try:
        with limits(worker_silent="1s"):
            os.kill(stopped, signal.SIGSTOP)
            futures = [executor.submit(pow, i, 2) for i in range(6)]
            assert [f.result(60) for f in futures] == [i * i for i in range(6)]
    finally:
        os.kill(stopped, signal.SIGKILL)
    assert "has been silent" in caplog.text


def test_a_try_that_is_given_up_for_another_is_no_death(
    executor: DaskExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch, fetched = executor._fetch, []

    async def hangs_once(future: Any) -> Any:
        fetched.append(future)
        if len(fetched) == 1:
            await asyncio.sleep(600)
        return await fetch(future)

    monkeypatch.setattr(executor, "_fetch", hangs_once)
    result = executor.submit(abs, -5)
    assert eventually(lambda: fetched)
    (task,) = executor.pending()
    executor._in_loop(executor.again(task))
    assert result.result(60) == 5


def test_a_result_that_is_slow_to_come_counts_though_others_were_asked_for(
    executor: DaskExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch, begun = executor._fetch, asyncio.Event()
    fetches: list[Any] = []

    async def slow(future: Any) -> Any:
        fetches.append(future)
        if len(fetches) > 1:
            begun.set()
            await asyncio.sleep(600)
        await begun.wait()
        return await fetch(future)

    monkeypatch.setattr(executor, "_fetch", slow)
    result = executor.submit(abs, -5)
    assert eventually(lambda: fetches)
    (task,) = executor.pending()
    executor._in_loop(executor.again(task))
    assert result.result(60) == 5
    assert len({future.key for future in fetches}) == 2


def test_a_task_that_is_given_up_is_lost_without_a_death(executor: DaskExecutor) -> None:
    future = executor.submit(time.sleep, 2.0)
    (task,) = executor.pending()
    executor.give_up(task)
    with pytest.raises(WorkerDied, match="no worker of the Dask cluster returned the result") as caught:
        future.result(30)
    assert not caught.value.ended


def test_a_try_that_asks_for_code_is_over_once_it_was_given(executor: DaskExecutor, tmp_path: Path) -> None:
    def works(code: Code, folder: Path) -> int:
        (folder / "begun").touch()
        while not (folder / "go").exists():
            time.sleep(0.02)
        return len(code.load()[0])

    def forget() -> None:
        from cedar.cluster.dask import remote

        remote._code.clear()

    code = Code.of((bytes(1000),))
    assert executor.submit(lambda code: len(code.load()[0]), code).result(60) == 1000
    executor.client.run(forget)
    future = executor.submit(works, code, tmp_path)
    assert eventually((tmp_path / "begun").exists)
    (task,) = executor.pending()
    assert eventually(lambda: len(keys(executor.client, executor._run)) == 1), "those that were answered are gone"
    assert eventually(lambda: len(task.tries) == 1)
    assert task.sent > 1
    (tmp_path / "go").touch()
    assert future.result(30) == 1000


class OfWorkers(Exception):
    """An error that can be rebuilt in workers alone, as one of a library that only they have."""

    def __reduce__(self) -> Any:
        return made_in_workers, self.args


def made_in_workers(*args: Any) -> OfWorkers:
    if LOCAL_CLUSTER_VARIABLE not in os.environ:
        raise ModuleNotFoundError("no module named 'decoder'")
    return OfWorkers(*args)


def test_an_error_of_a_shared_result_that_cannot_be_read_here_is_one(executor: DaskExecutor) -> None:
    def fails() -> None:
        raise OfWorkers("a damaged file")

    before = SharedResult(f"{KEPT}unreadable", Parcel.of(RemoteCall(fails, (), {}, None)))
    with pytest.raises(cedar.WorkerError, match="no module named 'decoder'"):
        executor._submit(len, (), {}, before).result(60)


def test_a_fetch_that_is_given_up_at_any_moment_holds_up_no_other(executor: DaskExecutor) -> None:
    client = executor.client

    async def fetches() -> list[Any]:
        futures = client.map(abs, range(-40, 0), pure=False)
        for future in futures:
            await future._state.wait()
        for turns, future in enumerate(futures):  # of the loop, until it is given up
            given_up = asyncio.ensure_future(executor._fetch(future))
            for _ in range(turns):
                await asyncio.sleep(0)
            given_up.cancel()
        return [await asyncio.wait_for(executor._fetch(future), 20) for future in futures]

    assert client.sync(fetches) == list(range(40, 0, -1))


def test_a_forked_child_leaves_the_tasks_of_its_parent_alone(executor: DaskExecutor) -> None:
    future = executor.submit(time.sleep, 0.5)
    child = os.fork()
    if not child:
        signal.alarm(60)
        executor_module._end()  # as at the end of any program
        os._exit(int(future.cancelled()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert future.result(30) is None


def test_a_cancelled_task_leaves_the_cluster(executor: DaskExecutor) -> None:
    futures = [executor.submit(time.sleep, 1.0) for _ in range(6)]
    assert futures[-1].cancel()
    executor.shutdown(wait=False, cancel_futures=True)
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(int)
    client, run = executor.client, executor._run
    client.sync(asyncio.sleep, 0)  # what was submitted is on its way to the scheduler, which may not know of it yet
    assert eventually(lambda: not any(run in str(key) for key in client.futures) and not keys(client, run))


def test_a_task_that_the_scheduler_has_not_taken_up_yet_leaves_it_too(executor: DaskExecutor) -> None:
    held = 6.0 if LONG else 0.5

    def slow_down(dask_scheduler: Any) -> None:
        from distributed import scheduler

        take_up = scheduler._materialize_graph

        def slowly(*args: Any, **kwargs: Any) -> Any:
            time.sleep(held)
            dask_scheduler.taken_up = True
            return take_up(*args, **kwargs)

        dask_scheduler.at_once = take_up
        scheduler._materialize_graph = slowly

    def restore(dask_scheduler: Any) -> None:
        from distributed import scheduler

        scheduler._materialize_graph = dask_scheduler.at_once

    client = executor.client
    client.run_on_scheduler(slow_down)
    try:
        future = executor.submit(abs, -1)
        assert eventually(lambda: executor.pending()[0].tries)
        assert future.cancel()
        assert eventually(lambda: client.run_on_scheduler(lambda dask_scheduler: hasattr(dask_scheduler, "taken_up")))
        assert eventually(
            lambda: not client.run_on_scheduler(lambda dask_scheduler: dask_scheduler._active_graph_updates)
        )
        run = executor._run
        assert eventually(lambda: not any(run in str(key) for key in client.futures) and not keys(client, run))
    finally:
        client.run_on_scheduler(restore)


def test_results_that_nobody_takes_wait_on_their_workers(
    executor: DaskExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert eventually(lambda: len(executor.client.nthreads()) == WORKERS)  # an earlier test ended one
    monkeypatch.setattr(executor_module, "_MAX_FETCHED_BYTES", 3000)

    def later(length: int) -> Any:
        time.sleep(0.02)  # one after the other: what is reported at once is fetched at once
        return np.zeros(length)

    futures: list[Future[Any]] = [executor.submit(later, 1000) for _ in range(40)]
    assert eventually(lambda: len(executor._held_back) > 10)
    assert any(future.done() for future in futures), "the first to come is taken; it may not be the first in order"
    with executor.meter.waited():  # as a run does, that waits for its next result
        assert [future.result(30).nbytes for future in futures] == [8000] * 40


def test_a_result_that_is_let_go_of_as_it_waits_for_room_waits_no_more(
    executor: DaskExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_module, "_MAX_FETCHED_BYTES", -1)
    monkeypatch.setattr(executor, "pending", lambda: ["another one, which is the first"])
    task: Any = types.SimpleNamespace(number=-1, over=False)

    async def waits() -> bool:
        waiting = asyncio.ensure_future(executor._await_room(task))
        await asyncio.sleep(0)  # in which it begins
        assert executor.waits_for_room(task)
        waiting.cancel()
        await asyncio.wait([waiting])
        return executor.waits_for_room(task)

    assert not executor.client.sync(waits)


# ---- runs ------------------------------------------------------------------------------------------------------------


def test_a_run_outlives_a_killed_worker(expected: list[Any]) -> None:
    with numbers().loader(executor="dask", workers=WORKERS, plan="off") as loader:
        got = []
        for number, batch in enumerate(loader):
            got.append(batch["y"].tolist())
            if number == 2:
                os.kill(pids(client_at(local_address(WORKERS)))[0], signal.SIGKILL)
    assert got == expected


def test_an_abandoned_run_leaves_nothing_on_the_cluster() -> None:
    with numbers().loader(executor="dask", workers=WORKERS) as loader:
        next(iter(loader))
    assert eventually(lambda: not keys(client_at(local_address(WORKERS)), "cedar-"))  # others have theirs


def test_a_user_s_client_stays_open(expected: list[Any]) -> None:
    from distributed import Client

    address = local_address(WORKERS)
    with Client(address, set_as_default=False, security=security_at(address)) as client:
        with numbers().loader(executor=client) as loader:
            assert taken(loader) == expected
        assert loader.report().executor == "dask"
        assert client.status == "running"


def test_the_scheduler_killed_is_an_error_and_the_run_resumes(
    expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cedar.engine.runner.PATIENCE", 0.5)  # it does not come back
    host = LocalHost({"workers": 1, "dashboard": None})
    loader = numbers().loader(executor=host.address, plan="off")
    got = []
    try:
        with pytest.raises(
            cedar.WorkerError, match="scheduler at .* is gone and did not return within 0.5 s"
        ) as caught:
            for batch in loader:
                got.append(batch["y"].tolist())
                os.kill(host.pid, signal.SIGKILL)
    finally:
        host.close()
    assert "load the state into a new loader" in str(caught.value)
    resumed = numbers().loader(executor="threads")
    resumed.load_state_dict(loader.state_dict())
    assert got + taken(resumed) == expected


def test_a_script_without_a_guard_works_and_leaves_no_process_when_it_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
            import os, signal, cedar
            from cedar.cluster.dask import local
            pipeline = cedar.from_items([{"x": i} for i in range(8)]).map(lambda x: x + 1, "x", dtype=int).batch(4)
            with pipeline.loader(executor="dask", workers=1) as loader:
                print([batch["x"].tolist() for batch in loader], flush=True)
            print(local._hosts[1].pid, flush=True)
            input()
        """)
    )
    process = subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "[[1, 2, 3, 4], [5, 6, 7, 8]]\n"
        host = psutil.Process(int(process.stdout.readline()))
        family = [host, *host.children(recursive=True)]
        assert len(family) > 2
        listening = [c.laddr.ip for p in family for c in p.net_connections() if c.status == "LISTEN"]
        assert set(listening) == {"127.0.0.1"}
        process.kill()
    assert eventually(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in family))


# ---- what cannot work ------------------------------------------------------------------------------------------------


def test_an_address_without_a_port() -> None:
    with pytest.raises(cedar.core.errors.WorkerError, match="missing port number"):
        client_at("tcp://127.0.0.1")


def test_an_address_that_nobody_answers() -> None:
    with limits(connect="300ms"), pytest.raises(cedar.WorkerError, match="within 0.3 s") as caught:
        next(iter(numbers().loader(executor=NOBODY)))
    assert f"no Dask scheduler answers at {NOBODY}" in str(caught.value)
    assert "distributed.comm.tls" in str(caught.value)


def test_a_cluster_without_workers() -> None:
    host = LocalHost({"workers": 0, "dashboard": None})
    try:
        with limits(workers="200ms"), pytest.raises(cedar.WorkerError, match="has no worker, and none joined"):
            next(iter(numbers().loader(executor=host.address)))
    finally:
        host.close()


def test_versions_that_differ_are_named() -> None:
    class Client:
        def sync(self, question: Any, callback_timeout: float, **named: Any) -> Any:
            return question(**named)

        def get_versions(self, **_: Any) -> dict[str, Any]:
            def part(cedar: str | None, python: str = "3.11.7.final.0") -> dict[str, Any]:
                return {"packages": {"cedar": cedar, "python": python, "pyarrow": "25.0"}}

            workers = {"tcp://a:1": part("0.1.0", "3.12.1.final.0"), "tcp://a:2": part("0.1.0", "3.11.2.final.0")}
            return {"client": part("0.1.0"), "scheduler": part("0.0.9"), "workers": workers}

    with pytest.raises(cedar.WorkerError) as caught:
        check_versions(Client(), NOBODY)
    told = str(caught.value)
    assert "scheduler: cedar 0.0.9, here 0.1.0" in told
    assert "worker tcp://a:1: Python 3.12, here 3.11" in told
    assert "a:2" not in told


def test_a_module_that_the_workers_do_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("only_here")
    exec("def twice(x): return 2 * x", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", module)
    p = cedar.from_items([{"x": 1}]).map(module.twice, "x", dtype=int).batch(1)
    with pytest.raises(cedar.WorkerError, match="no module.* 'only_here'|No module named 'only_here'") as caught:
        next(iter(p.loader(executor="dask", workers=WORKERS, plan="off")))
    assert "next" in str(caught.value)


def test_an_asynchronous_client_is_refused() -> None:
    class Asynchronous:
        asynchronous = True

    from cedar.cluster.dask.clients import check

    with pytest.raises(cedar.PipelineError, match="asynchronous"):
        check(Asynchronous(), NOBODY)


# ---- plans -----------------------------------------------------------------------------------------------------------


def test_a_plan_places_stages_on_the_cluster_where_that_pays() -> None:
    address = local_address(WORKERS)
    p = cedar.from_items([{"x": i} for i in range(400)]).map(lambda x: x + 1, "x", into="y", dtype=int).batch(20)
    plan = p.optimize(cedar.Budget(cluster=address))
    nodes = list(graph.walk(plan.root))
    there = {n.operator.name: replace(n, place=address) for n in nodes if n.operator.name == "map"}
    forced = replace(plan, root=replace(nodes[-1], inputs=(replace(there["map"], inputs=nodes[1].inputs),)))
    with p.loader(plan=forced) as loader:
        assert taken(loader) == [[x + 1 for x in range(i, i + 20)] for i in range(0, 400, 20)]
    assert address in p.explain() or address in loader.explain()
