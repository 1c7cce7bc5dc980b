"""Random pipelines, stopped and resumed in every way: each row once, always in the same order.

CEDAR_CASES sets the number of random pipelines; CEDAR_SEED the first of them. A failure names its seed, which alone
gives the case again: CEDAR_SEED=<seed> CEDAR_CASES=1. Each pipeline has all checks; of more than 2,000 pipelines each
has one, drawn by its seed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

import cedar
from tests import toy_pipelines
from tests.how_much import SEED, cases
from tests.toy_pipelines import Toy
from tests.toy_runs import batches_of, rows_of, run, saved, values

pytestmark = pytest.mark.heavy

CASES = cases(20)
GROUP = max(5, CASES // 40)
EVERY = 12  # of so many loaders on threads, one runs on processes


class Case:
    """A random pipeline, the seed and epoch of its run, and the whole run on one rank."""

    def __init__(self, seed: int, kinds: Sequence[str] = toy_pipelines.ROW_KINDS) -> None:
        self.seed, self.kinds = seed, kinds
        self.draw = random.Random(seed)
        self.toy: Toy = toy_pipelines.build(self.draw, kinds=kinds)
        self.loaders = seed  # so that not every pipeline has its processes at the same place
        self.options: dict[str, Any] = {"seed": self.draw.randint(0, 3), "epoch": self.draw.randint(0, 2)}
        self.options["deal"] = "global"  # lanes, where ranks see other batches than one alone, have their own test
        self.full, _ = run(self.loader(executor="inline"))

    def loader(self, **options: Any) -> cedar.Loader:
        executor = options.pop("executor", None) or self.draw.choice(["inline", "threads"])
        workers = self.draw.randint(1, 3)
        self.loaders += 1
        if executor == "threads" and self.loaders % EVERY == 0:
            executor, workers = "processes", 1 + workers % 2
        return self.toy.pipeline.loader(executor=executor, workers=workers, **(self.options | options))


def same_on_every_executor_however_cut(case: Case) -> None:
    cut = toy_pipelines.build(random.Random(case.seed), cut=case.draw.randint(1, 99), kinds=case.kinds).pipeline
    for pipeline in (case.toy.pipeline, cut):
        loader = pipeline.loader(executor="threads", workers=case.draw.randint(1, 3), **case.options)
        assert run(loader)[0] == case.full


def resumes_anywhere(case: Case) -> None:
    """Stop, resume on another executor, stop and resume again; the last time at the epoch's end as well."""
    length = len(case.full)
    stops = sorted(case.draw.randint(0, length) for _ in range(2))
    got, state = run(case.loader(), stops[0])
    for stop in [*stops[1:], None]:
        loader = case.loader()
        loader.load_state_dict(state)
        loader.set_epoch(state["epoch"])  # the rest of it, be it nothing
        if stop is not None and stop == len(got):
            state = saved(loader)  # loaded, and saved before a single batch
            continue
        more, state = run(loader, None if stop is None else stop - len(got))
        got += more
    assert got == case.full, stops
    if length:  # exactly at the end: nothing is left of this epoch
        _, state = run(case.loader(), length)
        loader = case.loader()
        loader.load_state_dict(state)
        loader.set_epoch(state["epoch"])
        assert run(loader)[0] == []
        assert loader.epoch == case.options["epoch"] + 1


def ranks_share_the_epoch(case: Case) -> None:
    """All ranks together see the epoch; each of them resumes in its own order."""
    world = case.draw.randint(2, 4)
    parts = []
    for rank in range(world):
        mine, _ = run(case.loader(rank=rank, world=world))
        stop = case.draw.randint(0, len(mine))
        head, state = run(case.loader(rank=rank, world=world), stop)
        loader = case.loader(rank=rank, world=world)
        loader.load_state_dict(state)
        loader.set_epoch(state["epoch"])
        assert head + run(loader)[0] == mine, (rank, world, stop)
        parts.append(mine)
    check_union(case, parts, world)
    lengths = {len(part) for part in parts}
    assert len(lengths) == 1 or case.toy.last == "keep"
    assert max(lengths) - min(lengths) <= 1


