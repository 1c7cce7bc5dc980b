"""Ranks join, leave and die while an epoch is in progress: every row of it is delivered once."""

from __future__ import annotations

import functools
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import cedar
from cedar.engine.delivery.state_fields import unpacked
from tests.how_much import LONG
from tests.toy_pipelines import Source
from tests.toy_runs import run, saved


class Job:
    """Ranks of a job in threads, step by step; what each delivered is kept."""

    def __init__(self, pipeline: cedar.Pipeline, agree: Any, world: int, **options: Any) -> None:
        self.make: Callable[[int, int], cedar.Loader] = lambda rank, world: pipeline.loader(
            rank=rank, world=world, agree=agree, **{"executor": "inline", **options}
        )
        self.pool = ThreadPoolExecutor(8)
        self.got: Counter[Any] = Counter()
        self.steps = self.epoch = 0
        self.begin(world)

    def begin(self, world: int, states: Sequence[Any] = ()) -> None:
        """The ranks of a job that was started, or started again with the states of all ranks."""
        self.loaders = [self.make(rank, world) for rank in range(world)]
        for loader in self.loaders if states else ():
            loader.load_state_dict(states)
        self.loops: list[Iterator[Any] | None] = [
            iter(loader) if loader.epoch == self.epoch else None for loader in self.loaders
        ]

    def at_once(self, work: Callable[[int], Any], count: int) -> list[Any]:
        return list(self.pool.map(work, range(count)))

    def step(self) -> int:
        """One step of all ranks; how many had a batch."""
        found = self.at_once(self._next, len(self.loaders))
        for batch in found:
            if batch is not None:
                self.take(batch)
        self.steps += any(batch is not None for batch in found)
        return sum(batch is not None for batch in found)

    def take(self, batch: Any) -> None:
        valid = batch.get("valid", [True] * len(batch["id"]))
        self.got.update(i for i, v in zip(batch["id"].tolist(), valid, strict=True) if v)

    def _next(self, rank: int) -> Any:
        loop = self.loops[rank]
        batch = None if loop is None else next(loop, None)
        if batch is not None and self.loaders[rank].epoch != self.epoch:  # nothing was left that fills a step
            batch = None
        if batch is None:
            self.loops[rank] = None
        return batch

    def change(self, stay: list[int], world: int, told: bool = False) -> None:
        """The ranks that stay get new numbers, in this order; new ones fill up."""
        if told:
            for rank in {*range(len(self.loaders))} - {*stay}:
                self.loaders[rank].reshard(None, world)
        loaders = [self.loaders[rank] for rank in stay]
        loops = [self.loops[rank] for rank in stay]
        while len(loaders) < world:
            loaders.append(self.make(0, 1) if len(loaders) % 2 else self.make(len(loaders), world))
            loops.append(None)
        self.at_once(lambda rank: loaders[rank].reshard(rank, world), world)
        self.loaders = loaders
        self.loops = [
            iter(loader) if loop is None and loader.epoch == self.epoch else loop
            for loader, loop in zip(loaders, loops, strict=True)
        ]

    def finish(self) -> Counter[int]:
        while self.step():
            pass
        return self.got


def random_changes(job: Job, draw: random.Random, changes: int, most: int, steps: int = 2) -> None:
    for _ in range(changes):
        for _ in range(draw.randint(0, steps)):
            job.step()
        world = len(job.loaders)
        under_way = [rank for rank in range(world) if job.loops[rank] is not None]
        if not under_way:
            return
        stay = draw.sample(range(world), draw.randint(1, world))
        if not {*stay} & {*under_way}:  # those that are gone would count as through, as the others are
            stay[0] = draw.choice(under_way)
        job.change(stay, draw.randint(len(stay), most), draw.random() < 0.5)


class Made(Source):
    """Makes a split once, however often ranks read it."""

    read = functools.cache(Source.read)


def numbers(splits: int, rows: int = 24, known: bool = True) -> cedar.Pipeline:
    return cedar.from_source(Made(0, [rows] * splits, known)).select("id", "x")


def ids(splits: int, rows: int = 24) -> list[int]:
    return [1000 * part + i for part in range(splits) for i in range(rows)]


UNKNOWN = numbers(60, 80).filter(lambda x: x != 3, "x").shuffle(seed=1, window=40)
KEPT = Counter(i for i in ids(60, 80) if i % 7 != 3)


