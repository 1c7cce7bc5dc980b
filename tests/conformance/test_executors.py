"""One suite for every executor: the same rows in the same order, bit by bit, through stops, resumes and ranks."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import cedar
from tests.conformance import operators
from tests.conformance.sources import PIPELINES, write_files
from tests.how_much import LONG
from tests.toy_runs import plain, saved

assert operators  # importing it fills PIPELINES

EXECUTORS = ["inline", "threads", "processes", "a thread pool", "a process pool"]
# What is started for a loader or handed to it takes the same path for every pipeline: `make test` gives processes every
# second, and pools of the user's every sixth; `make test-long` gives them all.
SELDOM = {"processes": 2, "a thread pool": 6, "a process pool": 6}
EVERY = pytest.mark.parametrize(
    ("name", "executor"),
    [
        (name, executor)
        for number, name in enumerate(PIPELINES)
        for executor in EXECUTORS
        if LONG or number % SELDOM.get(executor, 1) == 0
    ],
    indirect=["executor"],
)
SEED = 11
WORKERS = 3  # everywhere, so that one warm pool serves all


@pytest.fixture(scope="session")
def processes() -> Iterator[Executor]:
    """A pool of the user's, with fresh interpreters: code must travel by value."""
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        pool.submit(int).result()  # its threads are there before the first test counts threads
        yield pool


@pytest.fixture(scope="session")
def threads() -> Iterator[Executor]:
    with ThreadPoolExecutor(3) as pool:
        for future in [pool.submit(pow, i, 99) for i in range(99)]:
            future.result()
        yield pool


@pytest.fixture
def executor(request: pytest.FixtureRequest, threads: Executor, processes: Executor) -> str | Executor:
    pools: dict[str, Executor] = {"a thread pool": threads, "a process pool": processes}
    name: str = request.param
    return pools.get(name, name)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("conformance")
    write_files(path)
    return path


def run(loader: cedar.Loader, stop: int | None = None) -> list[Any]:
    got: list[Any] = []
    if stop == 0:
        return got
    for value in loader:
        got.append({name: plain(column) for name, column in value.items()})
        if len(got) == stop:
            break
    return got


@cache
def reference(name: str, folder: Path) -> list[Any]:
    """What a single thread makes of it."""
    return run(PIPELINES[name](folder).loader(executor="inline", seed=SEED))


@cache
def shares(name: str, folder: Path) -> list[Any]:
    """What a single thread makes of it on each of two ranks."""
    loaders = [PIPELINES[name](folder).loader(executor="inline", seed=SEED, rank=rank, world=2) for rank in range(2)]
    return [run(loader) for loader in loaders]


def counted(values: list[Any]) -> Counter[str]:
    """How often each batch is there, but for those of nothing but padding."""
    return Counter(repr(v) for v in values if "valid" not in v or "01" in v["valid"][2])


@EVERY
def test_gives_the_same_rows_in_the_same_order(name: str, executor: Any, folder: Path, conformance: Any) -> None:
    expected = reference(name, folder)
    assert expected
    loader = PIPELINES[name](folder).loader(executor=executor, seed=SEED, workers=WORKERS)
    assert run(loader) == expected


@pytest.mark.heavy
@EVERY
def test_resumes_from_the_middle(name: str, executor: Any, folder: Path, conformance: Any) -> None:
    expected = reference(name, folder)
    stop = len(expected) // 2
    loader = PIPELINES[name](folder).loader(executor=executor, seed=SEED, workers=WORKERS)
    head = run(loader, stop)
    resumed = PIPELINES[name](folder).loader(executor=executor, seed=SEED, workers=WORKERS)
    resumed.load_state_dict(state := saved(loader))
    resumed.set_epoch(state["epoch"])  # the rest of it, be it nothing
    assert head + run(resumed) == expected


@pytest.mark.heavy
@EVERY
def test_two_ranks_share_the_epoch(name: str, executor: Any, folder: Path, conformance: Any) -> None:
    expected = counted(reference(name, folder))
    options = {"executor": executor, "seed": SEED, "workers": WORKERS, "world": 2, "deal": "global"}
    parts = [run(PIPELINES[name](folder).loader(rank=rank, **options)) for rank in range(2)]
    got = counted(parts[0] + parts[1])
    assert not got - expected
    lost = (expected - got).total()
    assert lost == (expected.total() % 2 if name == "batches_drop" else 0)


@pytest.mark.heavy
@EVERY
def test_each_of_two_ranks_gets_the_same_share(name: str, executor: Any, folder: Path, conformance: Any) -> None:
    options = {"executor": executor, "seed": SEED, "workers": WORKERS, "world": 2}
    assert [run(PIPELINES[name](folder).loader(rank=rank, **options)) for rank in range(2)] == shares(name, folder)
