"""Transforms of each id by itself, against what they say in plain Python."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.errors import PipelineError
from cedar.operators import recsys
from tests.operators.recsys.toy_columns import IDS, check, list_columns, refused
from tests.operators.recsys.toy_hashes import sigrid


def test_ids_of_the_published_test_get_the_published_places():
    """The vector of torcharrow's own test: ids 1 to 16, salt 0, 100 places."""
    found = recsys.SigridHash(0, 100)(list(range(1, 17)))
    assert found == [60, 54, 54, 9, 4, 91, 11, 67, 79, 2, 25, 92, 98, 83, 66, 2]


@given(list_columns(IDS, pa.int64()), IDS, st.integers(1, 2**63 - 1) | st.integers(1, 5))
def test_sigrid_hash(columns, salt, most):
    check(recsys.SigridHash(salt, most), columns, lambda ids: [sigrid(i, salt, most) for i in ids])


def test_unsigned_and_small_ids_count_by_their_value_or_their_bits():
    small = pa.array([1, 2, 3], pa.uint8())
    large = pa.array([(1 << 64) - 1], pa.uint64())
    assert recsys.SigridHash(0, 100).columns(small).to_pylist() == [60, 54, 54]
    assert recsys.SigridHash(5, 1000).columns(large).to_pylist() == [sigrid(-1, 5, 1000)]


@given(list_columns(IDS, pa.int64()), st.integers(1, 2**63 - 1) | st.integers(1, 5))
def test_positive_modulus(columns, m):
    check(recsys.PositiveModulus(m), columns, lambda ids: [((i % m) + m) % m for i in ids])


def test_a_remainder_that_the_type_cannot_hold_is_refused():
    column = pa.array([5, -3], pa.int8())
    assert refused(recsys.PositiveModulus(1000), [column]) == {1: "PositiveModulus(1000) of -3 does not fit into int8"}
    assert recsys.PositiveModulus(1000).columns(column.slice(0, 1)).to_pylist() == [5]


@given(list_columns(st.integers(0, 9), pa.int32()), st.dictionaries(st.integers(0, 9), IDS, max_size=5), IDS)
def test_map_id(columns, table, default):
    if table:
        check(recsys.MapId(table, default), columns, lambda ids: [table.get(i, default) for i in ids])


def test_map_id_of_strings_and_of_ids_that_no_int64_holds():
    names = pa.array([["a", "x"], None, []], pa.large_list(pa.large_string()))
    assert recsys.MapId({"a": 5}, default=0).columns(names).to_pylist() == [[5, 0], None, []]
    large = pa.array([2**64 - 1, 3], pa.uint64())
    assert recsys.MapId({2**64 - 1: 1, 3: 2}).columns(large).to_pylist() == [1, 2]
    assert recsys.MapId({-1: 1, 3: 2}, default=9).columns(large).to_pylist() == [9, 2]
    wanted = {0: "MapId: 'x' is not in the table"}
    assert refused(recsys.MapId({"a": 5}), [names]) == wanted


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: recsys.SigridHash(0, 0), "max_value=0"),
        (lambda: recsys.SigridHash(0, True), "max_value=True"),
        (lambda: recsys.SigridHash(1 << 64, 5), "salt="),
        (lambda: recsys.SigridHash(0, 5)("a"), "takes integers"),
        (lambda: recsys.SigridHash(0, 5)("a"), "with_columns(x=col('x').hash())"),
        (lambda: recsys.PositiveModulus(5)("a"), "with_columns(x=col('x').hash())"),
        (lambda: recsys.PositiveModulus(0), "m=0"),
        (lambda: recsys.MapId({1.5: 2}), "keys of type double"),
        (lambda: recsys.MapId(dict.fromkeys([1])), "the table has a null key or value"),
        (lambda: recsys.MapId({7: 0, None: 5}), "give null= for nulls"),
        (lambda: recsys.MapId({"a": 1}).result(pa.int64()), "takes large_string"),
    ],
)
def test_parameters_and_columns_that_do_not_fit(make, message):
    with pytest.raises(PipelineError) as raised:
        make()
    assert message in str(raised.value)
