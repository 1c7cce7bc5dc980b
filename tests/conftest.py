"""What every test gets: Hypothesis profiles, small real inputs, storage in memory, and no thread left behind."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import HealthCheck, settings

from cedar.core import requests
from cedar.engine import binding
from cedar.executors.processes import forkserver
from cedar.plan.lower import lower
from cedar.testing.storage import FlakyFileSystem
from tests.datasets.failing_storage import QUICK
from tests.plan.verify import verify

# Several tests run at a time, and none measures speed.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Few examples, always the same; `make test-long` draws many. A test that says how many it wants has a reason.
_ANYWHERE = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile(
    "ci", max_examples=20, derandomize=True, deadline=None, database=None, suppress_health_check=_ANYWHERE
)
settings.register_profile("dev", deadline=None, suppress_health_check=_ANYWHERE)
settings.register_profile("long", deadline=None, max_examples=1000, suppress_health_check=_ANYWHERE)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

ROOT = Path(__file__).resolve().parents[1]
# Kept by their libraries; "worker-keeper" by warm pools of processes, "IO loop" and what follows by clients of Dask.
_OTHERS_THREADS = (
    "fsspecIO", "pytest_timeout", "ThreadPoolExecutor-asyncio", "execnet", "worker-keeper",
    "IO loop", "Dask-", "TCP-Executor", "asyncio_",
)  # fmt: skip


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of small real inputs next to the checkout; without it, the tests that need it are skipped."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the real inputs are not there: no ../shared/data next to the checkout")
    return folder


@pytest.fixture(scope="session", autouse=True)
def one_fork_server() -> Iterator[None]:
    """Workers do not see which test runs, as a variable of pytest's says: else each would start its own server."""
    inherited = forkserver._inherited

    def without() -> dict[str, Any]:
        these = inherited()
        these["environment"].pop("PYTEST_CURRENT_TEST", None)
        return these

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forkserver, "_inherited", without)
        yield


@pytest.fixture(scope="session", autouse=True)
def every_plan_is_verified() -> Iterator[None]:
    """The stages of each plan that runs are checked; a run itself relies on ``lower``."""

    def verified(*args: Any) -> Any:
        physical = lower(*args)
        verify(physical)
        return physical

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(binding, "lower", verified)
        yield


@pytest.fixture(autouse=True)
def no_thread_left_behind() -> Iterator[None]:
    """Fails a test whose threads are still there some seconds after it ended."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 120.0
    while left := _left(before):
        if time.monotonic() > deadline:
            pytest.fail("threads left behind: " + ", ".join(sorted(t.name for t in left)))
        left[0].join(0.1)
        if left[0].is_alive():
            gc.collect()  # an abandoned loader goes when it is collected


def _left(before: set[threading.Thread]) -> list[threading.Thread]:
    return [
        thread
        for thread in threading.enumerate()
        if thread not in before and thread.is_alive() and not thread.name.startswith(_OTHERS_THREADS)
    ]


def pytest_collection_finish() -> None:
    """Modules and tests, 800,000 objects, stay until the end: no collection needs to look at them again."""
    gc.collect()
    gc.freeze()


# ---- how many random pipelines and conformance cases there were ------------------------------------------------------


@pytest.fixture
def conformance(record_property: Callable[[str, object], None]) -> None:
    """Counts the test as a case of the conformance suite."""
    record_property("conformance cases", 1)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the counts that tests recorded, by what they count."""
    counts: Counter[str] = Counter()
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        if report.when == "call":
            counts.update({name: number for name, number in report.user_properties if isinstance(number, int)})
    for name, number in sorted(counts.items()):
        terminalreporter.write_line(f"{name}: {number:,}")


@pytest.fixture
def memory() -> Iterator[Any]:
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]
    FlakyFileSystem.clear_instance_cache()
    yield fs
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits are short, so that many faults take no time."""
    monkeypatch.setattr(requests.RequestPatience, "of_environment", staticmethod(lambda: QUICK))
