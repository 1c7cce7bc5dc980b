"""Parquet to torch: cedar with two threads against a loop manually and torch's DataLoader with two workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.features import Sums, cedar_batches, dataloader_batches, features, hand_batches, plain, same
from benchmarks.harness import Contender, Figure, Form, Sample, at_least, interleaved, ratios, reported

_CORES = 2  # the same two for every contender
_NAMES = {"cedar": "cedar, 2 threads", "hand": "pyarrow loop, 1 process", "torch": "torch DataLoader, 2 workers"}


def measure(form: Form) -> list[Figure]:
    files = features(form.pick(2_000_000, 500_000, 20_000), distinct=form.pick(4, 1))
    with Contender("benchmarks.core_parquet:checked", files[:2], cores=_CORES) as check:
        check.run()
    contenders = {name: Contender(f"benchmarks.core_parquet:{name}", files, cores=_CORES) for name in _NAMES}
    try:
        found = interleaved({n: c.run for n, c in contenders.items()}, rounds=form.pick(7, 2, 1))
    finally:
        for contender in contenders.values():
            contender.__exit__()
    return figures(found)


def figures(found: dict[str, list[Sample]]) -> list[Figure]:
    rates = {name: [sample.rate for sample in samples] for name, samples in found.items()}
    work = {name: [s.cpu / s.result["rows"] * 1e6 for s in samples] for name, samples in found.items()}
    rows = [
        at_least("Parquet to torch, cedar 2 threads / pyarrow loop", 1.3, ratios(rates["cedar"], rates["hand"]), "x"),
        at_least("Parquet to torch, cedar 2 threads / DataLoader 2w", 3.0, ratios(rates["cedar"], rates["torch"]), "x"),
    ]
    for name, text in _NAMES.items():
        rows.append(reported(f"Parquet to torch, {text}", rates[name], "rows/s"))
        rows.append(reported(f"Parquet to torch, {text}: CPU", work[name], "s per M rows"))
    return rows


# ---- contenders: each prepares in its own process --------------------------------------------------------------------


def cedar(files: list[str]) -> Callable[[], dict[str, Any]]:
    loader = cedar_batches(files)
    return lambda: _count(loader)


def hand(files: list[str]) -> Callable[[], dict[str, Any]]:
    return lambda: _count(hand_batches(files))


def torch(files: list[str]) -> Callable[[], dict[str, Any]]:
    loader = dataloader_batches(files, 2)
    return lambda: _count(loader)


def _count(batches: Iterable[dict[str, Any]]) -> dict[str, Any]:
    rows = 0
    last: deque[Any] = deque(maxlen=1)  # as a trainer would, hold on to a batch while the next is made
    for batch in batches:
        rows += len(batch["label"])
        last.append(batch)
    return {"rows": rows}


def checked(files: list[str]) -> Callable[[], dict[str, Any]]:
    """Every worker's batches are the same: one by one where the order is fixed, in sum where workers mix it."""

    def run() -> dict[str, Any]:
        mine, by_hand = Sums(), Sums()
        for number, (a, b) in enumerate(zip(cedar_batches(files), hand_batches(files), strict=True)):
            left, right = plain(a), plain(b)
            if not same(left, right):
                raise AssertionError(f"cedar and the loop differ in batch {number}")
            mine.add(left)
            by_hand.add(right)
        workers = Sums()
        for batch in dataloader_batches(files, 2):
            workers.add(plain(batch))
        if not (mine.same(by_hand) and by_hand.same(workers)):
            raise AssertionError("the contenders do not deliver the same rows")
        return {"rows": mine.rows}

    return run
