"""A sub-pipeline with several consumers is read once while they keep together."""

from __future__ import annotations

import random

import numpy as np
import pytest

from cedar.core.stream import Piece
from cedar.engine.streams import shared
from cedar.engine.streams.shared import SharedStream
from tests.toy_stream import ListStream, drain


def source() -> ListStream:
    return ListStream({"x": np.arange(300)}, late=0.0)


def plain() -> list[object]:
    below = source()
    return drain(below.open([below.start(), 0]), random.Random(0))[0]


def test_consumers_of_one_place_share_a_flow_and_have_all_rows() -> None:
    below = source()
    stream = SharedStream(below)
    one, two = (stream.open([stream.start(), 0]) for _ in range(2))
    assert below.open_flows == 1
    assert drain(one, random.Random(1))[0] == drain(two, random.Random(2))[0] == plain()
    assert below.open_flows == 0


def test_who_is_left_behind_goes_on_alone_with_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "_BUFFER_PIECES", 3)
    below = source()
    stream = SharedStream(below)
    fast, slow = (stream.open([stream.start(), 0]) for _ in range(2))
    first = slow.pull(True)
    assert isinstance(first, Piece)
    assert drain(fast, random.Random(1))[0] == plain()
    rest = drain(slow, random.Random(2))[0]
    assert rest == plain()[first.units :]
    assert below.open_flows == 0
