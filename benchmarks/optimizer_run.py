"""What runs in the processes of the optimizer's benchmark: a pipeline of the suite, once, as the caller asks."""

from __future__ import annotations

import hashlib
import importlib
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import psutil

import cedar
from benchmarks.suite.cases import CASES
from cedar.core.jagged import JaggedTensor

WORKERS = 2
Run = Callable[[], dict[str, Any]]

# ---- runs ------------------------------------------------------------------------------------------------------------


def whole(name: str, directory: str, rows: int, plan: Any, executor: Any) -> Run:
    """From the construction of the loader to the last batch, with the pauses of the training loop."""
    case = CASES[name]
    pipeline = case.make(directory, rows)
    return lambda: _run(pipeline, plan, executor, case.pause)


def epochs(name: str, directory: str, rows: int, plan: Any, executor: Any, count: int) -> Run:
    """Epochs of one loader, without pauses."""
    pipeline = CASES[name].make(directory, rows)
    return lambda: _run(pipeline, plan, executor, 0.0, count)


def ablated(name: str, directory: str, rows: int, options: dict[str, Any]) -> Run:
    """Two epochs with a part of the optimizer: ``options`` are the loader's, and the budget's ``cache``."""
    pipeline = CASES[name].make(directory, rows)
    cache = options.pop("cache", None)
    more = options | {"budget": cedar.Budget(cache=cache) if cache else None}
    return lambda: _run(pipeline, "auto", "auto", 0.0, 2, more)


def first(name: str, directory: str, rows: int, plan: Any, executor: Any) -> Run:
    """To the first batch, and no further."""
    pipeline = CASES[name].make(directory, rows)

    def run() -> dict[str, Any]:
        began = time.perf_counter()
        for _ in pipeline.loader(plan=plan, executor=executor, workers=WORKERS):
            return {"first": time.perf_counter() - began}
        raise RuntimeError(f"{name}: no batch")

    return run


def orders(name: str, directory: str, _rows: int, every: list[list[str]]) -> Run:
    """The pipeline with its steps in other orders, one after the other, on threads, as written; seconds of each."""
    pipelines = [CASES[name].ordered(directory, tuple(steps)) for steps in every]

    def run() -> dict[str, Any]:
        found = [_run(pipeline, "off", "threads", 0.0) for pipeline in pipelines]
        return {"seconds": [result["seconds"] for result in found]}

    return run


def digests(name: str, directory: str, rows: int, ways: list[list[str]]) -> Run:
    """The digests of the streams of two epochs, for each (plan, executor, size of blocks: "", "small" or "large")."""
    pipeline = CASES[name].make(directory, rows)

    def run() -> dict[str, Any]:
        return {" ".join(filter(None, way)): _two_epochs(pipeline, *way) for way in ways}

    return run


def _two_epochs(pipeline: cedar.Pipeline, plan: Any, executor: Any, size: str) -> list[str]:
    with block_size(size), pipeline.loader(plan=plan, executor=executor, workers=WORKERS) as loader:
        return [stream_digest(loader) for _ in range(2)]


def _run(
    pipeline: cedar.Pipeline, plan: Any, executor: Any, pause: float, count: int = 1, more: dict[str, Any] | None = None
) -> dict[str, Any]:
    began = time.perf_counter()
    options: dict[str, Any] = {"plan": plan, "executor": executor, "workers": WORKERS} | (more or {})
    with pipeline.loader(**options) as loader:
        opened = None
        seconds, read, batches, promised = [], [0], 0, None
        for _ in range(count):
            promised = getattr(loader, "plan", None)  # of the epoch to come
            entered = time.perf_counter()
            for _ in loader:
                opened = opened or time.perf_counter() - began
                batches += 1
                if pause:
                    time.sleep(pause)
            seconds.append(time.perf_counter() - entered)
            read.append(loader.report().rows_read)
        took = time.perf_counter() - began
        workers = _cpu_of_workers()
        report = loader.report()
        chosen = getattr(loader, "plan", None) if count == 1 else promised
    return {
        "seconds": took, "workers": workers, "first": opened, "epochs": seconds, "batches": batches,
        "rows": report.rows, "read": np.diff(read).tolist(), "operators": report.operators,
        "ran_on": report.executor, **_predicted(chosen),
    }  # fmt: skip


def _cpu_of_workers() -> float:
    """CPU seconds of the processes that this one has started and not yet waited for."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def _predicted(plan: Any) -> dict[str, Any]:
    """What the plan at the end of the run promises; None if it promises nothing."""
    prediction = getattr(plan, "prediction", None)
    return {
        "predicted": getattr(prediction, "rows_per_second", None),
        "bottleneck": getattr(prediction, "bottleneck", None),
        "method": getattr(plan, "method", None),
        "applied": [d.rule for d in getattr(plan, "decisions", ()) if d.applied],
    }


# ---- block sizes -----------------------------------------------------------------------------------------------------

_SIZES = {
    "small": {
        "parquet._CHUNK_BYTES": 1 << 16,
        "parquet._MIN_CHUNK_ROWS": 7,
        "stage._MOST_ROWS": 5,
        "stage._FEW_ROWS": 5,
    },
    "large": {"parquet._MIN_CHUNK_ROWS": 1 << 20, "stage._FIRST_ROWS": 1 << 16, "stage._FEW_ROWS": 1 << 16},
}
_MODULES = {"parquet": "cedar.datasets.parquet", "stage": "cedar.engine.streams.stage"}


@contextmanager
def block_size(size: str) -> Iterator[None]:
    """Blocks of other sizes than a run would choose: a result must not show them."""
    kept = []
    for place, value in _SIZES.get(size, {}).items():
        module, _, name = place.partition(".")
        owner = importlib.import_module(_MODULES[module])
        kept.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in kept:
            setattr(owner, name, value)


# ---- digests ---------------------------------------------------------------------------------------------------------


def stream_digest(batches: Iterable[Any]) -> str:
    """SHA-256 of the names, types, shapes and bytes of every column of every batch, in order."""
    digest = hashlib.sha256()
    for batch in batches:
        _add(digest, batch)
    return digest.hexdigest()


def _add(digest: Any, value: Any) -> None:
    """Each value with its kind and length before it, so that no two streams have the same bytes."""
    if isinstance(value, dict):
        digest.update(f"dict {len(value)} ".encode())
        for key, inner in value.items():
            _add(digest, key)
            _add(digest, inner)
    elif isinstance(value, JaggedTensor):
        digest.update(b"lists ")
        _add(digest, value.values)
        _add(digest, value.offsets)
    elif isinstance(value, (np.ndarray, np.generic)) and value.dtype != object:
        data = np.ascontiguousarray(value)
        digest.update(f"array {data.dtype.str} {data.shape} ".encode())
        digest.update(data.tobytes())
    elif isinstance(value, (list, tuple, np.ndarray)):
        digest.update(f"{type(value).__name__} {len(value)} ".encode())
        for inner in value:
            _add(digest, inner)
    else:
        text = value if isinstance(value, bytes) else repr(value).encode()
        digest.update(f"{type(value).__name__} {len(text)} ".encode())
        digest.update(text)
