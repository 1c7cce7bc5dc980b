"""Methods for operators that order, cut or repeat the stream: each builds its own, at the user's line."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import Pipeline, col
from cedar.core.errors import PipelineError


def numbers(n: int = 6) -> Pipeline:
    return cedar.from_items([{"x": i, "l": [i] * (i % 3)} for i in range(n)])


def xs(p: Pipeline) -> list[Any]:
    """The numbers of rows, or those of each batch."""
    return [x.tolist() if hasattr(x := unit["x"], "tolist") else x for unit in p.loader(executor="inline")]


CUTS: dict[str, tuple[Callable[[Pipeline], Pipeline], list[Any]]] = {
    "take": (lambda p: p.take(2), [0, 1]),
    "skip": (lambda p: p.skip(4), [4, 5]),
    "repeat": (lambda p: p.take(2).repeat(2), [0, 1, 0, 1]),
    "batch": (lambda p: p.batch(4), [[0, 1, 2, 3], [4, 5]]),
    "batch drop": (lambda p: p.batch(4, last="drop"), [[0, 1, 2, 3]]),
    "batch keep": (lambda p: p.batch(4, last="keep"), [[0, 1, 2, 3], [4, 5]]),
    "batch pad": (lambda p: p.drop("l").batch(4, last="pad"), [[0, 1, 2, 3], [4, 5, 0, 0]]),
    "bucket": (lambda p: p.bucket_by_length("l", [1, 2], [2, 2, 2]), [[0, 3], [1, 4], [2, 5]]),
}


@pytest.mark.parametrize("name", CUTS)
def test_rows_are_cut_as_the_method_says(name: str) -> None:
    build, expected = CUTS[name]
    assert xs(build(numbers())) == expected


def test_a_shuffle_is_of_its_seed_and_stays_in_its_window() -> None:
    p = numbers(60)
    one, other = xs(p.shuffle(seed=1)), xs(p.shuffle(seed=2))
    assert sorted(one) == sorted(other) == list(range(60))
    assert one == xs(p.shuffle(seed=1)) != other
    assert p.shuffle(seed=3, window=7, by="x", interleave=2).node.operator.parameters() != (
        p.shuffle(seed=3, window=7, by="x", interleave=3).node.operator.parameters()
    )


def test_draws_follow_their_weights_and_packs_their_length() -> None:
    drawn = cedar.from_items([{"x": i, "w": float(i == 2)} for i in range(4)]).sample("w", n=5, seed=1)
    assert xs(drawn) == [2] * 5
    packed = cedar.from_items([{"t": [1, 2, 3]}, {"t": [4, 5]}, {"t": [6]}])
    assert [row["t"].tolist() for row in packed.pack(4, "t", fit="best")] == [[1, 2, 3, 6], [4, 5, 0, 0]]


def test_batches_are_balanced_over_ranks_and_groups_are_marked() -> None:
    p = cedar.from_items([{"x": x} for x in (9, 8, 1, 2)]).batch(2).balance("x")
    assigned = [[b["x"].tolist() for b in p.loader(rank=rank, world=2, executor="inline")] for rank in range(2)]
    assert assigned == [[[9, 1]], [[8, 2]]]
    (batch,) = cedar.from_items([{"l": [1, 2]}, {"l": [1, 2]}]).dedup([["l"]]).batch(2)
    assert batch["l"].inverse_lookup.tolist() == [0, 0]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda p: p.batch(0), lambda p: p.take(-1), lambda p: p.skip(1.5), lambda p: p.repeat(-1),
        lambda p: p.shuffle(window="wide"), lambda p: p.pack(0, "l"), lambda p: p.balance("x"),
        lambda p: p.bucket_by_length("l", [2, 1], [1, 1, 1]), lambda p: p.sample("x", n=-1),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_at_the_users_line(wrong: Callable[[Pipeline], Pipeline]) -> None:
    with pytest.raises(cedar.PipelineError) as caught:
        wrong(numbers())
    assert caught.value.site is not None
    assert caught.value.site.file == __file__


FOLDERS = pa.table({"x": range(3000), "y": [int(i >= 2700) for i in range(3000)], "w": [1.0] * 2700 + [9.0] * 300})


def drawn(p: cedar.Pipeline, **options: Any) -> list[int]:
    return [row["x"] for row in p.loader(**options)]


@pytest.mark.heavy
@pytest.mark.parametrize("n", [None, 500, 4000])
def test_samples_come_in_random_order_the_same_wherever_they_are_drawn(n: int | None, tmp_path: Any) -> None:
    """Rows of classes are in folders; copies of a row do not stand side by side, and each rank gets a mix."""
    pq.write_table(FOLDERS, tmp_path / "t.parquet", row_group_size=100)
    p = cedar.read_parquet(str(tmp_path / "t.parquet")).sample("w", n, seed=1)
    first = drawn(p, executor="inline")
    assert len(first) == (n or 3000)
    assert first == drawn(p, executor="threads", workers=3) == drawn(p, executor="processes", workers=2, plan="off")
    assert first != drawn(p, epoch=1)
    assert sum(a == b for a, b in itertools.pairwise(first)) <= len(first) / 100
    shares = [sum(x >= 2700 for x in first[at : at + 100]) for at in range(0, len(first) - 99, 100)]
    assert all(25 <= share <= 75 for share in shares), shares
    ranks = [drawn(p.batch(20, last="keep"), rank=rank, world=2) for rank in range(2)]
    got = np.concatenate([batch for rank in ranks for batch in rank]).tolist()
    assert Counter(got) == Counter(first)
    assert all(0.35 < np.mean(np.concatenate(rank) >= 2700) < 0.65 for rank in ranks)


def test_samples_go_on_in_the_middle_of_an_epoch() -> None:
    for p in (cedar.from_arrow(FOLDERS).sample("w", 400), cedar.from_arrow(FOLDERS).sample(fraction=0.1)):
        loader = p.batch(30, last="keep").loader(executor="inline")
        batches, states = [], []
        for batch in loader:
            batches.append(batch["x"].tolist())
            states.append(loader.state_dict())
        for at in (0, 4):
            other = p.batch(30, last="keep").loader(executor="threads")
            other.load_state_dict(states[at])
            assert [batch["x"].tolist() for batch in other] == batches[at + 1 :]


def test_samples_are_without_replacement_unless_they_have_weights() -> None:
    p = cedar.from_arrow(FOLDERS)
    assert sorted(drawn(p.sample())) == list(range(3000)) != drawn(p.sample())
    assert len(set(drawn(p.sample(n=1500)))) == len(set(drawn(p.sample(fraction=0.5)))) == 1500
    assert len(set(drawn(p.filter(col("x") < 900).sample(fraction=0.5)))) == 450, "of rows that nothing counted"
    assert len(set(drawn(p.sample(n=3000, replace=True)))) < 2500
    assert len(set(drawn(p.sample("w", 2000, replace=False)))) == 2000
    assert len(drawn(p.sample(fraction=1.5, replace=True))) == 4500
    with pytest.raises(PipelineError, match="cannot draw 3,001 rows without replacement from 3,000"):
        drawn(p.sample(n=3001))


@pytest.mark.parametrize("options", [{"fraction": 1.5}, {"fraction": -0.1}, {"n": 3, "fraction": 0.1}])
def test_bad_fractions_are_refused_at_the_users_line(options: Any) -> None:
    with pytest.raises(PipelineError, match="give n or fraction") as caught:
        cedar.from_arrow(FOLDERS).sample(**options)
    assert caught.value.site is not None
    assert caught.value.site.file == __file__