@pytest.mark.heavy
@pytest.mark.parametrize("known", [True, False])
def test_ranks_join_and_leave_all_the_time_in_one_epoch(known: bool, tmp_path: Path) -> None:
    p = numbers(60, 80).shuffle(seed=1, window=100) if known else UNKNOWN
    job = Job(p.batch(2, last="keep"), tmp_path, 3)
    random_changes(job, random.Random(int(known)), 200 if LONG else 50, 6)
    assert any(loader.epoch == 0 for loader in job.loaders)  # the epoch was in progress all the time
    assert len(json.dumps(saved(job.loaders[0]))) < 16 << 10
    assert job.finish() == (Counter(ids(60, 80)) if known else KEPT)


def test_a_loop_goes_on_as_another_rank(tmp_path: Path) -> None:
    job = Job(numbers(8).shuffle(seed=2).batch(3), tmp_path, 2)
    for _ in range(5):
        job.step()
    job.change([1], 1)
    assert job.loaders[0].rank.rank == 0
    assert job.loaders[0].position()[0] == 5
    assert job.finish() == Counter(ids(8))
    assert job.loaders[0].epoch == 1


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(4))
def test_padded_epochs_end_together_after_changes(seed: int, tmp_path: Path) -> None:
    job = Job(numbers(14).filter(lambda x: x != 3, "x").shuffle(seed=1).batch(3, last="pad"), tmp_path, 3)
    random_changes(job, random.Random(seed), 6, 5)
    while job.step():
        assert None not in job.loops  # all of them take the step
    assert job.got == Counter(i for i in ids(14) if i % 7 != 3)


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(4))
def test_what_dropped_epochs_leave_opens_the_next_after_changes(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    job = Job(numbers(14).filter(lambda x: x != 3, "x").shuffle(seed=1).batch(1), tmp_path, 3)
    kept = Counter(i for i in ids(14) if i % 7 != 3)
    random_changes(job, draw, 6, 5)
    first = Counter(job.finish())
    assert max(first.values()) == 1
    job.loops, job.epoch = [iter(loader) for loader in job.loaders], 1
    random_changes(job, draw, 2, 4)
    assert all(loader.epoch == 1 for loader in job.loaders)
    job.finish()
    assert set(job.got) == set(kept)
    assert max(job.got.values()) == 2
    steps = {loader.state_dict()["epoch"] for loader in job.loaders}
    assert steps == {2}


@pytest.mark.heavy
@pytest.mark.parametrize("last", ["keep", "drop"])
@pytest.mark.parametrize("known", [True, False])
def test_epochs_of_fixed_length_go_on(last: Any, known: bool, tmp_path: Path) -> None:
    """Rows of the epochs of the data come in as many steps as without a change."""
    p = numbers(9) if known else numbers(9).filter(lambda x: x >= 0, "x")
    job = Job(p.batch(2, last=last), tmp_path, 2, steps=30)
    draw = random.Random(5)
    for _ in range(5):
        random_changes(job, draw, 1, 3)
        for _ in range(3):
            job.step()
    assert all(loader.epoch == 0 for loader in job.loaders)
    assert job.steps == job.loaders[0].position()[0]
    assert max(job.got.values()) == 1  # 108 batches, of which at most 25 steps were had


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["mix", "zip", "pack", "repeat", "take"])
def test_lanes_of_several_parts_go_on(kind: str, tmp_path: Path) -> None:
    known, unknown = numbers(9, known=True), numbers(9).filter(lambda x: x != 3, "x")
    other = cedar.from_source(Source(100_000, [24] * 9, True)).select("id", "x")
    expected = Counter(i for i in ids(9) if i % 7 != 3)
    if kind == "mix":
        p = cedar.mix([(unknown, 0.6), (other, 0.4)], stop="all")
        expected += Counter(100_000 + i for i in ids(9))
    elif kind == "zip":
        p = cedar.zip(known, other.select(z="x")).filter(lambda x: x != 3, "x")
    elif kind == "take":
        p = known.take(150).filter(lambda x: x != 3, "x")
        expected = Counter(i for i in ids(9)[:150] if i % 7 != 3)
    elif kind == "repeat":
        p, expected = unknown.repeat(2), expected + expected
    else:
        p = (
            unknown.map(lambda i: [i, i], "id", into="l")
            .select("l")
            .pack(2, "l")
            .map(lambda ids: ids[0], "l", into="id")
        )
    for seed in range(3):
        job = Job(p.batch(2, last="keep"), tmp_path / str(seed), 3)
        random_changes(job, random.Random(seed), 12, 5)
        assert job.finish() == expected


