"""Random pipelines whose ranks change while they run, and which are resumed by other numbers of ranks, twice.

CEDAR_CASES sets the number of random pipelines, CEDAR_SEED the first of them.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import cedar
from tests.engine.delivery.test_elastic import Job, Made, random_changes
from tests.engine.streams.test_lanes import WORLD, Toy
from tests.how_much import SEED, cases
from tests.toy_runs import saved

pytestmark = pytest.mark.heavy

CASES = cases(8)
GROUP = max(5, CASES // 40)


class Shelf:
    """What ranks of one process use of a store of torch.distributed."""

    def __init__(self) -> None:
        self._words: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def set(self, name: str, word: str) -> None:
        self._words[name] = word.encode()

    def compare_set(self, name: str, expected: str, _desired: str) -> bytes:
        return self._words.get(name, expected.encode())  # what is expected is never there: see ``TorchKeyValues``

    def delete_key(self, name: str) -> bool:
        return self._words.pop(name, None) is not None

    def add(self, name: str, number: int) -> int:
        with self._lock:
            found = int(self._words.get(name, b"0")) + number
            self._words[name] = str(found).encode()
        return found


class Known:
    """A pipeline whose counts are known, and the rows of its epoch."""

    def __init__(self, draw: random.Random, last: Any) -> None:
        sizes = [draw.choice([1, 8, 21, 34]) for _ in range(draw.randint(WORLD, 9))]
        pipeline = cedar.from_source(Made(0, sizes, True)).select("id", "x")
        if draw.random() < 0.7:
            pipeline = pipeline.shuffle(seed=1, window=draw.choice(["256MiB", 3, 10]))
        self.pipeline = pipeline.batch(draw.randint(1, 5), last=last)
        self.expected: Counter[Any] = Counter(
            (i, i % 7) for part, n in enumerate(sizes) for i in range(1000 * part, 1000 * part + n)
        )


class RandomJob(Job):
    """Ranks of a random pipeline, which count rows."""

    def __init__(self, draw: random.Random) -> None:
        self.last: str | None = draw.choice(["keep", "keep", "pad", "drop"])
        known = draw.random() < 0.25
        self.last = draw.choice([None, self.last]) if known else self.last
        self.toy: Toy | Known = Known(draw, self.last) if known else Toy(draw, self.last)
        executor, plan = draw.choice([("inline", "off")] * 4 + [("threads", "off"), ("threads", "auto")])
        super().__init__(self.toy.pipeline, Shelf(), draw.randint(1, WORLD), executor=executor, workers=2, plan=plan)

    def take(self, batch: Any) -> None:
        columns = [batch[name].tolist() for name in ("id", "x")]
        valid = batch.get("valid", [True] * len(batch["id"]))
        self.got.update((i, x) for i, x, v in zip(*columns, valid, strict=True) if v)


def check(draw: random.Random) -> None:
    job = RandomJob(draw)
    try:
        random_changes(job, draw, draw.randint(1, 3), WORLD)
        for _ in range(2):
            job.begin(draw.randint(1, WORLD), [saved(loader) for loader in job.loaders])
            job.step()  # a rank that is gone before it said where it begins cannot be made up for
            random_changes(job, draw, draw.randint(1, 2), WORLD)
        got = job.finish()
    finally:
        for loader in job.loaders:
            loader.close()
        job.pool.shutdown()
    expected: Counter[Any] = job.toy.expected
    assert not got - expected, "rows that came twice"
    if job.last != "drop":  # which leaves rows to the next epoch
        assert (expected - got).total() < (1 if job.last else WORLD), "rows that were lost"


@pytest.mark.heavy
@pytest.mark.parametrize("first", range(SEED, SEED + CASES, GROUP))
def test_random_pipelines_whose_ranks_change(first: int, record_property: Callable[[str, object], None]) -> None:
    seeds = range(first, min(first + GROUP, SEED + CASES))
    record_property("random pipelines", len(seeds))
    for seed in seeds:
        try:
            check(random.Random(seed))
        except BaseException as error:
            error.add_note(f"CEDAR_SEED={seed} CEDAR_CASES=1")
            raise
