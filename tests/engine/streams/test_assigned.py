"""Each rank's share of a stream: all units of an epoch once, whatever is known of them, from any place on."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from cedar.engine.streams.assigned import AssignedStream, Share
from tests.toy_stream import ListStream, drain

ROWS = 23


def source(known: bool, seed: int = 0) -> ListStream:
    return ListStream({"x": np.arange(ROWS)}, known=known, seed=seed)


def numbers(units: list[Any]) -> list[int]:
    return [key[3] for key, _ in units]


def assigned(known: bool, world: int, **share: Any) -> list[list[int]]:
    parts = []
    for rank in range(world):
        stream = AssignedStream(source(known), Share(rank, world, **share))
        units, _, _ = drain(stream.open([stream.start(), 0]), random.Random(rank))
        assert stream.count in (None, len(units))
        parts.append(numbers(units))
    return parts


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("world", [1, 2, 5])
def test_each_unit_goes_to_one_rank(known: bool, world: int) -> None:
    parts = assigned(known, world)
    assert sorted(number for part in parts for number in part) == list(range(ROWS))
    if not known:
        assert parts == [list(range(ROWS))[rank::world] for rank in range(world)]  # in turns


@pytest.mark.parametrize("known", [True, False])
def test_ranks_end_together_where_what_is_left_over_is_dropped(known: bool) -> None:
    parts = assigned(known, 5, last="drop")
    assert [len(part) for part in parts] == [ROWS // 5] * 5


@pytest.mark.parametrize("known", [True, False])
def test_what_an_earlier_world_took_is_not_dealt_again(known: bool) -> None:
    before = assigned(known, 2)
    rest = assigned(known, 3, history=([2, 1, [4, 7]],))
    assert sorted(number for part in rest for number in part) == sorted([*before[0][4:], *before[1][7:]])


@pytest.mark.parametrize("known", [True, False])
def test_a_share_goes_on_from_any_place(known: bool) -> None:
    stream = AssignedStream(source(known, seed=3), Share(1, 2))
    units, positions, _ = drain(stream.open([stream.start(), 0]), random.Random(0))
    for taken, position in enumerate(positions):
        rest, _, _ = drain(stream.open(position), random.Random(taken))
        assert numbers(rest) == numbers(units)[taken:]
