"""The first split of a run is delivered block by block: nothing waits for its end, which tells what it took."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import cedar
from cedar.datasets.base import Chunk, Split

WAITS = 20  # seconds, and then the test fails: it hangs without what it tests


@dataclass
class Slow:
    """Splits of three chunks, the last of which comes once ``taken`` says that something of the first was."""

    taken: threading.Event = field(default_factory=threading.Event)
    splits_: int = 2
    fails: bool = False

    def splits(self) -> list[Split]:
        return [Split(0, n * 200, n * 200 + 200, part=n) for n in range(self.splits_)]

    def read(self, split: Split) -> Iterator[Chunk]:
        assert split.stop is not None
        last = split.stop - 50
        yield self._chunk(split.start, last - 50)
        yield self._chunk(last - 50, last)
        if not self.taken.wait(WAITS):
            raise TimeoutError("nothing of the first chunk was delivered")
        if self.fails:
            raise ValueError("the last chunk is bad")
        yield self._chunk(last, split.stop)

    def _chunk(self, start: int, stop: int) -> Chunk:
        rows = np.arange(start, stop)
        return Chunk({"x": rows, "tokens": rows[:, None] + np.zeros(4, np.int64)}, rows, len(rows))

    def url(self, file: int) -> str:
        return "slow"


PIPELINES: dict[str, Callable[[cedar.Pipeline], cedar.Pipeline]] = {
    "batch": lambda p: p.batch(50, last="keep"),
    "map": lambda p: p.map(lambda x: x + 1, "x", dtype=int).batch(50, last="keep"),
    "pack": lambda p: p.select("tokens").pack(16, "tokens").batch(5, last="keep"),
}


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("plan", ["auto", "off"])
def test_the_first_batch_waits_for_no_more_than_two_blocks(name: str, plan: str) -> None:
    source = Slow()
    pipeline = PIPELINES[name](cedar.from_source(source))
    workers = 3 if name == "map" else 1  # two are at the splits, and functions have their own tasks
    with pipeline.loader(executor="threads", workers=workers, plan=plan) as loader:
        found: list[Any] = []
        for batch in loader:
            source.taken.set()
            found.append(batch)
    with pipeline.loader(executor="inline", plan="off") as loader:
        wanted = list(loader)
    assert len(found) == len(wanted) > 4
    for one, other in zip(found, wanted, strict=True):
        assert one.keys() == other.keys()
        assert all(np.array_equal(one[column], other[column]) for column in one)


def test_what_fails_behind_the_first_block_is_told_when_it_is_met() -> None:
    source = Slow(fails=True)
    found: list[int] = []
    with cedar.from_source(source).batch(50).loader(executor="threads", workers=1) as loader:
        with pytest.raises(cedar.SourceError, match="the last chunk is bad"):
            for batch in loader:
                found += batch["x"].tolist()
                source.taken.set()
        assert found in (list(range(50)), list(range(100)))


def test_a_state_of_a_split_that_is_being_read_is_resumed() -> None:
    source = Slow()
    pipeline = cedar.from_source(source).map(lambda x: x + 1, "x", dtype=int).batch(30, last="keep")
    with pipeline.loader(executor="threads", workers=3) as loader:
        next(iter(loader))
        state = loader.state_dict()
        source.taken.set()
    with pipeline.loader(executor="threads", workers=1) as again:
        again.load_state_dict(state)
        assert np.concatenate([batch["x"] for batch in again]).tolist() == list(range(31, 401))


@pytest.mark.parametrize("last", ["drop", "keep"])
def test_what_a_split_took_is_counted_whoever_has_its_rows_already(last: Any) -> None:
    source = Slow(splits_=1)
    source.taken.set()
    with cedar.from_source(source).batch(100, last=last).loader(executor="threads", workers=1, plan="off") as loader:
        assert len(list(loader)) == 2
        assert loader.report().rows == 200
        assert loader._epochs.job.metrics.rows_entered == 200
