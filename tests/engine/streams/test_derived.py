"""A sub-pipeline with several consumers is read once while they keep together."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

import cedar
from cedar import Skip
from cedar.core.stream import At, Flow, GeneratorFlow, Piece, Stream, converted
from cedar.engine.streams import derived
from cedar.engine.streams.derived import DerivedStream, SharedStream
from cedar.operators.base import StreamOperator
from tests.engine.delivery.few_rows import in_batches, xs
from tests.engine.delivery.skipped import BAD, failing
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
    monkeypatch.setattr(derived, "_BUFFER_PIECES", 3)
    below = source()
    stream = SharedStream(below)
    fast, slow = (stream.open([stream.start(), 0]) for _ in range(2))
    first = slow.pull(True)
    assert isinstance(first, Piece)
    assert drain(fast, random.Random(1))[0] == plain()
    rest = drain(slow, random.Random(2))[0]
    assert rest == plain()[first.units :]
    assert below.open_flows == 0


# ---- slices: of every batch, each rank's part ------------------------------------------------------------------------


def test_slices_of_shuffled_batches_are_of_one_batch():
    for n in (9, 18):
        pipeline = in_batches(n, 4, "keep").shuffle()
        whole = xs(pipeline.loader())
        halves = [xs(pipeline.loader(split_batches=True, rank=rank, world=2)) for rank in range(2)]
        assert [left + right for left, right in zip(*halves, strict=True)] == whole


def test_slices_of_refilled_batches_are_even() -> None:
    p = failing(Skip(refill=True)).batch(4)
    parts = [xs(p.loader(rank=r, world=2, split_batches=True)) for r in range(2)]
    good = [x for x in range(50) if x not in BAD]
    assert [a + b for a, b in zip(*parts, strict=True)] == [good[i : i + 4] for i in range(0, 44, 4)]
    assert {len(b) for part in parts for b in part} == {2}


def test_a_batch_of_a_bucket_with_fewer_rows_than_ranks_is_left_out() -> None:
    p = cedar.from_items([{"x": i, "l": [0] * (1 + i % 2 * 9)} for i in range(47)])
    p = p.bucket_by_length("l", [5], [6, 2])  # 24 short rows, and 23 long ones
    parts = []
    for rank in range(2):
        with p.loader(rank=rank, world=2, split_batches=True, executor="inline") as loader:
            parts.append(xs(loader))
            assert "1 row(s) left out" in str(loader.report())
    for batches in parts:
        assert sorted(map(len, batches)) == [1] * 11 + [3] * 4
    assert len({x for batches in parts for batch in batches for x in batch}) == 46


# ---- groups of rows, counted from the beginning of the epoch ---------------------------------------------------------


def test_a_group_that_fails_is_skipped_as_a_whole() -> None:
    def grouped(columns: dict[str, Any]) -> dict[str, Any]:
        if 13 in columns["x"]:
            raise ValueError("13")
        return {"x": columns["x"]}

    p = cedar.from_arrow(pa.table({"x": pa.array(range(30), pa.int64())}))
    p = p.map_batches(grouped, "x", format="numpy", size=5, on_error=Skip()).batch(5, last="keep")
    loader = p.loader()
    assert xs(loader) == [list(range(i, i + 5)) if i != 10 else [] for i in range(0, 30, 5)]
    assert sum(loader.report().skipped.values()) == 5


class _Fails(StreamOperator):
    name: ClassVar[str] = "mine"

    def __init__(self, opens: bool) -> None:
        self.opens = opens

    def stream(self, inputs: tuple[Stream, ...], context: Any) -> Stream:
        return _FailingStream(inputs[0], self.opens)


class _FailingStream(DerivedStream):
    def __init__(self, source: Stream, opens: bool) -> None:
        super().__init__(source)
        self._opens = opens

    def open_at(self, at: At, lap: int) -> Flow:
        if not self._opens:
            raise ValueError("no flow")
        source = self.source.open_at(at, lap)

        def only_first(piece: Piece) -> Piece:
            if piece.rows.row[0]:
                raise ValueError("no second piece")
            return piece.slice(0, 1)

        return GeneratorFlow(converted(source.pull, only_first), source)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("opens", "what"), [(False, "no flow"), (True, "no second piece")])
def test_an_error_in_a_users_stream_names_the_operator_and_the_users_line(opens: bool, what: str, ranks: int) -> None:
    p = cedar.from_items([{"x": i} for i in range(10)]).skip(1).apply(_Fails(opens)).batch(2)
    with pytest.raises(cedar.RowError, match=f"mine failed: ValueError: {what}") as caught:
        list(p.loader(rank=ranks - 1, world=ranks))
    assert caught.value.site is not None
    assert caught.value.site.file == __file__
    assert isinstance(caught.value.__cause__, ValueError)


def test_an_error_of_an_input_of_a_users_stream_stays_its_own() -> None:
    p = cedar.from_items([{"x": i} for i in range(3)]).map(lambda x: 1 // x, "x", dtype=int).apply(_Fails(True))
    with pytest.raises(cedar.RowError, match="ZeroDivisionError"):
        list(p)


@pytest.mark.parametrize(("sizes", "fits"), [([4, 1], False), ([4, 2], True)])
def test_ranks_share_batches_of_buckets(sizes: list[int], fits: bool) -> None:
    rows = [{"x": i, "l": [0] * (1 + i % 2 * 9)} for i in range(45)]  # the last batch has 3 rows
    p = cedar.from_items(rows).bucket_by_length("l", [5], sizes)
    options: dict[str, Any] = {"world": 2, "split_batches": True, "executor": "inline"}
    if not fits:
        with pytest.raises(cedar.PipelineError, match="a batch of 1 rows cannot be cut evenly"):
            p.loader(rank=0, **options)
        return
    got = [x for rank in range(2) for batch in p.loader(rank=rank, **options) for x in batch["x"].tolist()]
    assert sorted(got) == list(range(45))
