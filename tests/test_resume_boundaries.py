"""Resumes at every boundary: before the first batch, between, after the last, exhausted; twice in a row; elsewhere."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import chain, cycle, islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import Pipeline, col
from tests.toy_runs import values

Make = Callable[[Pipeline, Pipeline, Any], Pipeline]
ROWS = 70


def _twice(t: list[int]) -> list[list[int]]:
    return [t] * (len(t) % 3)


KNOWN: dict[str, Make] = {
    "plain": lambda a, _, last: a.batch(3, last=last),
    "shuffle": lambda a, _, last: a.shuffle(seed=1, window=16).batch(3, last=last),
    "mix first": lambda a, b, last: cedar.mix([(a, 2.0), (b, 1.0)]).batch(3, last=last),
    "mix all": lambda a, b, last: cedar.mix([(a.shuffle(), 2.0), (b, 1.0)], stop="all").batch(3, last=last),
    "zip": lambda a, b, last: cedar.zip(a.shuffle(), b.rename({"x": "y"}).select("y")).batch(3, last=last),
    "balance": lambda a, _, last: a.shuffle(seed=1).batch(3, last=last).balance("t"),
    "sample": lambda a, _, last: a.sample("w", n=50).batch(3, last=last),
    "repeat": lambda a, _, last: a.shuffle().repeat(2).batch(5, last=last),
}
UNKNOWN: dict[str, Make] = {
    "filter": lambda a, _, last: a.filter(col("x") % 3 > 0).shuffle().batch(3, last=last),
    "flat_map": lambda a, _, last: a.flat_map(_twice, "t", into="u").batch(3, last=last),
    "shuffle(by)": lambda a, _, last: a.shuffle(by="w", window=16).batch(3, last=last),
    "pack concat": lambda a, _, last: a.select("t").pack(8, "t").batch(2, last=last),
    "pack best": lambda a, _, last: a.select("t").pack(8, "t", fit="best").batch(2, last=last),
    "bucket": lambda a, _, last: a.bucket_by_length("t", [2, 4], [4, 3, 2]),
}
ALL = KNOWN | UNKNOWN


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Pipeline]:
    folder = tmp_path_factory.mktemp("rows")
    numbers = range(ROWS)
    table = pa.table({"x": numbers, "w": [i / 3 // 1 for i in numbers], "t": [[i] * (i % 6) for i in numbers]})
    for i, (low, high) in enumerate([(0, 30), (30, 60), (60, ROWS)]):
        pq.write_table(table.slice(low, high - low), folder / f"{i}.parquet", row_group_size=6)
    a, b = cedar.read_parquet(f"{folder}/*.parquet"), cedar.from_arrow(table.slice(0, 40))
    return lambda name, last="keep": ALL[name](a, b, last)


def plain(batches: Any) -> list[str]:
    return [json.dumps({name: values(column) for name, column in batch.items()}) for batch in batches]


def rows(batches: list[str]) -> Counter[str]:
    """How often each row, or each token that is packed, is there."""
    found: Counter[str] = Counter()
    for batch in map(json.loads, batches):
        kept = batch.pop("valid", None)
        names = ["t"] if "segment_ids" in batch else sorted(batch)
        for i, row in enumerate(zip(*(batch[name] for name in names), strict=True)):
            if kept is None or kept[i]:
                found.update(map(str, row[0]) if names == ["t"] and "segment_ids" in batch else [json.dumps(row)])
    return found - Counter({"0": found["0"]})  # packs are filled with it


def resumed(p: Pipeline, state: Any, **options: Any) -> cedar.Loader:
    loader = p.loader(**({"executor": "inline"} | options))
    if state is not None:
        loader.load_state_dict(json.loads(json.dumps(state)))
    return loader


def stops(count: int) -> list[int]:
    return sorted({0, 1, count // 2, count - 1, count})


def joined(ranks: Any) -> list[str]:
    return [*chain.from_iterable(ranks)]


def states_at(
    p: Pipeline, world: int, stop: int | None, epoch: int = 0
) -> tuple[list[list[str]], list[dict[str, Any]]]:
    """What ranks got up to a stop (None: to the end of the epoch), and their states."""
    got, states = [], []
    for rank in range(world):
        with p.loader(rank=rank, world=world, executor="inline", epoch=epoch) as loader:
            got.append(plain([] if stop == 0 else islice(loader, stop)))
            states.append(loader.state_dict())
    return got, states


@pytest.mark.parametrize("steps", [None, pytest.param(5, marks=pytest.mark.heavy)])
@pytest.mark.parametrize("name", ALL)
def test_one_rank_goes_on_at_every_boundary(made: Any, name: str, steps: int | None) -> None:
    p = made(name, "keep" if steps is None else "drop")
    with resumed(p, None, steps=steps) as loader:
        epochs = [plain(loader) for _ in range(3)]
    count = len(epochs[0])
    assert count >= 4
    for stop in [*stops(count), None]:  # None: StopIteration was seen
        with resumed(p, None, steps=steps) as loader:
            got = plain([] if stop == 0 else islice(loader, stop))
            state = loader.state_dict()
        with resumed(p, state, steps=steps, executor="threads", workers=2) as loader:
            rest = [plain(loader), plain(loader)]
        first = 0 if len(got) < count else 1
        assert rest == [epochs[first][len(got) % count :], epochs[first + 1]], (
            stop,
            "the epoch continues, or the next",
        )
        with resumed(p, state, steps=steps) as loader:
            for told in (0, 1):
                loader.set_epoch(told)
                again = plain(loader)
                whole = epochs[told]
                assert again == (whole[len(got) :] if told == 0 else whole), (stop, "with set_epoch")


@pytest.mark.parametrize(
    ("name", "other"),
    [(name, "threads") for name in ALL]
    + [pytest.param(name, "processes", marks=pytest.mark.heavy) for name in ("shuffle", "flat_map", "pack best")],
)
def test_many_resumes_in_a_row_on_other_executors(made: Any, name: str, other: str) -> None:
    p = made(name)
    with resumed(p, None) as loader:
        epochs = [plain(loader) for _ in range(2)]
    count, state = len(epochs[0]), None
    got: list[str] = []
    both = count + len(epochs[1])
    places = [*stops(count), count + 1, count + 1, both - 1, both]
    for place, executor in zip(places, cycle([other, "inline"]), strict=False):
        with resumed(p, state, executor=executor, workers=2) as loader:
            got += plain(islice(loader, place - len(got))) if place > len(got) else []
            state = loader.state_dict()
            assert loader.state_dict() == state
    assert got == [*epochs[0], *epochs[1]]


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("last", ["keep", "drop", "pad", None])
@pytest.mark.parametrize("name", ALL)
def test_ranks_go_on_and_so_do_others(made: Any, name: str, last: str | None) -> None:
    p = made(name, last)
    last = None if name == "bucket" else last  # whose end is the same whatever ends a batch
    apart = name in UNKNOWN and (last == "keep" or name == "bucket")  # a rank may be through before another
    ranks = []
    for rank in range(2):
        with resumed(p, None, rank=rank, world=2) as loader:
            ranks.append([plain(loader), plain(loader)])
    everything, next_epoch = (rows(states_at(made(name), 1, None, epoch)[0][0]) for epoch in (0, 1))
    count = len(ranks[0][0])
    for stop in [*stops(count), None]:
        got, states = states_at(p, 2, stop)
        over = stop is None or (stop == count and got == [first for first, _ in ranks])
        for rank in range(2):
            for state in states if name in KNOWN else states[rank : rank + 1]:  # that of any rank will do
                with resumed(p, state, rank=rank, world=2) as loader:
                    fors = [plain(loader), plain(loader)]
                whole = joined(ranks[rank])
                assert (got[rank] + joined(fors))[: len(whole)] == whole, (stop, rank)
                assert not over or fors[0] or apart, (stop, rank, "no empty epoch")
        for world in (1, 3):
            for given in [states, states[0], states[1]] if name in KNOWN else [states]:
                others = joined(plain(resumed(p, given, rank=rank, world=world)) for rank in range(world))
                rest = rows(others)
                told = stop, world, given is states
                if not over and not (last is None and name in UNKNOWN):  # a rest below a row a rank: the next epoch
                    found = rows(joined(got)) + rest
                    assert found == everything if last in ("keep", "pad") else not found - everything, told
                    if name in KNOWN and last == "keep" and name != "balance":  # whose steps are of as many batches
                        assert Counter(joined(got) + others) == Counter(joined(first for first, _ in ranks)), told
                elif over and (name in KNOWN or rest):
                    assert rest == next_epoch if last in ("keep", "pad") else rest and not rest - next_epoch, told
