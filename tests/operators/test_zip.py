"""zip."""

import math
import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar.core.block import Block
from cedar.core.cursor import Keys
from cedar.core.errors import PipelineError
from cedar.core.stream import Flow, Piece, Rows
from cedar.operators.take import Repeat
from cedar.operators.zip import Zip, merge
from tests.toy_stream import REASON, ListStream, block_of, check, context, drain, unit_of

SEEDS = st.integers(0, 10**6)
NAMES = "xyz"


@given(
    st.lists(st.tuples(st.integers(0, 14), st.booleans(), st.sets(st.integers(0, 13))), min_size=1, max_size=3), SEEDS
)
def test_row_i_of_every_input_up_to_the_shortest(shapes, seed):
    inputs, columns = [], []
    for index, (rows, known, dead) in enumerate(shapes):
        dead = sorted(d for d in dead if d < rows)
        values = [10 * index + k for k in range(rows)]
        inputs.append(
            ListStream({NAMES[index]: values}, seed=seed + index, file=index, known=known, dead=dead, marks=[2])
        )
        columns.append([None if k in dead else v for k, v in enumerate(values)])
    units = check(Zip(), inputs, seed=seed)
    expected = [None if None in row else dict(zip(NAMES, row, strict=False)) for row in zip(*columns, strict=False)]
    assert [row for _, row in units] == expected
    assert [key for key, _ in units] == [(0, 0, 0, k, -1) for k in range(len(expected))]


@given(st.lists(st.integers(1, 4), max_size=8), st.integers(0, 3), SEEDS)
def test_batch_i_of_every_input(sizes, more, seed):
    inputs = [
        ListStream({"x": list(range(sum(sizes)))}, sizes=sizes, seed=seed),
        ListStream({"y": list(range(sum(sizes) + more))}, sizes=sizes + [1] * more, seed=seed + 1),
    ]
    units = check(Zip(), inputs, seed=seed)
    assert [len(batch) for batch in units] == sizes
    assert all(row["x"] == row["y"] for batch in units for _, row in batch)


def test_batches_of_different_length_are_an_error():
    inputs = (ListStream({"x": [1, 2]}, sizes=[2]), ListStream({"y": [1, 2]}, sizes=[1, 1]))
    stream = Zip().stream(inputs, context())
    with pytest.raises(PipelineError, match="2 rows in input 0, 1 rows in input 1") as caught:
        drain(stream.open([stream.start(), 0]), random.Random(0))
    assert caught.value.row is not None


def test_batches_that_were_resized_go_by_row_number_and_keep_what_was_skipped():
    resized = Block(
        {"x": pa.array([1, 2])}, Keys(Rows.of(block_of({"x": [0] * 4})).keys().row), {3: REASON}, aligned=False
    )
    other = block_of({"y": [5, 6, 7]}, dead=[1])
    merged = merge([Rows.of(resized), Rows.of(other)], True, None)
    assert list(merged.rows()) == [{"x": 1, "y": 5}, {"x": 2, "y": 7}]
    assert [int(merged.keys.row[slot]) for slot in sorted(merged.dead)] == [3, 1]


class _Broken(Flow):
    """Gives up after some pieces."""

    def __init__(self, inner, pieces):
        self._inner = inner
        self._left = pieces

    def pull(self, wait):
        self._left -= 1
        if self._left < 0:
            raise ValueError("broken")
        return self._inner.pull(wait)

    def close(self):
        self._inner.close()


@pytest.mark.parametrize("wait", [True, False])
def test_what_came_before_an_error_is_delivered_first(wait):
    class Breaking(ListStream):
        def open_at(self, at, lap):
            return _Broken(super().open_at(at, lap), 6)

    inputs = (Breaking({"x": list(range(40))}, late=0), ListStream({"y": list(range(40))}, late=0))
    stream = Zip().stream(inputs, context())
    flow = stream.open([stream.start(), 0])
    seen: list[Any] = []
    with pytest.raises(ValueError, match="broken"):
        while (piece := flow.pull(wait)) is not None:
            seen += unit_of(piece.rows.gather()) if isinstance(piece, Piece) else []
    assert [row["y"] for _, row in seen] == list(range(len(seen)))
    flow.close()
    assert inputs[0].open_flows == inputs[1].open_flows == 0


def test_counts():
    three, unknown = ListStream({"x": [1, 2, 3]}), ListStream({"y": [1]}, known=False)
    endless = Repeat().stream((ListStream({"z": [1]}),), context())
    assert Zip().stream((three, endless), context()).count == 3
    assert Zip().stream((endless, endless), context()).count == math.inf
    assert Zip().stream((three, unknown), context()).count is None


def test_schema_and_sample():
    assert Zip().schema({"x": pa.int64()}, {"y": pa.string()}) == {"x": pa.int64(), "y": pa.string()}
    assert Zip().schema({"x": pa.int64()}, None) is None
    assert list(Zip().sample(block_of({"x": [1, 2]}), block_of({"y": [3]})).rows()) == [{"x": 1, "y": 3}]


def test_columns_of_the_same_name_are_an_error_before_and_while_running():
    with pytest.raises(PipelineError, match=r"'x' \(inputs 0 and 1\)"):
        Zip().schema({"x": pa.int64()}, {"y": pa.int64(), "x": pa.int64()})
    inputs = (ListStream({"x": [1]}), ListStream({"x": [1]}))
    stream = Zip().stream(inputs, context())
    with pytest.raises(PipelineError, match="same name"):
        drain(stream.open([stream.start(), 0]), random.Random(0))


def test_no_input_and_mixed_units_are_errors():
    with pytest.raises(PipelineError, match="at least one input"):
        Zip().schema()
    with pytest.raises(PipelineError, match="not both"):
        Zip().batched(True, False)


def test_batches_whose_skipped_rows_were_replaced_go_by_row_number():
    def fails_on(bad):
        def fn(x):
            if x == bad:
                raise ValueError(x)
            return x

        return fn

    skip = cedar.Skip(refill=True)
    a = cedar.from_items([{"x": i} for i in range(12)]).map(fails_on(1), "x", dtype="int64", on_error=skip).batch(4)
    b = cedar.from_items([{"y": i} for i in range(12)]).map(fails_on(2), "y", dtype="int64", on_error=skip).batch(4)
    first = next(iter(cedar.zip(a, b).loader(executor="inline")))
    assert first["x"].tolist() == [0, 2, 3, 4]
    assert first["y"].tolist() == [0, 1, 3, 4]
