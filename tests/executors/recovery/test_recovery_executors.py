"""Recovery with time limits, and executors of others."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

import pytest

import cedar
from cedar.executors import processes
from cedar.executors.base import TaskExecutor
from cedar.executors.processes.pool import Pool, WorkerDied
from cedar.executors.recovery.recovery import Recovery
from cedar.executors.recovery.task import Deaths, TaskWork
from cedar.executors.recovery.waiting import Patience, process_board
from cedar.operators.base import Env
from cedar.tasks.chain import Program
from tests.waiting import LIMIT, eventually

pytestmark = [pytest.mark.heavy, pytest.mark.waits]

WORKERS = 2


@pytest.fixture(scope="module", autouse=True)
def pool() -> Pool:
    return processes.warm(WORKERS)


def numbers(n: int = 200) -> cedar.Pipeline:
    return cedar.from_items([{"x": i} for i in range(n)])


def loader(pipeline: cedar.Pipeline, executor: Any = "processes", **options: Any) -> cedar.Loader:
    return pipeline.loader(executor=executor, workers=WORKERS, plan="off", **options)


def rows(loader: cedar.Loader) -> list[int]:
    with loader:
        return [x for batch in loader for x in batch["x"].tolist()]


def but(*left_out: int) -> list[int]:
    return [x for x in range(200) if x not in left_out]


# ---- time limits -----------------------------------------------------------------------------------------------------


def test_rows_that_hang_are_bad_rows() -> None:
    def hangs(x: int) -> int:
        if x == 70:
            time.sleep(1000)
        if x == 120:
            ctypes.PyDLL(None).sleep(1000)  # holds the lock of the interpreter, in C
        while x == 133:
            pass
        return x

    bad = loader(numbers().map(hangs, "x", dtype=int, timeout=2, on_error=cedar.Skip()).batch(10))
    assert rows(bad) == but(70, 120, 133)
    assert bad.report().restarts == 3
    assert all("no result within timeout=2 s" in death for death in bad.report().deaths)


def test_a_batch_that_hangs_is_a_bad_batch() -> None:
    def hangs(x: Any) -> Any:
        while 77 in x:
            pass
        return x

    hanging = numbers().batch(10).map(hangs, "x", dtype=int, timeout=2)
    with pytest.raises(cedar.RowError, match=r"map\(hangs\) failed: TimeoutError: no result within timeout=2 s"):
        rows(loader(hanging))


def test_threads_that_hang_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    from cedar.operators import concurrent_calls

    monkeypatch.setattr(concurrent_calls, "_MAX_STUCK_THREADS", 1)
    go = threading.Event()

    def hangs(x: int) -> int:
        return go.wait(60) + x if x == 10 else x

    try:
        some = numbers(30).map(hangs, "x", dtype=int, timeout=2, on_error=cedar.Skip()).batch(10)
        with loader(some, "threads") as first:
            assert sum(len(batch["x"]) for batch in first) == 29
            assert "1 call(s) beyond their timeout= still run" in str(first.report())
        with pytest.raises(cedar.PipelineError, match=r"2 calls continue beyond timeout=2 s"):
            rows(loader(some, "threads"))
    finally:
        go.set()


# ---- executors of others ---------------------------------------------------------------------------------------------


def test_a_broken_pool_of_the_user_says_what_to_do() -> None:
    def ends(x: int) -> int:
        return os._exit(3) if x == 50 else x

    broken = pytest.raises(cedar.WorkerError, match=r"a worker died, and the executor takes no more")
    with ProcessPoolExecutor(1, get_context("spawn")) as pool, broken as caught:
        rows(loader(numbers().map(ends, "x", dtype=int).batch(10), pool))
    assert 'executor="processes"' in str(caught.value.fix)


class Forgetful(Executor):
    """Runs tasks in a process whose marks cannot be seen, as one on another machine, and loses every third."""

    def __init__(self, inner: Executor) -> None:
        self.inner, self.count = inner, 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        def far(a: Any) -> Any:
            if not isinstance(a, Env) or a.marks is None:
                return a
            return replace(a, marks=replace(a.marks, place=replace(a.marks.place, path="/nowhere")))

        self.count += 1
        if self.count % 3 == 0:
            lost: Future[Any] = Future()
            lost.set_exception(WorkerDied("connection lost"))
            return lost
        return self.inner.submit(fn, *map(far, args), **kwargs)


def test_tasks_lost_by_any_executor_are_run_again(pool: Pool) -> None:
    some = loader(numbers().map(abs, "x", dtype=int).batch(10), Forgetful(pool))
    assert rows(some) == but()
    assert some.report().restarts > 0
    assert all("connection lost" in death for death in some.report().deaths)


def test_a_row_that_ends_processes_far_away_is_found_here(pool: Pool) -> None:
    def ends(x: int) -> int:
        return os._exit(3) if x == 77 else x

    bad = loader(numbers().map(ends, "x", dtype=int, on_error=cedar.Skip()).batch(10), Forgetful(pool))
    assert rows(bad) == but(77)
    assert any("row 77, epoch 0; the row is a bad row" in death for death in bad.report().deaths)


def test_an_executor_that_is_shut_down_ends_the_run(pool: Pool) -> None:
    class Shut(Executor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.cancel()
            future.set_running_or_notify_cancel()
            self.submit = self.refuse  # type: ignore[method-assign]
            return future

        def refuse(self, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("cannot schedule new futures after shutdown")

    with pytest.raises(cedar.WorkerError, match="the executor takes no more tasks: cannot schedule"):
        rows(loader(numbers().map(abs, "x", dtype=int).batch(10), Shut()))


def test_a_loader_that_is_left_does_not_go_on(pool: Pool) -> None:
    def ends(x: int) -> int:
        return os._exit(3) if x > 100 else x

    left = loader(numbers().map(ends, "x", dtype=int).batch(10))
    for _ in left:
        break
    left.close()
    count = left.report().restarts
    assert pool.submit(abs, -1).result() == 1
    assert left.report().restarts - count <= WORKERS


def test_a_task_that_meets_a_pool_being_replaced_goes_to_the_next(pool: Pool) -> None:
    class Left(TaskExecutor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            current[0] = pool
            raise RuntimeError("cannot schedule new futures after shutdown")

    current: list[TaskExecutor] = [Left()]
    recovery = Recovery(lambda: current[0], Deaths(), marks=True)
    work = TaskWork(Program((), 0), lambda submit, _: submit(abs, -3))
    result: Any = recovery.submit(work).result(60)
    assert result == 3
    recovery.close()


def test_a_task_lost_while_recovery_closes_leaves_its_thread_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    lost: Future[Any] = Future()

    class One(TaskExecutor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            return lost

    recovery = Recovery(One, Deaths(), marks=True)
    start = recovery._start
    task = recovery.submit(TaskWork(Program((), 0), lambda submit, _: submit(abs, -3)))
    recovery.close()
    with monkeypatch.context() as late:
        late.setattr(recovery, "_start", lambda: None)  # as where the thread has not looked yet
        lost.set_exception(WorkerDied("connection lost"))
    start()
    assert recovery._thread is not None
    recovery._thread.join(LIMIT)
    assert not recovery._thread.is_alive()
    assert task.cancelled()


def test_results_that_do_not_come_are_no_deaths_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cedar.executors.recovery.recovery._MAX_DEATHS_IN_A_ROW", 1)

    class Slow(TaskExecutor):
        def __init__(self) -> None:
            self.left = 4

        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            self.left -= 1
            future: Future[Any] = Future()
            if self.left < 0:
                future.set_result(fn(*args))
            else:
                future.set_exception(WorkerDied("no worker brings the result", ended=False))
            return future

    deaths, slow = Deaths(), Slow()
    recovery = Recovery(lambda: slow, deaths, marks=True)
    result: Any = recovery.submit(TaskWork(Program((), 0), lambda submit, _: submit(abs, -3))).result(60)
    recovery.close()
    assert (result, deaths.count) == (3, 4)


def test_a_look_that_fails_leaves_recovery_at_work(caplog: pytest.LogCaptureFixture) -> None:
    looked, lost = threading.Event(), Future[Any]()

    class Unseen(TaskExecutor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            self.submit = pool_of_one.submit  # type: ignore[method-assign] # from the second on
            return lost

        def members(self) -> Any:
            looked.set()
            raise ValueError("what tells of a process cannot be read")

    with ThreadPoolExecutor(1) as pool_of_one:
        unseen = Unseen()
        recovery = Recovery(lambda: unseen, Deaths(), True, Patience(look=0.01))
        task: Future[Any] = recovery.submit(TaskWork(Program((), 0), lambda submit, _: submit(abs, -3)))
        assert looked.wait(60)
        lost.set_exception(WorkerDied("connection lost"))
        assert task.result(60) == 3
        recovery.close()
    assert caplog.text.count("checking for stuck workers failed") == 1


def test_a_task_without_an_executor_leaves_no_slot_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Executor:
        raise OSError("no process can be started")

    given: list[Any] = []
    monkeypatch.setattr(process_board(), "give", given.append)
    recovery = Recovery(none, Deaths(), marks=True)
    with pytest.raises(OSError, match="no process can be started"):
        recovery.submit(TaskWork(Program((), 0), lambda submit, _: submit(abs, -3)))
    assert len(given) == 1
    monkeypatch.undo()
    process_board().give(*given)


def test_a_forgotten_loader_that_made_a_batch_again_leaves_no_thread(pool: Pool) -> None:
    def watching() -> int:
        return sum(thread.name == "cedar-recovery" and thread.is_alive() for thread in threading.enumerate())

    before = watching()
    forgotten = loader(numbers(20).map(abs, "x", dtype=int, timeout=60).batch(10))
    forgotten.read(0)
    assert watching() == before + 1
    del forgotten
    gc.collect()
    assert eventually(lambda: watching() == before)
