"""Ranks share pipelines whose row counts are unknown: compared with a plain-Python model of the rows of the epoch.

CEDAR_CASES sets the number of random pipelines, CEDAR_SEED the first of them.
"""

from __future__ import annotations

import itertools
import logging
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import cedar
from cedar import col
from cedar.core.block import Block
from cedar.core.cursor import Keys
from cedar.engine.streams.lanes import RowsByKey, assigned, lanes_of
from cedar.operators.base import Env
from tests.how_much import SEED, cases
from tests.toy_pipelines import Source, expand
from tests.toy_runs import rows_of, run, saved

CASES = cases(30)
GROUP = max(10, CASES // 40)
WORLD = 4  # some sources have fewer splits

Rows = list[tuple[int, int]]  # (id, x)


class Toy:
    """A random pipeline over columns ``id`` and ``x``, and the rows of its epoch in plain Python."""

    def __init__(self, draw: random.Random, last: Any = "keep") -> None:
        self.draw = draw
        self.sources = 0
        self.pipeline, self.rows = self.source()
        if draw.random() < 0.4:
            self.join()
        for _ in range(draw.randint(1, 4)):
            self.grow()
        self.pipeline = self.pipeline.filter(lambda x: x != 6, "x")
        self.rows = [row for row in self.rows if row[1] != 6]
        if draw.random() < 0.3:
            self.pipeline, self.rows = self.pipeline.repeat(2), self.rows * 2
        if draw.random() < 0.2 and last == "keep":
            self.pipeline = self.pipeline.bucket_by_length("l", [1, 2], [4, 3, 2], local=True).drop("l")
        else:
            self.pipeline = self.pipeline.drop("l").batch(draw.randint(1, 5), last=last)
        self.expected = Counter(self.rows)

    def source(self) -> tuple[cedar.Pipeline, Rows]:
        draw = self.draw
        sizes = [draw.choice([0, 1, 3, 8, 21]) for _ in range(draw.randint(1, 9))]
        sizes[0] = max(sizes[0], WORLD)  # so that what counts rows has one for each rank
        source = Source(self.sources * 100_000, sizes, draw.random() < 0.7)
        self.sources += 1
        ids = [(self.sources - 1) * 100_000 + 1000 * part + i for part, n in enumerate(sizes) for i in range(n)]
        pipeline, rows = cedar.from_source(source).select("id", "x", "l"), [(i, i % 7) for i in ids]
        if source._known and draw.random() < 0.3:
            n = draw.randint(WORLD, 40)
            return pipeline.take(n), rows[:n]
        if source._known and draw.random() < 0.3:
            right = cedar.from_source(source).select(z=col("id") * 2).shuffle(seed=2)
            return cedar.zip(pipeline, right).drop("z"), rows
        return pipeline, rows

    def join(self) -> None:
        other, rows = self.source()
        if self.draw.random() < 0.5:
            self.pipeline = cedar.concat(self.pipeline, other)
        else:
            self.pipeline = cedar.mix([(self.pipeline, 0.6), (other, 0.4)], stop="all")
        self.rows = self.rows + rows

    def grow(self) -> None:
        kind = self.draw.choice(["filter", "function", "flat_map", "map", "shuffle", "shuffle"])
        value = self.draw.randint(0, 4)
        if kind == "filter":
            self.pipeline = self.pipeline.filter(col("x") % 5 != value)
        if kind == "function":
            self.pipeline = self.pipeline.filter(lambda x: x % 5 != value, "x")
        if kind in ("filter", "function"):
            self.rows = [row for row in self.rows if row[1] % 5 != value]
        if kind == "flat_map":
            self.pipeline = self.pipeline.flat_map(expand, "x", into="x", dtype=int)
            self.rows = [(i, each) for i, x in self.rows for each in expand(x)]
        if kind == "map":
            self.pipeline = self.pipeline.map(lambda x: x + value, "x", dtype=int)
            self.rows = [(i, x + value) for i, x in self.rows]
        if kind == "shuffle":
            self.pipeline = self.pipeline.shuffle(seed=value, window=self.draw.choice(["256MiB", 3, 10]))

    def loader(self, **options: Any) -> Any:
        executor, plan = self.draw.choice([("inline", "off")] * 4 + [("threads", "off"), ("threads", "auto")])
        return self.pipeline.loader(executor=executor, workers=2, plan=plan, **options)


def pairs(batches: list[Any]) -> Counter[tuple[int, int]]:
    return Counter((i, x) for batch in batches for i, x in zip(batch["id"], batch["x"], strict=True))


def ranks_share_the_rows(toy: Toy) -> None:
    world = toy.draw.randint(2, WORLD)
    parts = [run(toy.loader(rank=rank, world=world))[0] for rank in range(world)]
    assert pairs([batch for part in parts for batch in part]) == toy.expected
    for rank, part in enumerate(parts):  # fixed by rank and world: not by plan, executor, or where it was stopped
        head, state = run(toy.loader(rank=rank, world=world), toy.draw.randint(0, len(part)))
        loader = toy.loader(rank=rank, world=world)
        loader.load_state_dict(state)
        rest = run(loader)[0] if loader.epoch == 0 else []
        assert head + rest == part


def worlds_change_twice(toy: Toy) -> None:
    worlds = [toy.draw.randint(1, WORLD) for _ in range(3)]
    states: list[Any] = []
    got: list[Any] = []
    for number, world in enumerate(worlds):
        after = []
        for rank in range(world):
            loader = toy.loader(rank=rank, world=world)
            if states:
                loader.load_state_dict(states)
                loader.set_epoch(states[0]["epoch"])  # the rest of it, even if that is empty
            wanted = 10_000 if number == 2 else toy.draw.randint(0, 12)
            state = saved(loader)
            for batch in loader if wanted else ():
                got.append({name: column.tolist() for name, column in batch.items()})
                state = saved(loader)  # still in the epoch
                wanted -= 1
                if not wanted:
                    break
            after.append(state)
        states = after
    assert pairs(got) == toy.expected


PROPERTIES: list[Callable[[Toy], None]] = [ranks_share_the_rows, worlds_change_twice]


@pytest.mark.heavy
@pytest.mark.parametrize("first", range(SEED, SEED + CASES, GROUP))
def test_random_pipelines_are_shared(first: int) -> None:
    for seed in range(first, min(first + GROUP, SEED + CASES)):
        for check in PROPERTIES:
            try:
                check(Toy(random.Random(seed)))
            except BaseException as error:
                error.add_note(f"{check.__name__} failed: CEDAR_SEED={seed} CEDAR_CASES=1")
                raise


def test_lanes_are_dealt_by_bytes() -> None:
    sizes = np.array([5.0, 1.0, 9.0, 3.0, 3.0, 7.0, 0.0, 2.0])
    for of in (1, 2, 3, 8):
        lanes = lanes_of(sizes, of)
        loads = np.bincount(lanes, sizes, minlength=of)
        assert loads.max() <= sizes.sum() / of + sizes.max() * (1 - 1 / of)
        assert set(lanes.tolist()) == set(range(of))
    assert sorted(Counter(lanes_of(np.ones(64), 8).tolist()).values()) == [8] * 8


def numbers(splits: int) -> cedar.Pipeline:
    return cedar.from_source(Source(0, [32] * splits, True)).select("id", "x")


def test_a_rank_reads_its_share_alone_and_another_lane_in_each_epoch() -> None:
    p = numbers(16).filter(lambda x: x > 1, "x").shuffle(seed=1).batch(4, last="keep")
    firsts = []
    for rank in range(4):
        loader = p.loader(rank=rank, world=4, executor="inline")
        firsts.append({i for batch in loader for i in batch["id"].tolist()})
        assert loader.report().rows_read == 128
    unshuffled = numbers(16).filter(lambda x: x > 1, "x").batch(4, last="keep")
    loader = unshuffled.loader(rank=0, world=4, executor="inline")
    seen = [{i for batch in loader for i in batch["id"].tolist()} for _ in range(4)]
    assert set.union(*seen) == set.union(*firsts)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("build", "told"),
    [
        (lambda p: p.batch(4), "all ranks take equally many steps"),
        (lambda p: p.take(50).batch(4, last="keep"), "take(50) counts rows whose number is unknown"),
        (lambda p: cedar.zip(p, p.select(z="x")).batch(4, last="keep"), "zip counts rows whose number is unknown"),
    ],
)
def test_one_warning_says_why_ranks_do_not_share(build: Any, told: str, caplog: pytest.LogCaptureFixture) -> None:
    p = build(numbers(8).filter(lambda x: x > 1, "x"))
    with caplog.at_level(logging.WARNING, "cedar"):
        loaders = [p.loader(rank=rank, world=2, executor="inline") for rank in range(2)]
        for _ in range(2):
            parts = [run(loader)[0] for loader in loaders]
    assert [told in record.getMessage() for record in caplog.records] == [True, True]
    assert loaders[0].explain().startswith("RANKS  each of the 2 ranks reads and computes the whole epoch")
    assert abs(len(parts[0]) - len(parts[1])) <= 1


