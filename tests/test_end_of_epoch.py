"""The end of an epoch with ``batch(last=None)``, the default: against a model in plain Python."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import cedar


def items(n: int, shuffled: bool = False) -> cedar.Pipeline:
    p = cedar.from_items([{"x": i} for i in range(n)])
    return p.shuffle(seed=3, window=7) if shuffled else p


def third(x: int) -> bool:
    return x % 3 > 0


def loader_of(p: cedar.Pipeline, rank: int, world: int, **options: Any) -> Any:
    return p.loader(**({"executor": "inline", "plan": "off", "rank": rank, "world": world} | options))


def batches(loader: cedar.Loader, most: int | None = None) -> list[list[int]]:
    return [batch["x"].tolist() for batch in islice(loader, most)]


def expected(rows: list[int], size: int, world: int, turns: bool) -> list[list[list[int]]]:
    """The batches of each step, in the order of the epoch: full steps, then one that is shared evenly."""
    full = len(rows) // size // world * world
    steps = [[rows[i * size :][:size] for i in range(full)][s * world :][:world] for s in range(full // world)]
    rest = rows[full * size :]
    each = len(rest) // world
    parts = [rest[r::world][:each] if turns else rest[r * each :][:each] for r in range(world)]
    return steps + ([parts] if each else [])


def checked(got: list[list[list[int]]], rows: list[int], size: int, world: int, turns: bool) -> None:
    """What ranks got is what the model has, whichever rank takes which of the full batches."""
    steps = expected(rows, size, world, turns)
    assert {len(each) for each in got} == {len(steps)}
    full = [batch for each in got for batch in each if len(batch) == size]
    assert sorted(full) == sorted(batch for step in steps for batch in step if len(batch) == size)
    if steps and len(steps[-1][0]) < size:
        assert [each[-1] for each in got] == steps[-1]
    delivered = [x for each in got for batch in each for x in batch]
    assert len(set(delivered)) == len(delivered) > len(rows) - world


SIZES = {"n": st.integers(0, 90), "size": st.integers(1, 9), "world": st.integers(1, 8), "shuffled": st.booleans()}


@pytest.mark.heavy
@settings(max_examples=20, deadline=None)
@given(**SIZES, filtered=st.booleans())
@example(n=15, size=4, world=4, shuffled=False, filtered=False)
@example(n=16, size=4, world=4, shuffled=False, filtered=True)
@example(n=7, size=9, world=8, shuffled=False, filtered=False)
def test_ranks_take_equal_steps_and_leave_out_fewer_rows_than_there_are_ranks(
    n: int, size: int, world: int, shuffled: bool, filtered: bool
) -> None:
    rows = items(n, shuffled)
    rows = rows.filter(third, "x") if filtered else rows.map(int, "x")
    order = [row["x"] for row in loader_of(rows, 0, 1)]
    p, got, left = rows.batch(size), [], len(order) % world
    again = loader_of(p, 0, world)
    for rank in range(world):
        with loader_of(p, rank, world) as loader:
            got.append(batches(loader))
            if not filtered:
                assert len(loader) == len(got[-1])
                assert [again.read(step, rank)["x"].tolist() for step in range(len(loader))] == got[-1]
                loader.set_epoch(0)
                assert [loader.locate(step).row.row for step in range(len(loader))] == [batch[0] for batch in got[-1]]
            told = [note for note in loader.report().notes if "left out" in note]
            assert [int(note.split()[0]) for note in told] == ([left] if left else [])
    if world == 1:
        assert got[0] == [order[i : i + size] for i in range(0, len(order), size)]
    else:
        checked(got, order, size, world, filtered)


@pytest.mark.heavy
@settings(max_examples=20, deadline=None)
@given(**SIZES, stop=st.integers(0, 12), later=st.integers(1, 8), filtered=st.booleans())
@example(n=30, size=4, world=3, stop=2, later=2, shuffled=False, filtered=False)
@example(n=15, size=4, world=4, stop=1, later=2, shuffled=True, filtered=True)
def test_other_ranks_go_on_from_any_step(
    n: int, size: int, world: int, shuffled: bool, stop: int, later: int, filtered: bool
) -> None:
    p = (items(n, shuffled).filter(third, "x") if filtered else items(n, shuffled)).batch(size)
    rows = [x for x in range(n) if not filtered or third(x)]
    states, got = [], []
    for rank in range(world):
        with loader_of(p, rank, world) as loader:
            got += [x for batch in batches(loader, stop) for x in batch]
            states.append(json.loads(json.dumps(loader.state_dict())))
            with loader_of(p, rank, world) as again:
                again.load_state_dict(states[-1])
                whole = batches(loader_of(p, rank, world))
                if stop < len(whole):
                    assert batches(again) == whole[stop:]
    if loader.epoch or stop >= len(whole):
        return
    lengths = set()
    for rank in range(later):
        with loader_of(p, rank, later) as loader:
            loader.load_state_dict(states[rank] if later == world else states)
            rest = batches(loader)
            lengths.add(len(rest))
            got += [x for batch in rest for x in batch]
    assert len(lengths) == 1
    assert len(set(got)) == len(got) > len(rows) - later


@pytest.mark.parametrize("n", [16, 21, 22, 23])
def test_slices_of_a_global_batch_have_as_many_rows_on_every_rank(n: int) -> None:
    p, got = items(n).batch(8), []
    for rank in range(4):
        with loader_of(p, rank, 4, split_batches=True) as loader:
            got.append(batches(loader))
            assert len(loader) == len(got[-1])
            assert (f"{n % 4} row(s) left out" in str(loader.report())) == (n % 4 > 0)
    assert len({tuple(map(len, each)) for each in got}) == 1
    assert len({x for each in got for batch in each for x in batch}) == n - n % 4


@pytest.mark.parametrize("options", [{"executor": "threads", "workers": 2}, {"order": "any", "executor": "threads"}])
def test_executors_and_any_order_deliver_the_same_rows(options: dict[str, Any]) -> None:
    p = items(103).map(lambda x: x + 1, "x", dtype=int).batch(8)
    got = [batches(p.loader(rank=rank, world=3, **options)) for rank in range(3)]
    assert [list(map(len, each)) for each in got] == [[8, 8, 8, 8, 2]] * 3
    if "order" not in options:
        assert got == [batches(loader_of(p, rank, 3)) for rank in range(3)]
    assert {x for each in got for batch in each for x in batch} == set(range(1, 103))


def test_steps_go_on_across_the_end_of_the_data() -> None:
    p = items(22).batch(4)
    got = [[batches(loader) for _ in range(3)] for loader in (loader_of(p, rank, 2, steps=4) for rank in range(2))]
    assert [[len(batch) for epoch in each for batch in epoch] for each in got] == [[4, 4, 3] * 4] * 2


@pytest.mark.parametrize(
    ("last", "world", "left"), [("drop", 1, "2 row(s)"), ("drop", 2, "10 row(s)"), ("keep", 2, ""), ("pad", 2, "")]
)
def test_the_report_counts_what_drop_drops(last: Any, world: int, left: str) -> None:
    for p in (items(26), items(39).filter(third, "x")):
        with loader_of(p.batch(8, last=last), 0, world) as loader:
            for _ in loader:
                pass
            assert [note.partition(" left out")[0] for note in loader.report().notes] == ([left] if left else [])


def test_units_that_are_not_plain_batches_are_left_out_as_a_whole_and_counted() -> None:
    p = items(22).batch(4).shuffle(seed=1)  # six batches
    got = []
    for rank in range(4):
        with loader_of(p, rank, 4) as loader:
            got.append(batches(loader))
            assert "2 batch(es) left out" in str(loader.report())
    assert list(map(len, got)) == [1] * 4


def test_buckets_of_all_ranks_end_together_and_leave_out_fewer_rows_than_there_are_ranks() -> None:
    p = items(50).map(lambda x: [x] * (1 + x % 4), "x", into="l", dtype=list[int]).bucket_by_length("l", [3], [6, 3])
    got = [batches(loader_of(p, rank, 3)) for rank in range(3)]
    assert len({len(each) for each in got}) == 1
    assert len({x for each in got for batch in each for x in batch}) >= 48
    assert max(len(batch) for each in got for batch in each) <= 6
    assert max(sum(x % 4 > 1 for x in batch) for each in got for batch in each) <= 3


@pytest.mark.heavy
def test_lanes_end_together_and_what_is_left_opens_the_next_epoch(tmp_path: Path) -> None:
    rows = items(8192).filter(lambda x: x % 4096 > 700, "x")
    for p in (rows.batch(64), rows.map(lambda x: [x] * (x % 5), "x", into="l").bucket_by_length("l", [3], [64, 32])):
        loaders = [loader_of(p, rank, 2, agree=str(tmp_path)) for rank in range(2)]
        with ThreadPoolExecutor(2) as ranks:
            epochs = [list(ranks.map(batches, loaders)) for _ in range(2)]
        assert all(len(first) == len(second) for first, second in epochs)
        got = [x for epoch in epochs for each in epoch for batch in each for x in batch]
        assert set(got) == {x for x in range(8192) if x % 4096 > 700}
        assert max(Counter(got).values()) == 2
        assert any("opened the next" in note for loader in loaders for note in loader.report().notes)


def test_states_from_both_sides_of_the_last_step_are_refused() -> None:
    p = items(22).batch(4)
    states = []
    for rank in range(2):
        with loader_of(p, rank, 2) as loader:
            batches(loader, 3 - rank)
            states.append(loader.state_dict())
    with pytest.raises(cedar.ResumeError, match="the last step of the epoch"):
        loader = loader_of(p, 0, 3)
        loader.load_state_dict(states)
        batches(loader)
