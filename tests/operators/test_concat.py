"""concat, and the agreement of inputs' columns."""

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar.core.columns import UNKNOWN
from cedar.core.errors import PipelineError
from cedar.operators.concat import Concat, merged_schema, same_units
from cedar.operators.take import Repeat
from tests.toy_stream import ListStream, check, context, drain, values

SEEDS = st.integers(0, 10**6)


@given(st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=1, max_size=4), SEEDS)
def test_inputs_follow_one_another_with_keys_of_their_own(shapes, seed):
    inputs = [
        ListStream({"x": [100 * i + k for k in range(rows)]}, seed=seed + i, known=known, dead=[0] if rows > 3 else [])
        for i, (rows, known) in enumerate(shapes)
    ]
    units = check(Concat(), inputs, seed=seed)
    assert [key[3] for key, _ in units] == [k for rows, _ in shapes for k in range(rows)]
    assert [x for x in values(units) if x is not None] == [
        100 * i + k for i, (rows, _) in enumerate(shapes) for k in range(rows) if not (k == 0 and rows > 3)
    ]
    assert len({key for key, _ in units}) == len(units)


@given(st.lists(st.lists(st.integers(1, 3), max_size=4), min_size=1, max_size=3), SEEDS)
def test_batches_follow_one_another(shapes, seed):
    inputs = [ListStream({"x": list(range(sum(s)))}, sizes=s, seed=seed) for s in shapes]
    assert [len(batch) for batch in check(Concat(), inputs, seed=seed)] == [n for s in shapes for n in s]


def test_columns_come_in_the_order_of_the_first_input():
    inputs = [ListStream({"x": [1], "y": [2.0]}), ListStream({"y": [4.0], "x": [3]})]
    assert [list(row or ()) for _, row in check(Concat(), inputs)] == [["x", "y"]] * 2


def test_an_endless_input_is_never_left():
    endless = Repeat().stream((ListStream({"x": [1, 2]}),), context())
    stream = Concat().stream((endless, ListStream({"x": [3]}, known=False)), context({"x": pa.int64()}))
    units, _, _ = drain(stream.open(stream.seek(5)), random.Random(0), limit=4)
    assert values(units)[:4] == [2, 1, 2, 1]


def test_schemas_agree_in_any_order_and_unknown_types_pass():
    first, second = {"x": pa.int64(), "y": UNKNOWN}, {"y": pa.float64(), "x": pa.int64()}
    assert merged_schema("concat", [first, second]) == {"x": pa.int64(), "y": pa.float64()}
    assert list(Concat().schema(first, second)) == ["x", "y"]
    assert Concat().schema(None, first) is None


def test_differences_are_listed():
    with pytest.raises(PipelineError) as caught:
        Concat().schema({"x": pa.int64(), "y": pa.string()}, {"x": pa.float64(), "z": pa.string()})
    text = str(caught.value)
    assert "'x' is double, not int64" in text
    assert "no column 'y'" in text
    assert "'z' is extra" in text


def test_differences_that_only_a_run_can_tell_name_the_row():
    inputs = (ListStream({"x": [1]}, late=0), ListStream({"x": ["a"]}, late=0))
    stream = Concat().stream(inputs, context({"x": pa.int64()}))
    with pytest.raises(PipelineError, match="'x' is large_string, not int64") as caught:
        drain(stream.open([stream.start(), 0]), random.Random(0))
    assert caught.value.row is not None


def test_rows_and_batches_do_not_mix():
    assert same_units("concat", [True, True])
    with pytest.raises(PipelineError, match="not both"):
        Concat().batched(True, False)


def test_no_input_is_an_error():
    with pytest.raises(PipelineError, match="at least one input"):
        Concat().schema()


def test_objects_of_which_more_is_known_are_objects():
    from cedar.operators import image

    def arrays(*shapes):
        return cedar.from_items([{"image": np.zeros(shape, np.uint8)} for shape in shapes])

    planar = arrays((4, 5, 3), (6, 5, 3)).map(image.channels_first(), "image")
    other = arrays((3, 4, 5), (3, 7, 5))
    for made in (cedar.concat(planar, other), cedar.concat(other, planar)):
        assert sorted(row["image"].shape for row in made.loader()) == [(3, 4, 5), (3, 4, 5), (3, 6, 5), (3, 7, 5)]


def test_a_first_input_whose_sample_is_empty_still_gives_the_order_of_columns():
    def rows(names, value):
        return cedar.from_items([dict.fromkeys(names, value) for _ in range(20)])

    late = rows(["x", "y", "z"], 1).filter(lambda x: False, "x")
    both = cedar.mix([(late, 0.5), (rows(["x", "z", "y"], 2), 0.5)], stop="all")
    for joined in (both, cedar.concat(late, rows(["x", "z", "y"], 2))):
        hidden = joined.map_batches(lambda batch: batch)  # by now the names are known from samples alone
        assert {tuple(row) for row in cedar.concat(hidden, hidden).loader(executor="inline")} == {("x", "y", "z")}