def test_the_former_meaning_stays_by_name(caplog: pytest.LogCaptureFixture) -> None:
    p = numbers(8).filter(lambda x: x > 1, "x").batch(4, last="keep")
    alone = run(p.loader(executor="inline"))[0]
    shares = [run(p.loader(rank=rank, world=2, deal="global", executor="inline"))[0] for rank in range(2)]
    assert [batch for pair in zip(*shares, strict=True) for batch in pair] == alone
    assert caplog.records == []  # who asks for it knows
    with pytest.raises(cedar.PipelineError, match="deal='mine' is not known"):
        p.loader(deal="mine")  # type: ignore[arg-type]


def test_steps_share_the_work_of_dropped_batches_too() -> None:
    p = numbers(12).filter(lambda x: x > 1, "x").batch(4)
    loaders = [p.loader(rank=rank, world=3, steps=11, executor="inline") for rank in range(3)]
    epochs = [[run(loader)[0] for _ in range(3)] for loader in loaders]
    assert {len(part) for parts in epochs for part in parts} == {11}
    assert all(loader.report().rows_read < 3 * 12 * 32 * 0.5 for loader in loaders)


def test_a_small_source_is_read_by_all_ranks_and_shared_by_keys() -> None:
    few = cedar.from_items([{"id": -i, "x": 2} for i in range(1, 41)])
    p = cedar.mix([(numbers(32), 0.9), (few, 0.1)], stop="all").filter(lambda x: x > 1, "x").batch(4, last="keep")
    whole = rows_of(run(p.loader(executor="inline"))[0])
    loaders = [p.loader(rank=rank, world=8, executor="inline") for rank in range(8)]
    parts = [rows_of(run(loader)[0]) for loader in loaders]
    assert sum(parts, Counter()) == whole
    assert max(loader.report().rows_read for loader in loaders) <= 32 * 32 / 8 + 40
    assert all(any('"id": -' in row for row in part) for part in parts)
    again = [rows_of(run(loader)[0]) for loader in loaders]
    assert sum(again, Counter()) == whole
    assert again != parts


