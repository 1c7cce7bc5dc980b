"""Executor "processes": warm workers, code by value, transport, deaths, and nothing left behind."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import cedar
from cedar.engine.runner import Runner
from cedar.executors import processes
from cedar.executors.processes import forkserver
from cedar.executors.processes.pool import Pool, WorkerDied
from cedar.executors.worker.wire import Wire, decode, encode
from tests.executors.processes.watching import WORKERS, gone
from tests.waiting import eventually


def numbers(n: int = 200) -> cedar.Pipeline:
    return cedar.from_items([{"x": i} for i in range(n)])


def taken(pipeline: cedar.Pipeline, **options: Any) -> list[Any]:
    with pipeline.loader(executor="processes", workers=WORKERS, **options) as loader:
        return [batch["x"].tolist() for batch in loader]


def test_new_workers_replace_those_with_an_old_version_of_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    file = tmp_path / "reloaded_functions.py"
    file.write_text("def change(x):\n    return x + 1\n")
    module = importlib.import_module("reloaded_functions")

    def run() -> list[Any]:
        p = cedar.from_items([{"x": 1}]).map(module.change, "x", dtype=int)
        return [row["x"] for row in p.loader(executor="processes", workers=WORKERS)]

    assert run() == [2]
    pool = processes.warm(WORKERS)
    assert run() == [2]
    assert processes.warm(WORKERS) is pool
    file.write_text("def change(x):\n    return x + 100\n")
    importlib.reload(module)
    assert run() == [101]
    assert pool.closed, "no run used it"


def outdate(workers: int) -> None:
    """Lets the pool look like one that was requested before this module was reloaded."""
    processes._modules[workers][__name__] = None


def test_a_pool_that_the_next_run_replaces_is_not_ready() -> None:
    processes.warm(1)
    assert eventually(lambda: processes.ready(1))
    outdate(1)
    assert not processes.ready(1)


def test_a_pool_replaced_while_a_run_requests_it_serves_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    warm = processes.warm

    def warm_and_replace(*args: Any) -> Pool:
        requested = warm(*args)
        outdate(1)
        assert warm(1) is not requested
        return requested

    monkeypatch.setattr(processes, "warm", warm_and_replace)
    lease = processes.Lease(1)
    assert lease.submit(abs, -1).result() == 1
    lease.shutdown()
    assert lease.ended, "no other run used it"


def test_a_call_in_a_fresh_process_outlives_the_replacement_of_its_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "pools", list)
    wait = f"touch {tmp_path}/begun; while ! test -e {tmp_path}/gate; do sleep 0.01; done"
    with ThreadPoolExecutor(1) as thread:
        call = thread.submit(processes.call_fresh, subprocess.run, ["sh", "-c", wait], timeout=300)
        assert eventually((tmp_path / "begun").exists)
        outdate(1)
        processes.warm(1)
        (tmp_path / "gate").touch()
        assert call.result().returncode == 0


def test_an_abandoned_run_can_be_collected_while_a_pool_is_requested(pool: Pool) -> None:
    def running() -> int:
        return sum(not lease.shut for lease in processes._leases)

    gc.collect()
    gc.disable()
    try:
        before = running()
        abandoned: list[Any] = [iter(numbers().batch(10).loader(executor="processes", workers=WORKERS))]
        next(abandoned[0])
        abandoned.append(abandoned)
        del abandoned
        assert running() == before + 1
        with processes._lock:
            gc.collect()
        assert running() == before
    finally:
        gc.enable()
    assert sum(map(len, taken(numbers().batch(10)))) == 200


# ---- wire ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def wires() -> Iterator[tuple[Wire, Wire]]:
    here, there = (Wire(end) for end in socket.socketpair())
    yield here, there
    here.close()
    there.close()


def test_large_buffers_travel_apart(wires: tuple[Wire, Wire]) -> None:
    message = {"a": np.arange(1 << 18), "b": pa.array(range(1 << 16)), "c": [np.ones(3000)] * 3, "d": "small"}
    parts = encode(message)
    assert parts[0].nbytes < 10_000
    sender = threading.Thread(target=wires[0].send, args=(parts,))
    sender.start()
    got = decode(wires[1].receive())
    sender.join()
    assert got["a"].tolist() == message["a"].tolist()
    assert got["b"].equals(message["b"])
    assert got["a"].flags.writeable
    assert got["d"] == "small"


def test_many_buffers_are_one_message(wires: tuple[Wire, Wire]) -> None:
    arrays = [np.full(5000, i) for i in range(1500)]
    sender = threading.Thread(target=wires[0].send, args=(encode(arrays),))
    sender.start()
    got = decode(wires[1].receive())
    sender.join()
    assert [int(a[0]) for a in got] == list(range(1500))


# ---- pool ------------------------------------------------------------------------------------------------------------


def test_the_pool_is_kept(pool: Pool) -> None:
    assert processes.warm(WORKERS) is pool
    assert eventually(lambda: processes.ready(WORKERS))
    before = pool.pids()
    p = numbers().map(lambda x: x + 1, "x", dtype=int).batch(10)
    assert taken(p) == taken(p)
    assert pool.pids() == before


def test_workers_are_one_core_each(pool: Pool) -> None:
    def limits() -> tuple[str, str, int]:
        return os.environ["OMP_NUM_THREADS"], os.environ["RAYON_NUM_THREADS"], pa.cpu_count()

    assert pool.submit(limits).result() == ("1", "1", 1)


def test_the_pool_of_polars_is_as_here(pool: Pool) -> None:
    """Sums of long columns show its size, which nothing can change once it is there."""
    import polars as pl

    assert pool.submit(pl.thread_pool_size).result() == pl.thread_pool_size()


def test_workers_ignore_control_c(pool: Pool) -> None:
    pid = pool.submit(os.getpid).result()
    os.kill(pid, signal.SIGINT)
    assert {pool.submit(os.getpid).result() for _ in range(20)} <= set(pool.pids())
    assert pid in pool.pids()
    assert not gone(pid)


def test_relative_paths_mean_the_same(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert pool.submit(os.getcwd).result() == str(tmp_path)
    monkeypatch.undo()
    assert pool.submit(os.getcwd).result() == os.getcwd()


@pytest.mark.parametrize("other", [False, True])
def test_no_task_that_is_alone_waits_behind_a_slow_one(other: bool, pool: Pool, tmp_path: Path) -> None:
    lease = processes.Lease(WORKERS)
    lease.alone = True
    for quick in [lease.submit(abs, -1) for _ in range(4 * WORKERS)]:  # what comes after such is sent ahead
        quick.result()
    wait = f"while ! test -e {tmp_path}/gate; do sleep 0.01; done"
    slow = (pool if other else lease).submit(subprocess.run, ["sh", "-c", wait], timeout=300)
    assert [quick.result(120) for quick in [lease.submit(abs, -i) for i in range(8)]] == list(range(8))
    assert not slow.done()
    (tmp_path / "gate").touch()
    slow.result()


def test_a_worker_that_does_not_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    forkserver.close()
    monkeypatch.setattr(forkserver, "_CODE", "import os; os._exit(7)")
    pool = Pool(1)
    for _ in range(2):
        with pytest.raises(WorkerDied, match=r"could not be started \(exit code 7\)"):
            pool.submit(int).result()
    monkeypatch.undo()
    assert pool.submit(abs, -2).result() == 2
    pool.shutdown()


def test_a_forked_child_leaves_the_workers_alone(pool: Pool) -> None:
    pool.submit(int).result()
    script = """
        import os, sys, warnings
        warnings.simplefilter("ignore")
        from cedar.executors import processes
        pool = processes.warm(1)
        assert pool.submit(abs, -3).result() == 3
        child = os.fork()
        if not child:
            try:
                pool.submit(int)
            except RuntimeError:
                os._exit(processes.warm(1).submit(abs, -5).result())
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
        assert pool.submit(abs, -4).result() == 4
    """
    arguments = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_costs_are_measured() -> None:
    task, rate = processes.ship_costs(1 << 20, WORKERS)
    assert 0 < task < 1
    assert rate > 1e6


# ---- loaders ---------------------------------------------------------------------------------------------------------


def test_a_failing_row_is_named(pool: Pool) -> None:
    class Wrong(Exception):
        pass

    def fails(x: int) -> int:
        if x == 77:
            raise Wrong("seventy-seven")
        return x

    with pytest.raises(cedar.RowError, match="seventy-seven") as caught:
        taken(numbers().map(fails, "x", dtype=int).batch(10))
    assert caught.value.row is not None
    assert caught.value.row.row == 77
    assert type(caught.value.__cause__) is Wrong
    assert "in fails" in "".join(caught.value.__cause__.__notes__)


@pytest.mark.parametrize("end", [lambda: os._exit(3), lambda: os.kill(os.getpid(), signal.SIGKILL)])
def test_a_row_that_ends_its_worker_is_named(end: Any, pool: Pool) -> None:
    def dies(x: int) -> int:
        return end() if x == 50 else x

    with pytest.raises(cedar.RowError, match=r"map\(dies\) failed.*(exit code 3|SIGKILL)") as caught:
        taken(numbers().map(dies, "x", dtype=int).batch(10))
    assert caught.value.row is not None
    assert caught.value.row.row == 50
    assert sum(map(len, taken(numbers().map(abs, "x", dtype=int).batch(10)))) == 200


def test_a_function_that_cannot_be_sent(pool: Pool) -> None:
    lock = threading.Lock()

    def locks(x: int) -> int:
        with lock:
            return x

    with pytest.raises(cedar.WorkerError, match="cannot be sent to another process"):
        taken(numbers().map(locks, "x", dtype=int).batch(10))


def test_rows_that_cannot_be_sent_name_their_column(pool: Pool) -> None:
    def opens(x: int) -> Any:
        return threading.Lock()

    with pytest.raises(cedar.WorkerError, match="column 'lock'"):
        taken(numbers().map(opens, "x", into="lock", dtype=object).batch(10))


def test_instances_live_through_epochs(pool: Pool) -> None:
    class Loads:
        def __init__(self) -> None:
            self.born = time.monotonic_ns()

        def __call__(self, x: int) -> int:
            return self.born

    p = numbers().map(Loads, "x", dtype=int).batch(10)
    with p.loader(executor="processes", workers=WORKERS) as loader:
        first, second = ({v for batch in loader for v in batch["x"].tolist()} for _ in range(2))
        first, second = set(first), set(second)
    assert 1 <= len(first | second) <= WORKERS


def test_streaming_sources_are_read_beside_the_loop(pool: Pool) -> None:
    readers: set[str] = set()

    def rows() -> Iterator[dict[str, int]]:
        readers.add(threading.current_thread().name)
        yield from ({"x": i} for i in range(500))

    got = taken(cedar.from_iterable(rows).map(abs, "x", dtype=int).batch(50))
    assert [x for batch in got for x in batch] == list(range(500))
    assert threading.current_thread().name not in readers


# ---- scripts ---------------------------------------------------------------------------------------------------------

SCRIPT = """
import sys, time
import cedar

