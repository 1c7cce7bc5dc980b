"""Frequent rows: counted as plain code counts them, and in memory where that is worth most."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cedar.nn import frequencies
from cedar.trainers.dlrm.hot import Frequency, filled, in_memory
from tests.trainers.dlrm.test_embeddings import FEATURES, batch
from tests.trainers.dlrm.toy_frequencies import counted


@given(st.lists(st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=2, max_size=2), min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_rows_are_counted(steps):
    found = Frequency.of([[torch.tensor(ids, dtype=torch.int64) for ids in step] for step in steps])
    lookups = Counter(row for step in steps for ids in step for row in ids)
    asking = Counter(row for step in steps for ids in step for row in set(ids))
    held = Counter(row for step in steps for row in {row for ids in step for row in ids})
    expected = sorted(lookups, key=lambda row: (-held[row], -lookups[row], row))
    assert found.ids.tolist() == expected
    for values, count in ((found.lookups, lookups), (found.asking, asking)):
        assert torch.allclose(values, torch.tensor([count[row] / len(steps) for row in expected]).double())
    assert sorted(found.hottest(8, 10).tolist()[: len(expected)]) == sorted(expected[:8])
    assert len(set(found.hottest(10, 10).tolist())) == 10
    assert found.touched.tolist() == sorted(found.touched.tolist(), reverse=True)


def test_what_another_step_touches_is_told_by_leaving_one_out():
    steps = [{0, 1, 2, 3}, {0, 1, 4}, {0, 2, 5, 6}]
    found = Frequency.of([[torch.tensor(sorted(step))] for step in steps])
    seen, there = Counter(), Counter()
    for at, step in enumerate(steps):
        held = Counter(row for other in steps[:at] + steps[at + 1 :] for row in other)
        for row, count in held.items():
            seen[count] += 1
            there[count] += row in step
    chance = {0: 0.0} | {count: there[count] / seen[count] for count in seen}
    by_row = dict(zip(found.ids.tolist(), found.touched.tolist(), strict=True))
    once, twice = chance[1] * 2 / 3, chance[1] * 2 / 3 + chance[2] / 3  # of three batches, of which others have two
    assert by_row == pytest.approx({0: chance[2], 1: twice, 2: twice, **dict.fromkeys((3, 4, 5, 6), once)})
    assert found.unseen == 4 / 3  # rows of a step that no other has
    assert found.cold(3, 11) == pytest.approx(4 * once + 4 / 3)
    assert found.cold(9, 11) == pytest.approx(4 / 3 * 2 / 4)
    assert found.where(found.ids > 2, 3, 0.5).cold(0, 4) == pytest.approx(4 * once + 2 / 3)


def test_what_a_skewed_table_touches_is_foreseen():
    draw = np.random.default_rng(0)
    order = draw.permutation(20_000)
    steps = [[torch.from_numpy(order[draw.zipf(1.2, 4000) % 20_000])] for _ in range(12)]
    found = Frequency.of(steps[:4])
    for count in (0, 500, 2000, 8000):
        far = torch.ones(20_000, dtype=torch.bool)
        far[found.hottest(count, 20_000)] = False
        touched = np.mean([int(far[torch.unique(ids)].sum()) for (ids,) in steps[4:]])
        assert found.cold(count, 20_000) == pytest.approx(touched, rel=0.15)


def test_features_of_a_table_are_counted_together_on_each_rank():
    found = frequencies([batch(0)], FEATURES, ranks=2)
    plain = [batch(0, rank, 2) for rank in range(2)]
    ids = [torch.cat([one["item"], one["hist"]["hist"].values]) for one in plain]
    expected = Frequency.of([ids])
    assert torch.equal(found["item"].ids, expected.ids)
    assert torch.equal(found["item"].lookups, expected.lookups)


@given(st.lists(st.lists(st.integers(0, 5), max_size=5), min_size=1, max_size=3), st.integers(0, 30))
@settings(max_examples=40, deadline=None)
def test_no_other_rows_in_memory_are_worth_more_but_for_one(lookups, room):
    names = "abc"[: len(lookups)]
    worth = {n: torch.tensor(sorted(each, reverse=True)).double() for n, each in zip(names, lookups, strict=True)}
    sizes = {"a": 2, "b": 3, "c": 5}
    found = filled(worth, sizes, room)
    gain = lambda counts: sum(float(worth[n][: counts[n]].sum()) * sizes[n] for n in names)
    fits = lambda counts: sum(counts[n] * sizes[n] for n in names) <= room
    ways = itertools.product(*(range(len(worth[n]) + 1) for n in names))
    best = max(gain(c) for c in (dict(zip(names, way, strict=True)) for way in ways) if fits(c))
    next_one = max([float(worth[n][found[n]]) * sizes[n] for n in names if found[n] < len(worth[n])], default=0.0)
    assert fits(found)
    assert gain(found) >= best - next_one


def test_memory_that_is_left_goes_to_rows_that_no_batch_held():
    found = in_memory({"a": counted([1, 0, 2, 0]), "b": counted([0, 1])}, {"a": 4, "b": 2}, {"a": 4, "b": 4}, 17)
    assert found["a"].tolist() == [2, 0, 1]
    assert found["b"].tolist() == [1]