def test_items_of_a_row_stay_together_wherever_a_cache_is() -> None:
    items = cedar.from_items([{"id": i, "x": i} for i in range(50)]).flat_map(expand, "x", into="x", dtype=int)
    parts = []
    for p in (items, items.cache("memory")):
        made = p.batch(3, last="keep")
        parts.append([run(made.loader(rank=rank, world=3, executor="inline"))[0] for rank in range(3)])
    assert parts[0] == parts[1]
    assert all(part for part in parts[0])


def ids(batches: list[Any]) -> list[int]:
    return [i for batch in batches for i in batch["id"]]


def test_a_rank_of_an_endless_pipeline_has_all_rows_in_as_many_passes_as_there_are_ranks() -> None:
    kept = ids(run(numbers(8).filter(lambda x: x > 1, "x").batch(4, last="keep").loader(executor="inline"))[0])
    p = numbers(8).filter(lambda x: x > 1, "x").repeat().batch(4)
    for rank in range(3):
        loader = p.loader(rank=rank, world=3, steps=len(kept) // 4, executor="inline")
        got = ids(run(loader)[0])
        assert len(got) == len(set(got))
        assert loader.report().rows_read <= 8 * 32 + 4 * 32


@pytest.mark.parametrize("world", [2, 3, 5])
@pytest.mark.parametrize("rows", [1, 2])
def test_repeats_of_repeats_give_every_rank_rows_however_few(rows: int, world: int) -> None:
    p = cedar.from_items([{"x": i} for i in range(rows)]).filter(lambda row: True).repeat(2).repeat()
    for rank in range(world):
        loader = p.loader(rank=rank, world=world, executor="inline")
        xs = [int(row["x"]) for row in itertools.islice(loader, 8 * rows)]
        assert set(xs) == set(range(rows))
        assert len(xs) == 8 * rows


def test_an_endless_pipeline_is_dealt_anew() -> None:
    steps = [5, 7, 40]
    p = numbers(8).filter(lambda x: x > 1, "x").repeat().batch(4)
    lanes = [run(p.loader(rank=rank, world=2, steps=100, executor="inline"))[0] for rank in range(2)]
    states: list[Any] = []
    got: list[Any] = []
    for world, many in zip((2, 3, 1), steps, strict=True):
        after = []
        for rank in range(world):
            loader = p.loader(rank=rank, world=world, steps=100, executor="inline")
            if states:
                loader.load_state_dict(states)
            batches, state = run(loader, many)
            got += batches
            resumed = p.loader(rank=rank, world=world, steps=100, executor="inline")
            resumed.load_state_dict(state)
            rest = run(resumed, 2)[0]
            again = p.loader(rank=rank, world=world, steps=100, executor="inline")
            if states:
                again.load_state_dict(states)
            assert run(again, many + 2)[0] == batches + rest
            after.append(state)
        states = after
    found = Counter(map(str, got))
    assert any(
        found == Counter(map(str, lanes[0][:n])) + Counter(map(str, lanes[1][: len(got) - n])) for n in range(len(got))
    )


def test_what_is_dealt_anew_is_what_nobody_had_begun() -> None:
    sizes = np.array([float(1 + i * 7 % 5) for i in range(40)])
    first = assigned(sizes, 3)
    assert sorted(np.concatenate(first).tolist()) == list(range(40))
    again = assigned(sizes, 5, [[3, [4, -1, 0]]])
    assert sorted(np.concatenate(again).tolist()) == sorted([*first[0][4:], *first[2]])
    fewer = assigned(sizes, 1, [[3, [4, 2, 0]]])
    assert fewer[0].tolist() == sorted([*first[0][4:], *first[1][2:], *first[2]])


def test_a_lane_that_ended_in_a_short_batch_is_not_gone_on_with() -> None:
    for check in PROPERTIES:
        check(Toy(random.Random(5027)))


# ---- lanes as states have them: merged, and redistributed when the ranks change --------------------------------------


@pytest.mark.heavy
def test_no_rank_is_idle_after_a_change_of_worlds() -> None:
    p = numbers(64).filter(lambda x: x > 1, "x").shuffle(seed=1, window=64).batch(8, last="keep")
    states, got = [], []
    for rank in range(4):
        loader = p.loader(rank=rank, world=4, executor="inline")
        part, state = run(loader, 10 + rank)
        got += part
        states.append(state)
    for world in (8, 3):
        after = []
        for rank in range(world):
            loader = p.loader(rank=rank, world=world, executor="inline")
            loader.load_state_dict(states)
            part, state = run(loader, 3)
            assert len(part) == 3
            got += part
            after.append(state)
        states = after
    lengths = []
    for rank in range(5):
        loader = p.loader(rank=rank, world=5, executor="inline")
        loader.load_state_dict(states)
        part, _ = run(loader)
        got += part
        lengths.append(sum(len(batch["id"]) for batch in part))
    assert pairs(got) == pairs(run(p.loader(executor="inline"))[0])
    assert max(lengths) - min(lengths) <= 3 * 32, lengths  # windows that were begun stay whole


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(("past", "of"), [((), 3), (((4, (0, 1, 2, 3)),), 2), (((4, (0, 1, 2, 3)), (3, (0, 1, 2))), 6)])
def test_each_lane_has_each_row_once_in_as_many_passes_as_there_are_lanes(
    rows: int, past: tuple[tuple[int, tuple[int, ...]], ...], of: int
) -> None:
    """Therefore ``repeat()`` gives up after so many passes without a row, also if the number of ranks has changed."""
    before = [(place, *level) for place, level in enumerate(past)]
    found = Counter[tuple[int, int]]()
    for lap in range(5, 5 + of):
        x = np.arange(rows)
        block = Block({"x": pa.array(x)}, Keys(x, repeat=lap))
        for lane in range(of):
            mine = RowsByKey((*before, (len(past), of, (lane,))))(block, Env(seed=7))
            found.update((lane, int(x)) for x in mine.columns["x"].to_pylist())  # type: ignore[union-attr]
    assert found == {(lane, x): 1 for lane in range(of) for x in range(rows)}