print("main runs", flush=True)

class Point:
    def __init__(self, x): self.x = x
    def __eq__(self, other): return self.x == other.x

class Doubles:
    def __call__(self, x): return helper(x)

def helper(x):
    return 2 * x

p = cedar.from_items([{"x": i, "p": Point(i)} for i in range(100)]).map(Doubles, "x", dtype=int).batch(5)
for number, batch in enumerate(p.loader(executor="processes", workers=2)):
    assert all(type(point) is Point for point in batch["p"])
    print(batch["x"].tolist()[-1], flush=True)
    END
"""


def script(end: str, how: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    text = SCRIPT.replace("END", end)
    file = tmp_path / "script.py"
    file.write_text(text)
    arguments, stdin = {"file": ([str(file)], ""), "stdin": (["-"], text), "-c": (["-c", text], "")}[how]
    return subprocess.run(
        [sys.executable, *arguments], input=stdin, capture_output=True, text=True, timeout=60, cwd=tmp_path,
        check=False,
        env=os.environ | {"PYTHONPATH": str(Path(cedar.__file__).parents[1])},
    )  # fmt: skip


@pytest.mark.heavy
@pytest.mark.parametrize("how", ["file", "stdin", "-c"])
def test_a_script_without_a_guard_works(how: str, tmp_path: Path) -> None:
    done = script("pass", how, tmp_path)
    assert done.stderr == ""
    assert done.stdout.split("\n")[:2] == ["main runs", "8"]
    assert done.stdout.count("main runs") == 1
    assert len(done.stdout.split()) == 22


@pytest.mark.heavy
def test_a_script_that_breaks_off_ends_quietly(tmp_path: Path) -> None:
    done = script("if number == 1: break", "file", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.heavy
def test_a_script_that_raises_shows_its_error_alone(tmp_path: Path) -> None:
    done = script("if number == 1: 1 / 0", "file", tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    assert "ZeroDivisionError" in done.stderr


NUMBERS = """
import sys
import cedar
def there(x): return int("pandas" in sys.modules)
p = cedar.read_parquet(sys.argv[1]).map(there, "x", dtype=int).map(float, "y", dtype=float).batch(10)
for executor in ("threads", "processes"):
    print(*[batch["x"].max() for batch in p.loader(executor=executor, workers=1)])
