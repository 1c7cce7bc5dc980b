"""Nothing is left behind: threads and file descriptors, however a run ends."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar.executors import processes
from tests.how_much import LONG
from tests.waiting import eventually

FDS = Path("/proc/self/fd")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("leaks")
    for i in range(4):
        pq.write_table(pa.table({"x": range(i * 200, i * 200 + 200)}), folder / f"{i}.parquet", row_group_size=20)
        (folder / f"{i}.txt").write_text("\n".join(map(str, range(200))))
    return str(folder)


async def later(x: int) -> int:
    await asyncio.sleep(0)
    return x


def pipelines(files: str) -> dict[str, cedar.Pipeline]:
    parquet = cedar.read_parquet(f"{files}/*.parquet")
    return {
        "read": parquet.shuffle().batch(8),
        "python": parquet.map(lambda x: x + 1, "x").shuffle(window=50).batch(8),
        "async": parquet.map(later, "x", dtype=int).batch(8),
        "timeout": parquet.map(lambda x: x, "x", timeout=5, dtype=int).batch(8),
        "mixed": cedar.mix([(parquet, 1.0), (parquet.repeat(), 1.0)]).batch(8),
        "iterator": cedar.from_iterable(lambda: iter([{"x": i} for i in range(800)])).batch(8),
        "text": cedar.read_text(f"{files}/*.txt").batch(8),
    }


NAMES = ["read", "python", "async", "timeout", "mixed", "iterator", "text"]


def ours() -> list[str]:
    gc.collect()
    return [t.name for t in threading.enumerate() if t.name.startswith("cedar")]


def gone() -> bool:
    """Whether all threads end by themselves, be it on a busy machine."""
    return eventually(lambda: not ours())


def by_break(p: cedar.Pipeline) -> None:
    for number, _ in enumerate(p.loader(executor="threads", workers=2)):
        if number == 2:
            break


def by_exception(p: cedar.Pipeline) -> None:
    with pytest.raises(ZeroDivisionError):
        for _ in p.loader(executor="threads", workers=2):
            1 / 0  # noqa: B018


def by_interrupt(p: cedar.Pipeline) -> None:
    with pytest.raises(KeyboardInterrupt):
        for _ in p.loader(executor="threads", workers=2):
            raise KeyboardInterrupt


def by_deletion(p: cedar.Pipeline) -> None:
    loader = p.loader(executor="threads", workers=2)
    iterator = iter(loader)
    next(iterator)
    del iterator, loader


def by_closing(p: cedar.Pipeline) -> None:
    with p.loader(executor="threads", workers=2) as loader:
        iterator = iter(loader)
        next(iterator)
    assert gone(), "close() ends what runs, also where an iterator is still held"
    del iterator


def by_reading_again(p: cedar.Pipeline) -> None:
    with p.loader(executor="threads", workers=2) as loader:
        loader.read(1)
        loader.read(0)


ENDS = [by_break, by_exception, by_interrupt, by_deletion, by_closing, by_reading_again]
EACH = [(name, end) for i, name in enumerate(NAMES) for j, end in enumerate(ENDS) if LONG or (i - j) % 3 == 0]


@pytest.mark.heavy
@pytest.mark.parametrize(("name", "end"), EACH)
def test_threads_are_gone(name: str, end: Callable[[cedar.Pipeline], None], files: str) -> None:
    end(pipelines(files)[name])
    assert gone()


def test_a_failing_function_leaves_no_thread(files: str) -> None:
    def fails(x: int) -> int:
        if x == 300:
            raise ValueError
        return x

    with pytest.raises(cedar.RowError):
        list(cedar.read_parquet(f"{files}/*.parquet").map(fails, "x", dtype=int).loader(executor="threads"))
    assert gone()


def test_an_interrupt_while_a_function_works_comes_through(files: str) -> None:
    sent: list[str] = []

    def interrupted(x: int) -> int:
        if x == 300 and executor not in sent:  # once: the next signal would interrupt the test
            sent.append(executor)
            os.kill(os.getpid(), signal.SIGINT)
        return x

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's jobs in the background ignore it
    try:
        for executor in ("inline", "threads"):
            p = cedar.read_parquet(f"{files}/*.parquet").map(interrupted, "x", dtype=int)
            with pytest.raises(KeyboardInterrupt):
                list(p.loader(executor=executor))
            assert gone()
    finally:
        signal.signal(signal.SIGINT, before)
    assert sent == ["inline", "threads"]


@pytest.mark.heavy
@pytest.mark.skipif(not FDS.is_dir(), reason="counts open files in /proc")
def test_two_hundred_abandoned_loaders_leave_nothing(files: str) -> None:
    processes.close()  # a pool that other tests left may start a worker that stands by
    made = pipelines(files)

    def cycle(number: int) -> None:
        iterator = iter(made[NAMES[number % len(NAMES)]].loader(executor="threads", workers=2))
        next(iterator)
        if number % 3 == 0:
            del iterator

    for number in range(14):
        cycle(number)
    assert gone()
    descriptors, threads = len(os.listdir(FDS)), threading.active_count()
    for number in range(200):
        cycle(number)
    assert gone()
    assert len(os.listdir(FDS)) <= descriptors
    assert threading.active_count() <= threads


SCRIPT = """
import signal, sys, time
import cedar
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's jobs in the background ignore it
def slow(x):
    time.sleep(0.005)
    return x
p = cedar.from_items([{"x": i} for i in range(100_000)]).map(slow, "x", dtype=int).batch(4)
for number, batch in enumerate(p.loader(executor=sys.argv[1], workers=2)):
    if number == 1:
        print("running", flush=True)
"""


@pytest.mark.heavy
@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_control_c_ends_the_process_at_once(executor: str) -> None:
    process: Any = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, executor], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "running\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode != 0
    assert "KeyboardInterrupt" in errors
    assert errors.count("Traceback") == 1, errors
