"""batch."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar.core.errors import PipelineError
from cedar.operators.base import Env
from cedar.operators.batch import Batch, PadBatch
from tests.toy_blocks import block, values
from tests.toy_stream import ListStream, block_of, check


@given(
    st.integers(0, 14),
    st.integers(1, 5),
    st.sampled_from(["drop", "keep"]),
    st.sets(st.integers(0, 13), max_size=3),
    st.booleans(),
    st.integers(0, 10**6),
)
def test_batches_are_cut_on_row_numbers_and_keep_what_was_skipped(rows, size, last, dead, known, seed):
    dead = sorted(d for d in dead if d < rows)
    source = ListStream({"x": list(range(rows))}, seed=seed, dead=dead, known=known, marks=[3])
    batches = check(Batch(size, last), [source], seed=seed)
    cuts = [range(start, min(start + size, rows)) for start in range(0, rows, size)]
    kept = [cut for cut in cuts if last == "keep" or len(cut) == size]
    assert [[key[3] for key, _ in batch] for batch in batches] == [list(cut) for cut in kept]
    assert [[row and row["x"] for _, row in batch] for batch in batches] == [
        [None if x in dead else x for x in cut] for cut in kept
    ]


def test_a_short_batch_is_filled_up_and_says_which_rows_are_real():
    given_block = block(x=[5, 6, 7], s=["a", "b", "c"])
    padded = PadBatch(5, given_block.types)(given_block, Env())
    assert values(padded, "valid") == [True, True, True, False, False]
    assert values(padded, "x")[:3] == [5, 6, 7]
    assert (len(padded), padded.types["s"], padded.aligned) == (5, pa.large_string(), False)
    assert Batch(5, "pad").schema({"x": pa.int64()}) == {"x": pa.int64(), "valid": pa.bool_()}


def test_what_is_no_batch_is_refused():
    for size in (0, -1, True, 2.5, "2"):
        with pytest.raises(PipelineError, match="must be an integer, at least 1"):
            Batch(size)
    with pytest.raises(PipelineError, match="last='short'"):
        Batch(2, "short")
    with pytest.raises(PipelineError, match="the pipeline is already batched"):
        Batch(2).batched(True)
    assert Batch(2).sample(block_of({"x": [1]})).types == {"x": pa.int64()}


def test_padding_does_not_write_over_a_column_valid():
    rows = cedar.from_items([{"x": 1, "valid": False}] * 3)
    with pytest.raises(PipelineError, match='"valid", but the input already has one'):
        next(iter(rows.batch(2, last="pad")))