"""


@pytest.mark.heavy
def test_no_number_waits_for_pandas_to_be_imported(tmp_path: Path) -> None:
    numbers(20).map(lambda x: x / 2, "x", into="y").write_parquet(str(tmp_path))
    command = [sys.executable, "-c", NUMBERS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("0 0\n" * 2, "")


ORPHANS = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's jobs in the background ignore it
from cedar.executors import processes
def spin():
    while True: pass
def quiet():
    time.sleep(600)
pool = processes.warm(3)
pool.submit(abs, 1).result()
while not processes.ready(3): time.sleep(0.01)
pool.submit(spin), pool.submit(quiet)
time.sleep(0.1)
print(*pool.pids(), flush=True)
time.sleep(600)
"""


@pytest.mark.heavy
@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="looks for processes in /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_end_with_their_parent(how: signal.Signals) -> None:
    parent: Any = subprocess.Popen(
        [sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 3
        assert not any(map(gone, pids))
        parent.send_signal(how)
        parent.wait(60)
    finally:
        parent.kill()
        parent.communicate()
    assert eventually(lambda: all(map(gone, pids)))


# ---- runners ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["threads", "processes"])
def test_a_runner_changes_its_size(name: str, pool: Pool) -> None:
    runner = Runner(name, 1)
    before = [runner.executor.submit(pow, i, 2) for i in range(20)]
    assert runner.resize(WORKERS)
    assert (runner.workers, runner.ahead) == (WORKERS, 2 * WORKERS)
    after = [runner.executor.submit(pow, i, 2) for i in range(20)]
    assert [f.result() for f in before + after] == [i**2 for i in range(20)] * 2
    assert runner.resize(WORKERS, ahead=9)
    assert runner.ahead == 9
    runner.close()


def test_runners_are_made_once_and_closed_together(pool: Pool) -> None:
    runner = Runner("threads", WORKERS, places=True)
    assert runner.of("") is runner.of("threads") is runner
    other = runner.of("processes")
    assert other is runner.of("processes")
    assert (other.name, other.workers) == ("processes", WORKERS)
    assert runner.of("inline").inline
    with pytest.raises(cedar.PlanError):
        runner.of("nowhere")
    assert runner.lanes == 2 * WORKERS + 1
    runner.close()
    for each in (runner, other):
        with pytest.raises(cedar.WorkerError, match="takes no more tasks"):
            each.submit(int)
