"""bucket_by_length."""

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.columns import UNKNOWN, TensorType, objects
from cedar.core.errors import CedarError, PipelineError
from cedar.core.stream import Rows
from cedar.operators.bucket import BucketByLength, row_lengths
from tests.toy_stream import REASON, ListStream, block_of, check, context, drain

SEEDS = st.integers(0, 10**6)


def model(lengths, boundaries, sizes, wait):
    """Row numbers, batch by batch."""
    waiting: list[list[int]] = [[] for _ in sizes]
    batches: list[list[int]] = []
    for row, length in enumerate(lengths):
        for number, rows in enumerate(waiting):
            if rows and row - rows[0] >= wait:
                batches.append(rows)
                waiting[number] = []
        bucket = sum(length >= b for b in boundaries)
        waiting[bucket].append(row)
        if len(waiting[bucket]) == sizes[bucket]:
            batches.append(waiting[bucket])
            waiting[bucket] = []
    return batches + [rows for rows in waiting if rows]


@given(
    st.lists(st.integers(0, 12), max_size=40),
    st.sets(st.integers(1, 12), max_size=3),
    st.lists(st.integers(1, 5), min_size=4, max_size=4),
    st.sets(st.integers(0, 39), max_size=3),
    st.sampled_from([1, 2, 5, 9, 99]),
    SEEDS,
)
def test_batches_come_as_buckets_fill_or_have_waited(lengths, boundaries, sizes, dead, wait, seed):
    class Impatient(BucketByLength):
        max_wait = wait

    boundaries = sorted(boundaries)
    sizes = sizes[: len(boundaries) + 1]
    dead = sorted(d for d in dead if d < len(lengths))
    column = pa.array([list(range(n)) for n in lengths], pa.list_(pa.int64()))
    source = ListStream({"x": column}, seed=seed, dead=dead, marks=[4])
    units = check(Impatient("x", boundaries, sizes), [source], seed=seed, opens=12)
    counted = [-1 if i in dead else n for i, n in enumerate(lengths)]
    assert [[key[3] for key, _ in batch] for batch in units] == model(counted, boundaries, sizes, wait)


def test_a_rare_row_waits_for_64_batches_of_all_buckets_and_no_longer():
    assert BucketByLength("x", (5,), (1000, 24)).max_wait == 64 * 1024
    assert BucketByLength("x", (5,), (2, 2)).max_wait == 1 << 15
    source = ListStream({"x": [[0] * n for n in [9, *[1] * 33_000]]}, late=0, longest=5000)
    stream = BucketByLength("x", (5,), (500, 2)).stream((source,), context())
    units, _, _ = drain(stream.open([stream.start(), 0]), random.Random(0))
    assert [len(unit) for unit in units] == [*[500] * ((1 << 15) // 500), 1, 500]


def test_the_position_stays_small():
    lengths = [1, 9, *[1] * 150]
    source = ListStream({"x": [[0] * n for n in lengths]}, late=0)
    stream = BucketByLength("x", (5,), (2, 2)).stream((source,), context())
    _, positions, _ = drain(stream.open([stream.start(), 0]), random.Random(0))
    assert all(len(repr(position)) < 60 for position in positions)
    assert stream.count is None


@pytest.mark.parametrize(
    ("column", "lengths"),
    [
        (["", "é", "abc"], [0, 1, 3]),
        ([b"", b"\xff\xff"], [0, 2]),
        (np.zeros((2, 5), np.float32), [5, 5]),
        (objects([(1, 2), "abc"]), [2, 3]),
    ],
)
def test_what_has_a_length(column, lengths):
    assert row_lengths(Rows.of(block_of({"x": column})), "x", None).tolist() == lengths


def test_fixed_size_lists_and_skipped_rows():
    block = block_of({"x": [0, 0]})
    fixed = block.with_columns({"x": pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2))})
    assert row_lengths(Rows.of(fixed), "x", None).tolist() == [2, 2]
    assert row_lengths(Rows.of(fixed.kill({0: REASON})), "x", None).tolist() == [-1, 2]


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"x": [[1], None]}, "missing"),
        ({"x": objects([(1,), None])}, "missing"),
        ({"x": [1, 2]}, "no length"),
        ({"y": [[1]]}, "no column 'x'"),
    ],
)
def test_bad_input(columns, text):
    stream = BucketByLength("x", (5,), (2, 2)).stream((ListStream(columns),), context())
    with pytest.raises(CedarError, match=text):
        drain(stream.open([stream.start(), 0]), random.Random(0))


@pytest.mark.parametrize(
    ("boundaries", "sizes", "text"),
    [
        ((1, 2), (1, 1), "2 boundaries make 3 buckets"),
        ((2, 1), (1, 1, 1), "do not ascend"),
        ((0,), (1, 1), "integer"),
        ((1,), (1, 0), "integer"),
        (3, (1,), "list of integers"),
    ],
)
def test_bad_arguments(boundaries, sizes, text):
    with pytest.raises(PipelineError, match=text):
        BucketByLength("x", boundaries, sizes)


def test_schema():
    operator = BucketByLength("x", (5,), (2, 2))
    for kind in (pa.large_list(pa.int8()), UNKNOWN, TensorType((3,), "int8")):
        assert operator.schema({"x": kind}) == {"x": kind}
    with pytest.raises(PipelineError, match="no length"):
        operator.schema({"x": pa.int64()})
    with pytest.raises(PipelineError, match="no column 'x'"):
        operator.schema({"xx": pa.int64()})
    assert operator.batched(False) is True
    with pytest.raises(PipelineError, match="makes batches"):
        operator.batched(True)
