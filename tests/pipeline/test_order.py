"""Methods for operators that order, cut or repeat the stream: each builds its own, at the user's line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import cedar
from cedar import Pipeline


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
    dealt = [[b["x"].tolist() for b in p.loader(rank=rank, world=2, executor="inline")] for rank in range(2)]
    assert dealt == [[[9, 1]], [[8, 2]]]
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
