"""What a fresh worker imports: it is part of the time to the first batch."""

from __future__ import annotations

import pytest

import cedar
from cedar.executors import processes

ROOMS = ("cedar.core", "cedar.control", "cedar.datasets", "cedar.operators", "cedar.tasks", "cedar.executors.worker")
OTHERS = (  # what not every task needs
    "asyncio", "concurrent", "dask", "email", "fsspec", "json", "multiprocessing", "polars", "pyarrow.compute",
    "subprocess", "torch",
)  # fmt: skip
MODULES = "sorted(__import__('sys').modules)"


def of(modules: list[str], *names: str) -> list[str]:
    """Those that are one of the names, or within it."""
    return [m for m in modules if any(m == name or m.startswith(f"{name}.") for name in names)]


@pytest.fixture
def fresh():
    processes.close()  # and so what forks workers has imported no more than it must
    pool = processes.fresh()
    yield pool
    pool.shutdown()


@pytest.mark.heavy
def test_a_fresh_worker_imports_what_runs_a_task_and_no_more(fresh):
    modules = fresh.submit(eval, MODULES).result()  # submitted before it is ready, so it imports nothing ahead
    assert of(modules, *OTHERS) == []
    assert set(of(modules, "cedar")) - set(of(modules, *ROOMS)) == {"cedar", "cedar.executors"}
    assert len(of(modules, "cedar")) <= 76


def test_neither_does_one_that_has_read_rows_and_called_a_function():
    def listed(_: int) -> str:  # by value: of a module of tests, the worker would import what that imports
        import sys

        return ",".join(sys.modules)

    p = cedar.from_items([{"x": i} for i in range(100)]).map(listed, "x", dtype=str).batch(10)
    processes.close()
    first = next(iter(p.loader(executor="processes", workers=2, plan="off")))
    modules = first["x"][0].split(",")
    assert set(of(modules, "cedar")) - set(of(modules, *ROOMS)) == {"cedar", "cedar.executors"}
    assert len(of(modules, "cedar")) <= 76