def worlds_change(case: Case) -> None:
    """Every rank stops where it likes, and other numbers of ranks continue; twice."""
    worlds = [case.draw.randint(1, 4) for _ in range(3)]
    states: list[Any] = []
    parts = []
    for number, world in enumerate(worlds):
        ahead = case.draw.randint(0, 3 + len(case.full) // world)
        after = []
        for rank in range(world):
            loader = case.loader(rank=rank, world=world)
            if states:
                mine = states[rank] if len(states) == world and case.draw.random() < 0.5 else states
                loader.load_state_dict(mine)
                loader.set_epoch(case.options["epoch"])  # the rest of it, be it nothing
            stop = None if number == 2 else max(0, ahead + case.draw.randint(-2, 2))
            part, state = stopped(loader, stop)
            parts.append(part)
            after.append(state)
        states = after
    check_union(case, parts, worlds[-1])


def stopped(loader: cedar.Loader, stop: int | None) -> tuple[list[Any], Any]:
    """Up to ``stop`` batches, and a state that is still in the epoch."""
    epoch = loader.epoch
    part: list[Any] = []
    state = saved(loader)
    if stop == 0:
        return part, state
    for batch in loader:
        part.append({name: values(column) for name, column in batch.items()})
        if stop is not None:
            state = saved(loader)
            assert state["epoch"] == epoch
            if len(part) >= stop:
                break
    return part, state


def check_union(case: Case, parts: list[list[Any]], world: int) -> None:
    got = [batch for part in parts for batch in part]
    padded = case.toy.last == "pad" and all("valid" in b for b in case.full)
    rows, wanted = rows_of(got, padded), rows_of(case.full, padded)
    assert not rows - wanted, "rows that came twice"
    assert not batches_of(got) - batches_of(case.full), "batches that another number of ranks does not have"
    lost = (wanted - rows).total()
    assert lost < world * case.toy.size if case.toy.last == "drop" else lost == 0, f"{lost} rows lost"


PROPERTIES: list[Callable[[Case], None]] = [
    same_on_every_executor_however_cut, resumes_anywhere, ranks_share_the_epoch, worlds_change,
]  # fmt: skip


@pytest.mark.heavy
@pytest.mark.parametrize("first", range(SEED, SEED + CASES, GROUP))
def test_random_pipelines(first: int, record_property: Callable[[str, object], None]) -> None:
    seeds = range(first, min(first + GROUP, SEED + CASES))
    record_property("random pipelines", len(seeds))
    check_seeds(seeds, one=CASES > 2000)


def test_random_pipelines_that_once_failed() -> None:
    check_seeds([242, 246, 510, 2127, 4756, 101073, 210846, 213710])


def test_random_pipelines_that_split_join_and_leave_out_what_repeats() -> None:
    check_seeds(range(SEED, SEED + max(CASES // 2, 1)), kinds=[*toy_pipelines.ROW_KINDS, *toy_pipelines.TABLE_KINDS])


def check_seeds(seeds: Iterable[int], one: bool = False, kinds: Sequence[str] = toy_pipelines.ROW_KINDS) -> None:
    for seed in seeds:
        case = Case(seed, kinds)
        for check in [PROPERTIES[seed % len(PROPERTIES)]] if one else PROPERTIES:
            try:
                check(case)
            except Exception as error:
                error.add_note(f"{check.__name__} failed: CEDAR_SEED={seed} CEDAR_CASES=1; {case.toy.names}")
                raise


# ---- steps, slices and local operators, on pipelines whose counts are known, and on those whose are not --------------

KNOWN = {"known": True, "unknown": False}


def numbers(n: int, known: bool, splits: int = 1) -> cedar.Pipeline:
    """Rows x = 0 .. n - 1; whether their number is known without running."""
    sizes = [n // splits + (i < n % splits) for i in range(splits)]
    source = cedar.from_source(toy_pipelines.Source(0, sizes, True)).select("id")
    return source if known else source.filter(lambda x: x >= 0, "id")


def ids(batches: list[Any]) -> list[int]:
    return [i for b in batches for i in b["id"]]


@pytest.mark.parametrize("known", KNOWN.values(), ids=KNOWN)
@pytest.mark.parametrize("last", [None, "drop", "keep", "pad"])
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("steps", [1, 7])
def test_steps_end_every_epoch_on_all_ranks_and_lose_nothing(known: bool, last: Any, world: int, steps: int) -> None:
    pipeline = numbers(22, known).shuffle(seed=1, window=8).batch(2, last=last)
    deal: Any = "auto" if known else "global"  # without steps, ranks that cannot talk have no lanes
    for rank in range(world):
        loader = pipeline.loader(rank=rank, world=world, steps=steps, deal=deal)
        epochs = [run(loader)[0] for _ in range(30 // steps)]
        assert {len(epoch) for epoch in epochs} == {steps} == {len(loader)}
        got = [batch for epoch in epochs for batch in epoch]
        data: list[Any] = []  # what is left over opens the next epoch: the epochs of the data, end to end
        number = 0
        while len(data) < len(got):
            data += run(pipeline.loader(rank=rank, world=world, epoch=number, deal=deal))[0]
            number += 1
        assert got == data[: len(got)]


def marked(pipeline: cedar.Pipeline) -> cedar.Pipeline:
    """With a column that is another one in every epoch."""
    return pipeline.map(lambda x, rng: int(rng.integers(1 << 40)), "id", into="mark", random=True, dtype=int)


@pytest.mark.parametrize("known", KNOWN.values(), ids=KNOWN)
@pytest.mark.parametrize("last", [None, "drop", "keep"])
def test_steps_resume_anywhere_and_at_another_world(known: bool, last: Any) -> None:
    pipeline = marked(numbers(23, known, splits=3)).shuffle(seed=3).batch(2, last=last)
    passes = [set(marks(run(pipeline.loader(epoch=e))[0])) for e in range(12)]
    for case in range(12 if CASES > 100 else 6):  # all of them in `make chaos`
        draw = random.Random(case)
        steps, world, after = draw.randint(2, 9), draw.randint(1, 3), draw.randint(1, 3)
        epochs, stop = draw.randint(0, 3), draw.randint(0, steps - 1)
        states, parts = [], []
        for rank in range(world):
            loader = pipeline.loader(rank=rank, world=world, steps=steps)
            mine = [b for _ in range(epochs) for b in run(loader)[0]]
            part, state = run(loader, stop)
            states.append(state)
            parts += mine + part
            whole = pipeline.loader(rank=rank, world=world, steps=steps)
            expected = [run(whole)[0] for _ in range(epochs + 2)]
            again = pipeline.loader(rank=rank, world=world, steps=steps)
            again.load_state_dict(state)
            assert part + run(again)[0] == expected[epochs]
            assert run(again)[0] == expected[epochs + 1]
        through = []
        for rank in range(after):
            loader = pipeline.loader(rank=rank, world=after, steps=steps, executor="inline")
            loader.load_state_dict(states)
            for number in range(30 // steps):
                part, state = run(loader)
                assert len(part) == (steps - stop if number == 0 else steps)
                parts += part
            through.append(state["data"])
        got = marks(parts)
        assert len(set(got)) == len(got), "rows that came twice in an epoch"
        for number in range(min(len(passes), *through)):
            lost = passes[number] - set(got)
            most = {None: max(world, after), "drop": 2 * max(world, after), "keep": 1}[last]
            assert len(lost) < most, (case, number, lost)


def marks(batches: list[Any]) -> list[int]:
    return [i for b in batches for i in b["mark"]]


@pytest.mark.parametrize("known", KNOWN.values(), ids=KNOWN)
def test_steps_in_an_epoch_that_was_not_reached_by_running(known: bool) -> None:
    pipeline = numbers(20, known).shuffle(seed=3).batch(3)
    loader = pipeline.loader(steps=4)
    reached = [run(loader)[0] for _ in range(4)]
    if known:
        jumped = pipeline.loader(steps=4, epoch=3)
        assert run(jumped)[0] == reached[3]
        jumped.set_epoch(2)
        assert run(jumped)[0] == reached[2]
    for batch in loader:  # after a break, the epoch begins again where it began
        first = ids([{"id": batch["id"].tolist()}])
        break
    assert ids(run(loader)[0])[:3] == first


@pytest.mark.parametrize("known", KNOWN.values(), ids=KNOWN)
@pytest.mark.parametrize("last", ["drop", "keep", "pad"])
def test_every_rank_gets_its_slice_of_the_global_batch(known: bool, last: Any) -> None:
    pipeline = numbers(26, known).shuffle(seed=2).batch(6, last=last)
    whole, _ = run(pipeline.loader())
    for world in (1, 2, 3):
        ranks = [run(pipeline.loader(rank=r, world=world, split_batches=True))[0] for r in range(world)]
        assert len({len(part) for part in ranks}) == 1
        for number, batch in enumerate(whole):
            slices = [part[number] for part in ranks]
            if last != "keep" or number < len(whole) - 1:
                assert {len(s["id"]) for s in slices} == {6 // world}
            live = [i for s in slices for i, v in zip(s["id"], s.get("valid", [True] * 6), strict=False) if v]
            assert live == [i for i, v in zip(batch["id"], batch.get("valid", [True] * 6), strict=False) if v]
        states = [run(pipeline.loader(rank=r, world=world, split_batches=True), 2)[1] for r in range(world)]
        rest = []
        for rank in range(2):
            loader = pipeline.loader(rank=rank, world=2, split_batches=True)
            loader.load_state_dict(states)
            rest.append(run(loader)[0])
        left = [i for pair in zip(*rest, strict=True) for s in pair for i, v in _valid(s) if v]
        assert left == [i for b in whole[2:] for i, v in _valid(b) if v]


def _valid(batch: Any) -> Any:
    return zip(batch["id"], batch.get("valid", [True] * len(batch["id"])), strict=True)


LOCAL: dict[str, Callable[[cedar.Pipeline], cedar.Pipeline]] = {
    "batch": lambda p: p.filter(lambda x: x % 3 != 0, "id").batch(4, last="keep", local=True),
    "take": lambda p: p.filter(lambda x: x % 3 != 0, "id").take(5, local=True).batch(2, last="keep"),
    "skip": lambda p: p.filter(lambda x: x % 3 != 0, "id").skip(2, local=True).batch(2, last="keep"),
    "shuffle": lambda p: p.filter(lambda x: x % 3 != 0, "id").shuffle(window=9).batch(4, last="keep", local=True),
}


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("world", [2, 3])
def test_local_operators_work_on_a_ranks_own_share(name: str, world: int) -> None:
    pipeline = LOCAL[name](numbers(60, True, splits=9).shuffle(window=7))
    parts, states, heads = [], [], []
    for rank in range(world):
        loader = pipeline.loader(rank=rank, world=world)
        part, _ = run(loader)
        assert loader.report().rows_read < 60, "a rank reads its share alone"
        head, state = run(pipeline.loader(rank=rank, world=world), len(part) // 2)
        again = pipeline.loader(rank=rank, world=world)
        again.load_state_dict(state)
        assert head + run(again)[0] == part
        parts.append(part)
        states.append(state)
        heads += head
    together = Counter(i for part in parts for i in ids(part))
    assert set(together.values()) == {1}
    if name in ("batch", "shuffle"):
        assert len(together) == 40
    for after in (1, 2, 4):
        rest = []
        for rank in range(after):
            loader = pipeline.loader(rank=rank, world=after)
            loader.load_state_dict(states[rank] if after == world else states)
            rest += run(loader)[0]
        assert Counter(ids(heads + rest)) == together


def test_ranks_that_ran_out_before_the_others_resume_with_them() -> None:
    for known in KNOWN.values():
        pipeline = numbers(14, known).batch(2, last="keep")
        states, got = [], []
        for rank in range(3):  # ranks 1 and 2 end after two batches, when rank 0 has one more to come
            loader = pipeline.loader(rank=rank, world=3)
            part, state = run(loader, 2 if rank == 0 else None)
            got += part
            states.append(state)
        assert [s["epoch"] for s in states] == [0, 1, 1]
        rest = []
        for rank in range(2):
            loader = pipeline.loader(rank=rank, world=2)
            loader.load_state_dict(states)
            rest += run(loader)[0]
        assert sorted(ids(got + rest)) == list(range(14))


def test_two_epochs_through_resumes() -> None:
    pipeline = numbers(20, False, splits=4).shuffle(seed=5).batch(3, last="keep")
    whole = pipeline.loader(seed=2)
    expected = [run(whole)[0] for _ in range(3)]
    loader = pipeline.loader(seed=2)
    run(loader)
    part, state = run(loader, 3)
    again = pipeline.loader(seed=2, executor="inline")
    again.load_state_dict(state)
    assert again.epoch == 1
    assert part + run(again)[0] == expected[1]
    assert run(again)[0] == expected[2]