def test_nobody_is_idle_where_all_windows_were_begun(tmp_path: Path) -> None:
    p = numbers(8, 64).filter(lambda x: x != 3, "x").shuffle(seed=1).batch(2, last="keep")
    job = Job(p, tmp_path, 4)
    for _ in range(6):
        job.step()
    job.change([0, 1, 2, 3], 6)
    assert job.step() == 6
    assert job.step() == 6
    assert job.finish() == Counter(i for i in ids(8, 64) if i % 7 != 3)
    assert job.steps < 6 + 1.6 * (sum(job.got.values()) / 2 - 24) / 6


def test_a_store_of_torch_is_met_at_as_a_folder_is() -> None:
    distributed = pytest.importorskip("torch.distributed")
    store = distributed.HashStore()
    p = numbers(12).filter(lambda x: x != 3, "x").batch(2, last="keep")
    job = Job(p, store, 3)
    random_changes(job, random.Random(1), 10, 4)
    assert job.finish() == Counter(i for i in ids(12) if i % 7 != 3)


@pytest.mark.heavy
@pytest.mark.parametrize("known", [True, False])
def test_batches_on_their_way_to_a_device_are_dealt_anew(known: bool, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    p = numbers(12) if known else numbers(12).filter(lambda x: x != 3, "x")
    job = Job(p.batch(2, last="keep"), tmp_path, 2, format="torch", device="cpu")
    random_changes(job, random.Random(2), 8, 4)
    assert job.finish() == Counter(i for i in ids(12) if known or i % 7 != 3)


@pytest.mark.heavy
def test_a_rank_that_missed_a_change_comes_as_a_new_one(tmp_path: Path) -> None:
    job = Job(UNKNOWN.batch(4, last="keep"), tmp_path, 3)
    for _ in range(3):
        job.step()
    lost = job.loaders[2]
    job.change([0, 1], 2)
    job.step()
    job.loaders.append(lost)
    job.loops.append(None)
    job.change([2, 0, 1], 3)
    assert job.finish() == KEPT


def test_new_ranks_alone_begin_at_the_beginning(tmp_path: Path) -> None:
    p = numbers(6).batch(4)
    loaders = [p.loader(rank=0, world=1, agree=tmp_path, executor="inline") for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda rank: loaders[rank].reshard(rank, 2), range(2)))
    assert sorted(i for loader in loaders for b in run(loader)[0] for i in b["id"]) == ids(6)


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    p = numbers(6).batch(2)
    loader = p.loader(rank=0, world=2, agree=tmp_path, executor="inline", timeout=0.3)
    alone = p.loader(rank=0, world=2, executor="inline")
    next(iter(loader))
    with pytest.raises(cedar.PipelineError, match="rank must be between 0 and world - 1"):
        loader.reshard(2, 2)
    with pytest.raises(cedar.PipelineError, match="cannot communicate to agree on a position"):
        alone.reshard(0, 2)
    for rank in (0, 1):
        with pytest.raises(cedar.WorkerError, match=rf"rank\(s\) {1 - rank} of 2 did not call reshard"):
            loader.reshard(rank, 2)
    job = Job(p, tmp_path, 2)
    job.step()
    job._next(0)
    with pytest.raises(cedar.ResumeError, match="the ranks have different steps"):
        job.change([0, 1], 2)
    assert job.step() == 2  # nothing was redistributed, and they continue


@pytest.mark.parametrize("balanced", [False, True])
def test_ranks_that_change_after_the_last_batch_go_on_with_the_next_epoch(balanced: bool, tmp_path: Path) -> None:
    p = cedar.from_items([{"n": i} for i in range(40)]).shuffle(seed=1).batch(5, last="keep")
    p = p.balance("n") if balanced else p
    with p.loader(rank=0, world=2, agree=str(tmp_path), executor="inline") as loader:
        steps = iter(loader)
        assert len([next(steps) for _ in range(4)]) == 4
        loader.reshard(0, 1)
        assert list(steps) == []
        assert (loader.epoch, len(list(loader))) == (1, 8)


def one_pipeline(kind: str) -> cedar.Pipeline:
    parts = [cedar.from_source(Made(100_000 * n, [24] * 60, True)).select("id", "x") for n in range(2)]
    parts = [p.filter(lambda x: x != 3, "x").shuffle(seed=1, window=40) for p in parts]
    mixed = cedar.mix([(parts[0], 0.7), (parts[1], 0.3)], stop="all") if kind == "mix" else parts[0]
    return mixed.batch(4, last=None if kind == "together" else "keep")


