"""Documents: rows of lists of numbers, and what is none."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from cedar.core.columns import TensorType
from cedar.core.errors import CedarError
from cedar.operators.pack import Pack
from tests.toy_stream import ListStream, block_of, check, context, drain


def test_columns_are_packed_together_and_keep_their_dtype():
    source = ListStream({"a": [[1, 2], [3]], "b": [[0.5, 1.5], [2.5]], "name": ["x", "y"]})
    ((_, first), (_, second)) = check(Pack(2), [source])
    assert (first["a"], first["b"]) == ([1, 2], [0.5, 1.5])
    assert (second["a"], second["b"]) == ([3, 0], [2.5, 0.0])
    sample = Pack(2).sample(source.block(0))
    assert sample.types["b"] == TensorType((2,), "float64")
    assert sample.types["segment_ids"] == TensorType((2,), "int32")
    assert len(sample) == 2


def test_arrays_and_fixed_size_lists_are_packed_too():
    source = ListStream({"a": np.arange(6, dtype=np.int16).reshape(3, 2)})
    assert [row["a"] for _, row in check(Pack(4), [source])] == [[0, 1, 2, 3], [4, 5, 0, 0]]
    fixed = block_of({"a": [0, 0]}).with_columns({"a": pa.array([[1, 2], [3, 4]], pa.list_(pa.int8(), 2))})
    assert Pack(3).sample(fixed).columns["a"].tolist() == [[1, 2, 3], [4, 0, 0]]


@pytest.mark.parametrize("fit", ["concat", "best"])
@pytest.mark.parametrize(
    ("columns", "packed", "text"),
    [
        ({"a": [[1], [2, 3]], "b": [[1], [2]]}, (), "2 and 1 tokens"),
        ({"a": [[1], None]}, (), "missing"),
        ({"a": [[1], [2, None]]}, (), "missing number"),
        ({"a": [[1]]}, ("b",), "no column 'b'"),
        ({"a": ["x"]}, ("a",), "lists of numbers"),
        ({"a": ["x"]}, (), "no column is a list of numbers"),
        ({"positions": [[1]]}, (), "pack adds"),
    ],
)
def test_bad_input(fit, columns, packed, text):
    stream = Pack(4, packed, fit=fit).stream((ListStream(columns),), context())
    with pytest.raises(CedarError, match=text):
        drain(stream.open([stream.start(), 0]), random.Random(0))
