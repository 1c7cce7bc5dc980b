"""Columns: the bytes that their rows take."""

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core import columns
from cedar.core.boundary import as_column

LEAVES = st.sampled_from([pa.int64(), pa.bool_(), pa.float32(), pa.large_string(), pa.large_binary()])
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(pa.large_list, inner),
        st.builds(lambda kind: pa.list_(kind, 2), inner),
        st.builds(lambda kind: pa.struct([("a", kind), ("b", pa.int8())]), inner),
    ),
    max_leaves=3,
)


def some_value(kind, i):
    if i % 7 == 3:
        return None
    if pa.types.is_large_list(kind):
        return [some_value(kind.value_type, i + k) for k in range(i % 4)]
    if pa.types.is_fixed_size_list(kind):
        return [some_value(kind.value_type, i + k) for k in range(2)]
    if pa.types.is_struct(kind):
        return {"a": some_value(kind.field("a").type, i + 1), "b": 1}
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return "x" * (i % 5) if pa.types.is_large_string(kind) else b"y" * (i % 5)
    return i % 2 == 0 if pa.types.is_boolean(kind) else i


@given(NESTED, st.integers(0, 60), st.integers(0, 60), st.integers(0, 60))
def test_the_bytes_of_a_column_are_those_of_its_rows(kind, rows, start, count):
    whole = pa.array([some_value(kind, i) for i in range(rows)], kind)
    part = whole.slice(min(start, rows), count)
    assert columns.nbytes(part) == pytest.approx(part.nbytes, abs=8 + 2 * count), "but for bits of masks"


def test_no_rows_of_polars_join_others():
    """Of an empty slice of fixed-size lists it gives an offset that lies beyond the memory."""
    array = pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int16(), 2))
    none = as_column(pl.Series("x", array.slice(3, 0)))
    assert columns.concat([none, array]).to_pylist() == array.to_pylist()