@pytest.mark.parametrize("kind", ["one source", "mix", "together"])
@pytest.mark.parametrize("stop", [0, 3, 8, 9])
@pytest.mark.parametrize("shared", [True, False])
def test_the_state_of_one_rank_restores_all_ranks_with_lanes(
    kind: str, stop: int, shared: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world, p = 6, one_pipeline(kind)
    if kind == "together" and not shared:
        pytest.skip("ranks that end together communicate")

    def ranks(place: str, count: int = world) -> list[cedar.Loader]:
        options = {"agree": str(tmp_path / place)} if shared else {}
        return [p.loader(rank=rank, world=count, executor="inline", **options) for rank in range(count)]

    with ThreadPoolExecutor(world) as pool:

        def take(loaders: list[Any], steps: int) -> list[Any]:
            found: list[Any] = [[] for _ in loaders]
            for _ in range(steps):
                for rows, batch in zip(found, pool.map(next, loaders), strict=True):
                    rows.append(batch["id"].tolist())
            return found

        first = ranks("first")
        loops = [iter(loader) for loader in first]
        taken = take(loops, stop)
        state = saved(first[2])
        rest = take(loops, 6)
        if stop and shared:
            places = unpacked(state)["ranks"]
            assert sorted(places) == ["0", "1", "3", "4", "5"]
            assert all(0 <= stop - place[0] <= 4 for place in places.values())
        again = ranks("second")
        for loader in again:
            loader.load_state_dict(state)
        assert ("runs its first" in caplog.text) == (stop > 0 and not shared)
        second = [loader.state_dict() for loader in again]
        assert [each["step"] for each in second] == [stop] * world
        assert take([iter(loader) for loader in again], 6) == rest
        fewer = ranks("third", 3)
        for loader in fewer:
            loader.load_state_dict(state)
        if kind != "together":
            got = [x for rows in taken for batch in rows for x in batch]
            got += [x for loader in fewer for batch in loader for x in batch["id"].tolist()]
            assert len(got) == len(set(got)) == len(wanted(kind))
        for loader in [*first, *again, *fewer]:
            loader.close()


def wanted(kind: str) -> list[int]:
    """The rows of ``one_pipeline``."""
    both = [100_000 * n + i for n in range(2 if kind == "mix" else 1) for i in ids(60)]
    return [i for i in both if i % 7 != 3]


@pytest.mark.parametrize("world", [1, 2])
def test_the_state_of_one_rank_after_a_change_of_ranks_restores_all(world: int, tmp_path: Path) -> None:
    job = Job(one_pipeline("one source"), tmp_path, world)
    for _ in range(3):
        job.step()
    job.change([*range(world)], 3)
    for steps in range(1, 7):
        job.step()
        state = saved(job.loaders[0])
        places = unpacked(state)["ranks"]
        assert sorted(places) == ["1", "2"]
        assert all(0 <= 3 + steps - place[0] <= 4 for place in places.values())
    before = job.got.copy()
    job.finish()
    rest = Counter[int]()
    for rank in range(3):
        loader = job.make(rank, 3)
        loader.load_state_dict(state)
        rest.update(x for batch in run(loader)[0] for x in batch["id"])
    assert rest == job.got - before
    for loader in job.loaders:
        loader.close()


@pytest.mark.heavy
@pytest.mark.parametrize("sources", [1, 8])
def test_a_state_of_64_ranks_with_lanes_is_small(sources: int, tmp_path: Path) -> None:
    parts = [cedar.from_source(Made(100_000 * n, [24] * 80, True)).select("id", "x") for n in range(sources)]
    parts = [p.filter(lambda x: x != 3, "x").shuffle(seed=1, window=40) for p in parts]
    p = cedar.mix([(each, 1 + n) for n, each in enumerate(parts)], stop="all").batch(1, last="keep")
    loaders = [p.loader(rank=rank, world=64, agree=tmp_path, executor="inline") for rank in range(64)]
    loops = [iter(loader) for loader in loaders]
    for step in range(1, 10):
        for loop in loops:
            next(loop)
        state = saved(loaders[5])
        assert len(json.dumps(state)) <= 4096 + 40 * 64 * sources
        places = unpacked(state)["ranks"].values()
        assert len(places) == 63
        assert all(step - 4 <= place[0] <= step for place in places)
