"""Columns of lists and of single values: what all transforms make of them, and of nulls in and around lists."""

from __future__ import annotations

import pyarrow as pa
import pytest

import cedar
from cedar.operators import recsys
from tests.operators.recsys.toy_columns import refused


@pytest.mark.parametrize(
    "transform",
    [recsys.NGram(1), recsys.IdListTransform("union"), recsys.Cartesian(), recsys.ComputeScore("max_count")],
    ids=lambda t: type(t).__name__,
)
def test_nulls_inside_lists_of_ids_are_refused(transform):
    column = pa.array([[1], [2, None], None], pa.large_list(pa.int64()))
    columns = [column] * (transform.arity or 1)
    assert list(refused(transform, columns)) == [1]
    assert "null" in refused(transform, columns)[1]


def test_a_call_with_values_that_have_no_result():
    with pytest.raises(ValueError, match="more than 1"):
        recsys.Cartesian(most=1)([1, 2], [1])
    assert recsys.Onehot((0.0,))(5.0).tolist() == [0.0, 1.0]
    assert cedar.from_items([{"x": 1}]).map(recsys.Clamp(2, 3), "x").schema == {"x": pa.int64()}


@pytest.mark.parametrize(
    ("transform", "values", "expected"),
    [
        (recsys.SigridHash(0, 100), [1, None, 3], [60, None, 54]),
        (recsys.PositiveModulus(3), [-1, None], [2, None]),
        (recsys.Bucketize((1.0,)), [0.5, None, 2.0], [0, None, 1]),
        (recsys.Clamp(0, 1), [-5, None, 5], [0, None, 1]),
        (recsys.BoxCox(0.0), [1.0, None], [0.0, None]),
        (recsys.Logit(), [0.5, None], [0.0, None]),
        (recsys.MapId({1: 2}), [1, None], [2, None]),
    ],
)
def test_columns_of_numbers_and_nulls_within_lists(transform, values, expected):
    assert transform.columns(pa.array(values)).to_pylist() == expected
    assert transform.columns(pa.array([values, []], pa.large_list(pa.array(values).type))).to_pylist() == [expected, []]
