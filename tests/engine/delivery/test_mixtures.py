"""The weights of mixtures change in the middle of an epoch: every row comes once. CEDAR_CASES sets the number of random
cases, CEDAR_SEED the first of them.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import cedar
from tests.how_much import SEED, cases
from tests.toy_pipelines import Source
from tests.toy_runs import run, saved

CASES = cases(20)


def pipeline(draw: random.Random, *, counted: bool, repeats: int | None, stop: Any) -> tuple[Any, Counter[int]]:
    """A function that makes a mixture by weights, and how often each row is in its inputs."""
    parts, rows = [], Counter[int]()
    for number in range(draw.randint(2, 3)):
        sizes = [draw.choice([3, 8, 21]) for _ in range(draw.randint(3, 5))]
        source = Source(100_000 * number, sizes, True)
        ids = [100_000 * number + 1000 * part + i for part, n in enumerate(sizes) for i in range(n)]
        p = cedar.from_source(source).select("id").shuffle(seed=1)
        if not counted:
            p, ids = p.filter(lambda i: i % 3 != 1, "id"), [i for i in ids if i % 3 != 1]
        parts.append(p.repeat(repeats))
        rows.update(ids * (repeats or 1))
    size, seed, above = draw.randint(1, 5), draw.randint(0, 9), draw.random() < 0.3

    last: Any = "keep" if repeats else "drop"

    def make(weights: list[float]) -> cedar.Pipeline:
        named = {f"in{number}": pair for number, pair in enumerate(zip(parts, weights, strict=True))}
        mixed = cedar.mix(named, seed=seed, stop=stop)
        mixed = mixed.map(lambda i: i, "id") if above else mixed
        return mixed.batch(size, last=last)

    return make, rows


def weights_of(draw: random.Random, many: int) -> list[float]:
    return [draw.choice([0.1, 0.5, 2.0]) for _ in range(many)]


def ids(batches: list[Any]) -> list[int]:
    return [i for batch in batches for i in batch["id"]]


def every_row_comes_once(draw: random.Random) -> None:
    counted, repeats = draw.random() < 0.6, draw.choice([1, 2])
    make, rows = pipeline(draw, counted=counted, repeats=repeats, stop="all")
    many = len({i // 100_000 for i in rows})
    world = draw.choice([1, 2, 3])
    written = weights_of(draw, many)
    got: list[int] = []
    states: list[Any] = [None] * world
    for change in range(3):
        now, how, steps = weights_of(draw, many), draw.choice(["call", "load"]), draw.randint(0, 5)
        last = change == 2
        written = now if how == "load" else written
        after = []
        for rank, state in enumerate(states):
            loader = make(written).loader(rank=rank, world=world, executor="inline")
            if state is not None:
                loader.load_state_dict(state)
                loader.set_epoch(0)
                if how == "call":
                    loader.update_mix(dict(zip([f"in{i}" for i in range(many)], now, strict=True)))
            if not last and steps == 0:
                after.append(saved(loader))
                continue
            batches, stands = run(loader, None if last else steps)
            got += ids(batches)
            after.append(stands)
        states = after
        if not last and any(state["epoch"] for state in states):
            return
    assert Counter(got) == rows


def states_go_on_as_the_run_does(draw: random.Random) -> None:
    make, rows = pipeline(draw, counted=draw.random() < 0.5, repeats=None, stop="first")
    many = len({i // 100_000 for i in rows})
    world, written, now = draw.choice([1, 2]), weights_of(draw, many), weights_of(draw, many)
    at, steps = draw.randint(1, 6), 25
    for rank in range(world):
        loader = make(written).loader(rank=rank, world=world, steps=steps, executor="inline")
        whole, states = [], {}
        for number, batch in enumerate(loader, 1):
            whole.append(batch["id"].tolist())
            if number == at:
                loader.update_mix(now)
            states[number] = saved(loader)
        for number in draw.sample(range(at, steps), 3):
            again = make(written).loader(rank=rank, world=world, steps=steps, executor="inline")
            again.load_state_dict(states[number])
            assert [batch["id"] for batch in run(again)[0]] == whole[number:]


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(SEED, SEED + CASES))
@pytest.mark.parametrize("check", [every_row_comes_once, states_go_on_as_the_run_does])
def test_weights_change_at_any_step(check: Any, seed: int) -> None:
    check(random.Random(seed))


def source(value: int, rows: int = 500) -> cedar.Pipeline:
    return cedar.from_items([{"x": value * 1000 + i} for i in range(rows)]).shuffle(seed=1)


def share(batches: list[Any]) -> float:
    rows = [x for batch in batches for x in batch["x"]]
    return float(sum(x >= 1000 for x in rows) / len(rows))


def test_shares_follow_the_weights_from_the_step_on() -> None:
    p = cedar.mix({"a": (source(0).repeat(), 0.5), "b": (source(1).repeat(), 0.5)}, seed=1).batch(16)
    loader = p.loader(steps=400, executor="inline")
    got = []
    for number, batch in enumerate(loader, 1):
        got.append(batch)
        if number == 128:
            loader.update_mix({"b": 1.5})
        if number == 256:
            loader.update_mix(remove=["a"])
    assert share(got[:128]) == pytest.approx(0.5, abs=0.01)
    assert share(got[128:256]) == pytest.approx(0.75, abs=0.01)
    assert share(got[256:]) == 1.0
    first = [x for batch in got[:256] for x in batch["x"].tolist() if x < 1000]
    assert first[:500] == list(dict.fromkeys(first[:500]))  # a pass goes on where it is


def test_a_schedule_is_asked_for_steps_of_all_epochs() -> None:
    asked: list[int] = []

    def weight(step: int) -> float:
        asked.append(step)
        return 1.0 if step >= 100 else 0.0

    for repeats, steps in ((None, 50), (4, None)):
        asked.clear()
        p = cedar.mix([(source(0).repeat(repeats), 0.5), (source(1).repeat(repeats), weight)]).batch(16, last="drop")
        loader = p.loader(steps=steps, executor="inline")
        epochs = []
        for _ in range(4):
            epochs.append(run(loader)[0])
            state = saved(loader)
            loader = p.loader(steps=steps, executor="inline")
            loader.load_state_dict(state)
        assert share(epochs[0][:50]) == 0.0
        assert share(epochs[3][:10]) > 0.3
        if steps:
            assert [share(each) for each in epochs[:2]] == [0.0, 0.0]
            assert share(epochs[3]) == pytest.approx(2 / 3, abs=0.02)


@pytest.mark.parametrize("told", ["loader", "sampler"])
def test_steps_of_an_epoch_that_is_left_for_the_next_one_count(told: str) -> None:
    p = cedar.mix({"a": (source(0), 1.0), "b": (source(1), lambda step: float(step >= 20))}, stop="all").batch(4)
    fixed = cedar.mix({"a": (source(0), 1.0), "b": (source(1), 1e-9)}, stop="all").batch(4)
    scheduled, changed = p.loader(executor="inline"), fixed.loader(executor="inline")
    changed.update_mix({"b": 1.0}, at_step=20)
    for loader in (scheduled, changed):
        epochs = []
        for epoch in range(3):
            (loader if told == "loader" else loader.sampler).set_epoch(epoch)
            epochs.append(run(loader, 10)[0])  # as a trainer that limits the batches of an epoch
        assert share(epochs[0]) == share(epochs[1]) == 0.0
        assert share(epochs[2]) > 0.3
    scheduled.set_epoch(2)
    assert share(run(scheduled, 10)[0]) == share(epochs[2]), "an epoch that starts again counts once"


def by_step(rank: int, world: int, states: Any = None, steps: int | None = None) -> tuple[list[Any], Any]:
    """What a rank receives of a mixture of 6,000 rows, of which the second input replaces the first in 60 steps."""
    first = (source(-3, 3000), lambda step: max(0.05, 1 - step / 60))
    second = (source(1, 3000), lambda step: max(0.05, step / 60))
    p = cedar.mix([first, second], seed=3, stop="all").batch(32, last="keep")
    loader = p.loader(rank=rank, world=world, executor="inline")
    if states is not None:
        loader.load_state_dict(states)
    return run(loader, steps)


def test_a_schedule_holds_at_each_step_of_each_rank() -> None:
    for rank in range(3):
        batches, _ = by_step(rank, 3)
        for step in (0, 10, 20):
            assert share(batches[step : step + 10]) == pytest.approx(step / 60, abs=0.15)
    p = cedar.mix([(source(0), 1.0), (source(1), lambda _: 1.0)])
    assert "RANKS  in turns, and every rank reads all rows" in p.loader(rank=0, world=3).explain()


@pytest.mark.parametrize("worlds", [(2, 3, 1), (3, 1), (1, 2)])
def test_each_row_comes_once_by_a_schedule_if_the_number_of_ranks_changes(worlds: tuple[int, ...]) -> None:
    got, states = [], None
    for number, world in enumerate(worlds):
        steps = None if number == len(worlds) - 1 else 12
        parts = [by_step(rank, world, states, steps) for rank in range(world)]
        got += [x for batches, _ in parts for batch in batches for x in batch["x"]]
        states = [state for _, state in parts]
    assert Counter(got) == Counter([row["x"] for row in cedar.concat(source(-3, 3000), source(1, 3000))])


@pytest.mark.parametrize("rows", [1, 5, 20])
def test_an_endless_input_may_have_fewer_rows_than_there_are_ranks(rows: int) -> None:
    small = source(1, rows).filter(lambda x: x >= 0, "x").repeat()
    large = source(-9, 9000).filter(lambda x: x < 0, "x").repeat()
    p = cedar.mix([(large, 0.75), (small, 0.25)], seed=1).batch(128)
    for rank in (0, 7):
        batches, _ = run(p.loader(rank=rank, world=8, steps=1, executor="inline"))
        assert share(batches) == pytest.approx(0.25, abs=0.1)
        assert {x for batch in batches for x in batch["x"] if x >= 0} == {*range(1000, 1000 + rows)}


def test_what_cannot_change_is_refused_by_name() -> None:
    a, b = source(0, 50), source(1, 50)
    above = cedar.mix([(a, 0.5), (b, 0.5)]).shuffle(seed=2).batch(4)
    loader = above.loader(executor="inline")
    state = run(loader, 3)[1]
    with pytest.raises(cedar.PipelineError, match=r"below shuffle"):
        loader.update_mix([0.9, 0.1])
    assert saved(loader) == state
    changed = cedar.mix([(a, 0.9), (b, 0.1)]).shuffle(seed=2).batch(4)
    with pytest.raises(cedar.ResumeError, match=r"has other weights than when the state was saved"):
        changed.loader(executor="inline").load_state_dict(state)
    with pytest.raises(cedar.PipelineError, match=r"no mixture has these inputs: \['c'\]"):
        cedar.mix({"a": (a, 1), "b": (b, 1)}).batch(4).loader().update_mix({"c": 1})
    with pytest.raises(cedar.PipelineError, match=r"all weights of mix are zero"):
        cedar.mix({"a": (a, 1), "b": (b, 1)}).batch(4).loader().update_mix(remove=["a", "b"])


def test_batches_are_read_again_after_a_change() -> None:
    p = cedar.mix([(source(0), 0.5), (source(1), 0.5)], stop="all").batch(8, last="keep")
    loader = p.loader(executor="inline")
    got = []
    for number, batch in enumerate(loader):
        if number == 7:
            loader.update_mix([1, 3])
        got.append(batch["x"].tolist())
    loader = p.loader(executor="inline")
    for _ in islice(loader, 8):
        pass
    loader.update_mix([1, 3])
    state = json.loads(json.dumps(loader.state_dict()))
    fresh = p.loader(executor="inline")
    fresh.load_state_dict(state)
    assert [fresh.read(step)["x"].tolist() for step in (8, 20, 9)] == [got[8], got[20], got[9]]
    assert fresh.locate(12, 3).row.row == got[12][3] % 1000


def counts(world: int, states: Any, steps: int | None, weights: list[float] | None = None) -> tuple[Any, list[Any]]:
    """How often each row of a mixture with unknown counts comes in so many steps of all ranks, and their states."""
    parts = [source(value, 40).filter(lambda x: x % 3 != 0, "x") for value in range(2)]
    p = cedar.mix([(parts[0], 0.5), (parts[1], 0.5)], stop="all").batch(2, last="keep")
    got, after = Counter[int](), []
    for rank in range(world):
        loader = p.loader(rank=rank, world=world, executor="inline")
        if states:
            loader.load_state_dict(states)
        if weights:
            loader.update_mix(weights)
        batches, state = run(loader, steps)
        got.update(x for batch in batches for x in batch["x"])
        after.append(state)
    return got, after


@pytest.mark.parametrize("worlds", [(1, 1, 1), (1, 3, 2), (2, 1, 3), (3, 2, 1)])
def test_weights_change_after_the_number_of_ranks_where_counts_are_unknown(worlds: tuple[int, ...]) -> None:
    got, states = counts(worlds[0], None, 3)
    more, states = counts(worlds[1], states, 2, [1, 3])
    rest, _ = counts(worlds[2], states, None, [3, 1])
    assert got + more + rest == Counter(x for x in [*range(40), *range(1000, 1040)] if x % 3)


@pytest.mark.parametrize("above", [False, True])
def test_weights_change_before_the_first_row(above: bool) -> None:
    p = cedar.mix([(source(0).repeat(), 0.5), (source(1).repeat(), 0.5)])
    p = (p.shuffle(seed=2, window=64) if above else p).batch(16)
    loader = p.loader(steps=64, executor="inline")
    loader.update_mix([1, 3])
    state = saved(loader)
    assert state["open"] == {}  # so another rank can load it, with files that changed since the last epoch
    again = p.loader(steps=64, executor="inline")
    again.load_state_dict(state)
    batches = run(again)[0]
    assert share(batches) == pytest.approx(0.75, abs=0.02)
    assert batches == run(loader)[0]


@pytest.mark.parametrize("worlds", [(2, 1), (1, 1)])
def test_a_removed_input_comes_back_where_the_other_input_is_exhausted(worlds: tuple[int, int]) -> None:
    parts = {name: (source(v, 3000).filter(lambda x: x >= 0, "x"), 0.5) for name, v in (("a", 0), ("b", 5))}
    p = cedar.mix(parts, stop="all").batch(60, last="keep")
    got: list[int] = []
    loaders = [p.loader(rank=rank, world=worlds[0], executor="inline") for rank in range(worlds[0])]
    for loader in loaders:
        got += ids_of(run(loader, 2)[0])
    loader = p.loader(executor="inline")
    loader.load_state_dict([saved(each) for each in loaders])
    loader.update_mix(remove=["a"])
    most = 3000 if worlds[0] == 1 else 2500  # of the second input's rows: all, or all of a lane and some of the other
    for batch in loader:
        got += batch["x"].tolist()
        if sum(x >= 5000 for x in got) >= most > 0:
            loader.update_mix({"a": 0.5})
            most = 0
    assert Counter(got) == Counter([*range(3000), *range(5000, 8000)])


@pytest.mark.parametrize("world", [1, 2, 4])
def test_an_input_removed_after_its_end_on_a_rank_is_not_read_again(world: int) -> None:
    sizes = {0: 30, 100_000: 30, 200_000: 45}

    def loader(rank: int, world: int) -> Any:
        parts = [cedar.from_source(Source(first, [size] * 3, True)).select("id") for first, size in sizes.items()]
        named = {name: (p.filter(lambda i: i >= 0, "id"), 1.0) for name, p in zip("abc", parts, strict=True)}
        made = cedar.mix(named, seed=1, stop="all").batch(20, last="keep")
        return made.loader(rank=rank, world=world, executor="inline")

    got, states = [], []
    for rank, steps in enumerate([None, 1, 1]):
        one = loader(rank, 3)
        one.update_mix(remove=["b"])
        got += ids(run(one, steps)[0])
        one.update_mix(remove=["c"])  # rank 0 has no more of its rows
        states.append(saved(one))
    assert [state["epoch"] for state in states] == [1, 0, 0]
    for rank in range(world):
        one = loader(rank, world)
        one.load_state_dict(states)
        one.set_epoch(0)
        one.update_mix({"b": 1.0, "c": 1.0})
        got += ids(run(one)[0])
    rows = [first + 1000 * part + i for first, size in sizes.items() for part in range(3) for i in range(size)]
    assert Counter(got) == dict.fromkeys(rows, 1)


def ids_of(batches: list[Any]) -> list[int]:
    return [x for batch in batches for x in batch["x"]]


def grown(counted: bool) -> tuple[Any, Any]:
    """A function that makes a mixture of two inputs or three, and the third input."""
    sources = [source(value, 300 + 400 * value) for value in range(3)]
    a, b, c = sources if counted else (each.filter(lambda x: x % 10 != 7, "x") for each in sources)

    def make(*more: tuple[str, Any]) -> cedar.Pipeline:
        return cedar.mix({"a": (a, 0.5), "b": (b, 0.5)} | dict(more), stop="all", seed=4).batch(16, last="keep")

    return make, (c, 0.25)


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("world", [1, 2])
def test_an_input_is_added_at_a_step(counted: bool, world: int) -> None:
    make, new = grown(counted)
    every, got = Counter[int](), Counter[int]()
    for rank in range(world):

        def loader(*more: tuple[str, Any], rank: int = rank) -> cedar.Loader:
            made: cedar.Loader = make(*more).loader(rank=rank, world=world, executor="inline")
            return made

        now, later, states = loader(), loader(), []
        later.update_mix({"a": 0.1}, add={"c": new}, at_step=5)
        batches = []
        for number, batch in enumerate(now, 1):
            batches.append(batch["x"].tolist())
            if number == 5:
                now.update_mix({"a": 0.1}, add={"c": new})
        assert any(x >= 2000 for x in batches[5])
        for batch in later:
            states.append(saved(later))
            assert batch["x"].tolist() == batches[len(states) - 1]
        assert len(states) == len(batches) == now.report().batches
        assert now.report().rows == sum(map(len, batches))
        got.update(x for batch in batches for x in batch)
        for at in (2, 5, 7):
            with pytest.raises(cedar.ResumeError, match=r"gets the input 'c' at step 5|another pipeline"):
                loader().load_state_dict(states[at - 1])
            again = loader()
            again.update_mix({"a": 0.1}, add={"c": new}, at_step=5)
            again.load_state_dict(states[at - 1])
            assert [batch["x"] for batch in run(again)[0]] == batches[at:]
        written = loader(("c", new))
        written.load_state_dict(states[6])
        assert [batch["x"] for batch in run(written)[0]] == batches[7:]
        following = [batch["x"] for batch in run(now)[0]]
        assert following == [batch["x"] for batch in run(written)[0]]
        every.update(x for batch in following for x in batch)
    assert got == every
    assert max(got.values()) == 1


def test_what_cannot_be_added_is_refused_by_name() -> None:
    make, (new, _) = grown(counted=True)
    loader = make().loader(executor="inline")
    next(iter(loader))
    state = saved(loader)
    for arguments, what in (
        ({"add": {"b": (new, 1)}}, "the mixture has an input 'b' already"),
        ({"add": {"c": new}}, "takes pairs of a pipeline and a weight"),
        ({"add": {"c": new.map(lambda x: 1 // 0, "x", dtype=int)}}, "takes pairs of a pipeline and a weight"),
        ({"add": {"c": (make(), 1)}}, "the new input contains another mixture"),
        ({"add": {"c": (new.batch(2), 1)}}, "batches"),
        ({"add": {"c": (new.rename(x="y"), 1)}}, "columns"),
        ({"add": {"c": (new, -1)}}, "weight 2 of mix is -1"),
        ({"weights": {"b": 2}, "at_step": 0}, r"at_step=0\): the loader is at step 1"),
        ({"weights": {"b": -2}, "at_step": 3}, "is -2"),
        ({"remove": ["a", "b"], "at_step": 3}, "all weights of mix are zero"),
        ({"weights": {"b": lambda _: 1}, "at_step": 3}, "a weight is a function"),
        ({"weights": {"d": 2}, "at_step": 3}, "no mixture has these inputs"),
    ):
        with pytest.raises(cedar.PipelineError, match=what):
            loader.update_mix(**arguments)
    assert saved(loader) == state


@pytest.mark.parametrize("counted", [True, False])
def test_a_mixture_below_another_does_not_change_within_an_epoch(counted: bool) -> None:
    make, (new, _) = grown(counted)
    below = cedar.mix({"d": (source(4), 0.5), "e": (new, 0.5)}, stop="all")
    loader = make(("c", (below, 0.5))).loader(executor="inline")
    next(iter(loader))
    with pytest.raises(cedar.PipelineError, match="below another mixture"):
        loader.update_mix({"d": 0.1})


@pytest.mark.parametrize("counted", [True, False])
def test_a_rank_that_joins_uses_the_weights_of_the_others(counted: bool, tmp_path: Path) -> None:
    make, _ = grown(counted)
    loaders = [make().loader(rank=0, world=1, agree=str(tmp_path), executor="inline") for _ in range(2)]
    units = iter(loaders[0])
    got = [x for _ in range(3) for x in next(units)["x"].tolist()]
    loaders[0].update_mix({"a": 0.01})
    got += [x for _ in range(3) for x in next(units)["x"].tolist()]
    with ThreadPoolExecutor(2) as ranks:
        list(ranks.map(lambda rank: loaders[rank].reshard(rank, 2), range(2)))
    rest = [x for each in (units, loaders[1]) for batch in each for x in batch["x"].tolist()]
    whole = [x for batch in make().loader(executor="inline") for x in batch["x"].tolist()]
    assert sorted(got + rest) == sorted(whole)


def test_no_input_comes_back_to_ranks_that_ended_before_another_one_was_added() -> None:
    firsts = {name: 100_000 * number for number, name in enumerate("abc")}

    def part(name: str) -> cedar.Pipeline:
        return cedar.from_source(Source(firsts[name], [4] * 4, True)).select("id").filter(lambda i: i >= 0, "id")

    def loader(names: str, rank: int, world: int) -> Any:
        p = cedar.mix({name: (part(name), 1.0) for name in names}, seed=1, stop="all").batch(2, last="keep")
        return p.loader(rank=rank, world=world, executor="inline")

    got, states = [], []
    for rank, steps in enumerate([1, None]):
        one = loader("ab", rank, 2)
        one.update_mix(remove=["b"])
        got += ids(run(one, steps)[0])
        one.update_mix(add={"c": (part("c"), 1.0)})
        states.append(saved(one))
    assert [state["epoch"] for state in states] == [0, 1]
    last = loader("abc", 0, 1)
    last.load_state_dict(states)
    last.set_epoch(0)
    with pytest.raises(cedar.PipelineError, match="had ended its part of this epoch before an input was added"):
        last.update_mix({"b": 1.0})
    last = loader("abc", 0, 1)
    last.load_state_dict(states)
    last.set_epoch(0)
    found = Counter(got + ids(run(last)[0]))
    assert {*found.values()} == {1}
    assert Counter(i // 100_000 for i in found)[0] == 16


def numbered(first: int, last: int) -> cedar.Pipeline:
    return cedar.from_items([{"x": i} for i in range(first, last)])


def test_a_schedule_goes_on_in_what_is_read_again_and_counted_in_later_epochs() -> None:
    p = cedar.mix([(numbered(0, 400), 1.0), (numbered(400, 800), lambda step: 1.0 if step < 50 else 9.0)]).batch(8)
    loader = p.loader(executor="inline")
    list(loader)
    number, batches = len(loader), []
    for batch in loader:
        batches.append(batch["x"].tolist())
        if len(batches) in (1, 20):
            step = len(batches) - 1
            assert loader.read(step)["x"].tolist() == batches[step]
            located = loader.locate(step, 3)
            assert located.row.row == batches[step][3] % 400
    assert len(batches) == number


def test_ranks_with_different_numbers_of_steps_follow_a_schedule_in_later_epochs() -> None:
    p = cedar.mix([(numbered(0, 13), 1.0), (numbered(100, 113), lambda step: 0.1 if step < 7 else 9.0)], stop="all")
    p = p.batch(2, last="keep")
    loaders = [p.loader(rank=rank, world=2, executor="inline") for rank in range(2)]
    for _ in range(3):
        got = [x for loader in loaders for batch in loader for x in batch["x"].tolist()]
        assert sorted(got) == [*range(13), *range(100, 113)]


def test_weights_that_change_before_the_first_batch_apply_where_the_epoch_begins() -> None:
    p = cedar.mix([(numbered(0, 40), 0.5), (numbered(40, 80), 0.5)], stop="all").batch(2)
    before, changed = (p.loader(steps=10, epoch=epoch, executor="inline") for epoch in range(2))
    changed.update_mix([0.5, 0.5])
    got = [x for loader in (before, changed) for batch in loader for x in batch["x"].tolist()]
    assert len(set(got)) == 40


def test_an_epoch_of_steps_begins_where_those_before_it_ended() -> None:
    p = cedar.mix([(numbered(0, 40), 0.5), (numbered(40, 80), 0.5)], stop="first").batch(2, last="keep")
    loader = p.loader(steps=30, executor="inline")
    run = [[batch["x"].tolist() for batch in loader] for _ in range(5)]
    for epoch, batches in enumerate(run):
        again = p.loader(steps=30, epoch=epoch, executor="inline")
        assert [batch["x"].tolist() for batch in again] == batches


def switching(at: int) -> cedar.Pipeline:
    """Ten batches per epoch of the data; the second input gets most of the weight from step ``at`` on."""
    second = numbered(100, 140), lambda step: 1.0 if step < at else 9.0
    return cedar.mix([(numbered(0, 40), 1.0), second], stop="all").batch(8)


def test_batches_of_later_data_epochs_are_read_ahead_by_the_same_schedule() -> None:
    loader = switching(9).loader(steps=20, executor="inline")
    ahead = [loader.read(step)["x"].tolist() for step in (12, 3, 19)]
    got = [batch["x"].tolist() for batch in loader]
    assert ahead == [got[12], got[3], got[19]]


def test_later_epochs_of_steps_and_schedules_are_those_of_a_whole_run() -> None:
    loader = switching(25).loader(steps=7, executor="inline")
    run = [[batch["x"].tolist() for batch in loader] for _ in range(6)]
    for epoch, batches in enumerate(run):
        assert [
            batch["x"].tolist() for batch in switching(25).loader(steps=7, epoch=epoch, executor="inline")
        ] == batches


def test_asking_for_units_and_other_ranks_changes_nothing() -> None:
    loader = switching(9).loader(steps=8, executor="inline")
    list(loader)
    loader.units()
    first = next_batches(iter(loader), 6)
    assert next_batches(iter(loader), 6) == first
    two = cedar.mix([(numbered(0, 40), 1.0), (numbered(100, 140), lambda step: 1.0)]).batch(2, last="keep")
    ranks = [two.loader(steps=5, rank=rank, world=2, executor="inline") for rank in range(2)]
    other = ranks[0].read(0, rank=1)["x"].tolist()
    assert next_batches(iter(ranks[1]), 1) == [other]


def test_a_committed_step_stays_committed_in_later_data_epochs() -> None:
    loader = switching(9).loader(steps=20, executor="inline")
    batches = iter(loader)
    next(batches)
    loader.commit(4)
    next_batches(batches, 11)
    with pytest.raises(cedar.PipelineError, match="committed"):
        loader.read(2)


def next_batches(batches: Any, count: int) -> list[Any]:
    return [next(batches)["x"].tolist() for _ in range(count)]


def test_a_rank_that_is_lost_began_where_the_others_did(tmp_path: Path) -> None:
    p = cedar.mix([(numbered(0, 40), 1.0), (numbered(100, 140), lambda step: 1.0)]).batch(2, last="keep")
    loader = p.loader(steps=5, rank=0, world=2, agree=str(tmp_path), executor="inline")
    batches = iter(loader)
    next(batches)
    loader.reshard(0, 1)
    next(batches)


def test_two_changes_planned_for_one_step_are_both_loaded() -> None:
    inputs = {name: (numbered(10 * v, 10 * v + 8).repeat(), 1.0) for v, name in enumerate("abc")}
    p = cedar.mix(inputs).batch(4)
    old = p.loader(steps=6, executor="inline")
    old.update_mix(remove=["a"], at_step=2)
    old.update_mix(remove=["b"], at_step=2)
    batches = iter(old)
    next(batches)
    new = p.loader(steps=6, executor="inline")
    new.load_state_dict(old.state_dict())
    rest = [batch["x"].tolist() for batch in new]
    assert rest == [batch["x"].tolist() for batch in batches]
    assert min(min(batch) for batch in rest[1:]) >= 20


def test_changes_planned_since_a_state_was_saved_stay_planned() -> None:
    p = cedar.mix({"a": (numbered(0, 9).repeat(), 1.0), "b": (numbered(50, 59).repeat(), 1e-9)}).batch(4)
    old = p.loader(steps=20, executor="inline")
    next(iter(old))
    for step, comes in ((4, True), (1, False)):
        new = p.loader(steps=20, executor="inline")
        new.update_mix({"b": 1.0}, at_step=step)
        new.load_state_dict(old.state_dict())
        assert (max(x for batch in new for x in batch["x"]) > 8) == comes
