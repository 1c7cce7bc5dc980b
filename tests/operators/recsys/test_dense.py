"""Transforms of dense features, each number by itself, against what they say in plain Python."""

from __future__ import annotations

import bisect
import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.columns import TensorType
from cedar.core.errors import PipelineError
from cedar.operators import recsys
from tests.operators.recsys.toy_columns import FLOATS, check, list_columns, refused


def bucket(borders, value):
    if math.isnan(value):
        return len(borders)
    index = bisect.bisect_left(borders, value)
    return index + 1 if index + 1 < len(borders) and value >= borders[index + 1] else index


BORDERS = (
    st.lists(st.integers(-4, 4), min_size=1, max_size=6).map(sorted).filter(lambda b: all(b.count(x) <= 2 for x in b))
)


@given(list_columns(FLOATS | st.integers(-5, 5).map(float), pa.float64()), BORDERS)
def test_bucketize(columns, borders):
    check(recsys.Bucketize(tuple(borders)), columns, lambda values: [bucket(borders, v) for v in values])


NEAR = [
    -math.inf,
    -(2**70),
    -(2**63),
    -1.5,
    0.5,
    1,
    2**53,
    float(2**53),
    2**53 + 1,
    2**63 - 1,
    2.0**63,
    2**64 - 1,
    2**70,
]


@given(st.lists(st.sampled_from(NEAR), min_size=1, max_size=6), st.sampled_from([pa.int8(), pa.int64(), pa.uint64()]))
def test_bucketize_whole_numbers(borders, kind):
    """Which floats do not hold all of."""
    borders = sorted(border for border in borders if borders.count(border) <= 2) or [0]
    limits = np.iinfo(kind.to_pandas_dtype())
    near = {math.floor(border) + d for border in NEAR[1:] for d in (-1, 0, 1)} | {limits.min, limits.max}
    values = [value for value in sorted(near) if limits.min <= value <= limits.max]
    made = recsys.Bucketize(tuple(borders)).columns(pa.array(values, kind)).to_pylist()
    assert made == [bucket(borders, value) for value in values]


@given(list_columns(FLOATS, pa.float32()), st.floats(-5, 5, width=32), st.floats(0, 5, width=32))
def test_clamp(columns, low, width):
    high = float(np.float32(low + width))
    check(recsys.Clamp(low, high), columns, lambda values: [v if v != v else min(max(v, low), high) for v in values])


@given(list_columns(st.floats(1e-3, 1e3), pa.float64()), st.sampled_from([0.0, 0.5, 1.0, 2.0, -1.0, 1e-7]))
def test_box_cox(columns, lam):
    def plain(x):
        return math.log(x) if lam == 0 else math.expm1(lam * math.log(x)) / lam

    check(recsys.BoxCox(lam), columns, lambda values: [plain(x) for x in values])


@given(list_columns(st.floats(0, 1), pa.float64()), st.sampled_from([1e-6, 0.01, 0.5]))
def test_logit(columns, eps):
    def plain(p):
        p = min(max(p, eps), 1 - eps)
        return math.log(p / (1 - p))

    check(recsys.Logit(eps), columns, lambda values: [plain(p) for p in values])


def test_onehot():
    vectors = recsys.Onehot((0.0, 1.0, 1.0), "int8")
    values = pa.array([-1.0, 0.0, 0.5, 1.0, 2.0, float("nan")])
    assert vectors.columns(values).argmax(axis=1).tolist() == [0, 0, 1, 2, 3, 3]
    assert vectors.columns(values).sum(axis=1).tolist() == [1] * 6
    assert vectors.result(pa.float64()) == TensorType((4,), "int8")
    assert refused(vectors, [pa.array([1.0, None])]) == {1: "Onehot does not support nulls"}


def test_infinite_limits_hold_everywhere():
    values = pa.array(np.array([-65504.0, 1.0, math.inf], np.float16))
    assert recsys.Clamp(-math.inf, math.inf).result(pa.float16()) == pa.float16()
    assert recsys.Clamp(0, math.inf).columns(values).to_pylist() == [0.0, 1.0, math.inf]


def test_floats_keep_their_width():
    for kind in (pa.float16(), pa.float32(), pa.float64()):
        column = pa.array(np.array([0.25], dtype=kind.to_pandas_dtype()))
        for transform in (recsys.BoxCox(1.0), recsys.Logit(), recsys.Clamp(0, 1)):
            assert transform.columns(column).type == transform.result(kind) == kind
    assert recsys.BoxCox(2.0).columns(pa.array([3])).to_pylist() == [4.0]


def test_values_without_a_result_name_their_rows():
    assert refused(recsys.BoxCox(1.0), [pa.array([[1.0], [2.0, 0.0, -1.0], None], pa.large_list(pa.float64()))]) == {
        1: "BoxCox of 0.0"
    }
    assert refused(recsys.Logit(eps=0), [pa.array([0.5, 1.5, None, float("nan")])]) == {1: "Logit of 1.5"}
    assert recsys.Logit(eps=0).columns(pa.array([0.0, 1.0])).to_pylist() == [-math.inf, math.inf]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: recsys.Bucketize(()), "are not numbers"),
        (lambda: recsys.Bucketize((1.0, float("nan"))), "are not numbers"),
        (lambda: recsys.Bucketize((10**400,)), "are not numbers"),
        (lambda: recsys.Bucketize((2, 1)), "descend from 2 to 1"),
        (lambda: recsys.Bucketize((1, 1, 1)), "more than twice"),
        (lambda: recsys.Onehot((1,), "str"), "is not a numeric dtype"),
        (lambda: recsys.Onehot((1,), "flaot32"), "is not a numeric dtype"),
        (lambda: recsys.Onehot((1,))([1.0]), "takes a column of numbers"),
        (lambda: recsys.Clamp(2, 1), "low is above high"),
        (lambda: recsys.Clamp(0, 300).result(pa.int8()), "does not hold 300"),
        (lambda: recsys.Clamp(0.5, 1).result(pa.int64()), "does not hold 0.5"),
        (lambda: recsys.Clamp(-1e6, 1e6).result(pa.float16()), "does not hold -1000000.0"),
        (lambda: recsys.Clamp(0, 1e39).result(pa.large_list(pa.float32())), "does not hold 1e+39"),
        (lambda: recsys.BoxCox(float("inf")), "a finite number"),
        (lambda: recsys.BoxCox(10**400), "a finite number"),
        (lambda: recsys.Logit(0.7), "between 0 and 0.5"),
    ],
)
def test_parameters_and_columns_that_do_not_fit(make, message):
    assert recsys.Bucketize(np.arange(3))(1.5) == recsys.Bucketize((0, 1, 2))(1.5)
    with pytest.raises(PipelineError) as raised:
        make()
    assert message in str(raised.value)
