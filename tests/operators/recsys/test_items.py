"""Transforms of each number by itself, against what they say in plain Python."""

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
from cedar.operators.recsys.hashing import hash_combine, remainders, twang_mix64
from tests.operators.recsys.toy_columns import FLOATS, IDS, check, list_columns, refused

WORD = (1 << 64) - 1


def twang(key):
    """Thomas Wang's mix, as published, on Python's integers."""
    key &= WORD
    key = (~key + (key << 21)) & WORD
    key ^= key >> 24
    key = (key + (key << 3) + (key << 8)) & WORD
    key ^= key >> 14
    key = (key + (key << 2) + (key << 4)) & WORD
    key ^= key >> 28
    return (key + (key << 31)) & WORD


def combine(upper, lower):
    """CityHash's Hash128to64."""
    upper, lower = upper & WORD, lower & WORD
    a = ((lower ^ upper) * 0x9DDFEA08EB382D69) & WORD
    a ^= a >> 47
    b = ((upper ^ a) * 0x9DDFEA08EB382D69) & WORD
    b ^= b >> 47
    return (b * 0x9DDFEA08EB382D69) & WORD


def signed(word):
    return word - (1 << 64) if word >> 63 else word


def sigrid(value, salt, most):
    return 0 if most == 1 else signed(combine(salt, twang(value))) % most


# ---- SigridHash ------------------------------------------------------------------------------------------------------

# Worked out by hand from the definitions, step by step, for id 1 and salt 0.
MIXED = [
    (lambda k: ~k + (k << 21), 0x1FFFFE),
    (lambda k: k ^ (k >> 24), 0x1FFFFE),
    (lambda k: k * (1 + 8 + 256), 0x211FFDEE),
    (lambda k: k ^ (k >> 14), 0x211F7991),
    (lambda k: k * (1 + 4 + 16), 0x2B794F8E5),
    (lambda k: k ^ (k >> 28), 0x2B794F8CE),
    (lambda k: k * (1 + (1 << 31)), 0x5BCA7C69B794F8CE),
]
COMBINED = [
    (lambda k: (k ^ 0) * 0x9DDFEA08EB382D69, 0x7A17980D02E6427E),
    (lambda k: k ^ (k >> 47), 0x7A17980D02E6B651),
    (lambda k: (k ^ 0) * 0x9DDFEA08EB382D69, 0xE554CF34FB650439),
    (lambda k: k ^ (k >> 47), 0xE554CF34FB64CE90),
    (lambda k: k * 0x9DDFEA08EB382D69, 0x2DF7E91734280910),
]
GOLDEN = {0: "0x77cfa1eef01bca90", 1: "0x5bca7c69b794f8ce"}


def test_every_step_is_the_one_worked_out_by_hand():
    word = 1
    for step, expected in MIXED + COMBINED:
        word = step(word) & WORD
        assert word == expected
    assert int(twang_mix64(np.array([1]))[0]) == MIXED[-1][1]
    assert int(hash_combine(np.uint64(0), twang_mix64(np.array([1])))[0]) == word
    assert word % 100 == 60 == recsys.SigridHash(0, 100)(1)  # the word is positive as an int64
    assert signed(0xFFFFFFFFFFFFFFFF) % 100 == 99  # what is not counts from the other end, and is not negative


@pytest.mark.parametrize(("value", "word"), GOLDEN.items())
def test_golden_words(value, word):
    assert hex(twang(value)) == word
    assert hex(int(twang_mix64(np.array([value]))[0])) == word


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_remainders_are_those_of_python(dtype):
    kind = np.iinfo(dtype)
    ends = [kind.min, kind.min + 1, kind.max - 1, kind.max, *range(max(kind.min, -9), 9)]
    values = np.array(ends, dtype=dtype)
    for divisor in (1, 2, 7, 100, int(kind.max)):
        assert remainders(values, divisor).tolist() == [value % divisor for value in values.tolist()]
        assert remainders(values, divisor).dtype == dtype


def test_ids_of_the_published_test_get_the_published_places():
    """The vector of torcharrow's own test: ids 1 to 16, salt 0, 100 places."""
    found = recsys.SigridHash(0, 100)(list(range(1, 17)))
    assert found == [60, 54, 54, 9, 4, 91, 11, 67, 79, 2, 25, 92, 98, 83, 66, 2]


@given(list_columns(IDS, pa.int64()), IDS, st.integers(1, 2**63 - 1) | st.integers(1, 5))
def test_sigrid_hash(columns, salt, most):
    check(recsys.SigridHash(salt, most), columns, lambda ids: [sigrid(i, salt, most) for i in ids])


@given(st.lists(st.tuples(st.integers(0, WORD), st.integers(0, WORD)), max_size=5))
def test_words_are_combined_as_published(pairs):
    upper, lower = (np.array([pair[i] for pair in pairs], dtype=np.uint64) for i in (0, 1))
    assert hash_combine(upper, lower).tolist() == [combine(*pair) for pair in pairs]


def test_unsigned_and_small_ids_count_by_their_value_or_their_bits():
    small = pa.array([1, 2, 3], pa.uint8())
    large = pa.array([(1 << 64) - 1], pa.uint64())
    assert recsys.SigridHash(0, 100).columns(small).to_pylist() == [60, 54, 54]
    assert recsys.SigridHash(5, 1000).columns(large).to_pylist() == [sigrid(-1, 5, 1000)]


# ---- the others ------------------------------------------------------------------------------------------------------


@given(list_columns(IDS, pa.int64()), st.integers(1, 2**63 - 1) | st.integers(1, 5))
def test_positive_modulus(columns, m):
    check(recsys.PositiveModulus(m), columns, lambda ids: [((i % m) + m) % m for i in ids])


def test_a_remainder_that_the_type_cannot_hold_is_refused():
    column = pa.array([5, -3], pa.int8())
    assert refused(recsys.PositiveModulus(1000), [column]) == {1: "PositiveModulus(1000) of -3 does not fit into int8"}
    assert recsys.PositiveModulus(1000).columns(column.slice(0, 1)).to_pylist() == [5]


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


def test_onehot():
    vectors = recsys.Onehot((0.0, 1.0, 1.0), "int8")
    values = pa.array([-1.0, 0.0, 0.5, 1.0, 2.0, float("nan")])
    assert vectors.columns(values).argmax(axis=1).tolist() == [0, 0, 1, 2, 3, 3]
    assert vectors.columns(values).sum(axis=1).tolist() == [1] * 6
    assert vectors.result(pa.float64()) == TensorType((4,), "int8")
    assert refused(vectors, [pa.array([1.0, None])]) == {1: "Onehot of a null"}


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
        (lambda: recsys.SigridHash(0, 0), "max_value=0"),
        (lambda: recsys.SigridHash(0, True), "max_value=True"),
        (lambda: recsys.SigridHash(1 << 64, 5), "salt="),
        (lambda: recsys.SigridHash(0, 5)("a"), "takes whole numbers"),
        (lambda: recsys.PositiveModulus(0), "m=0"),
        (lambda: recsys.Bucketize(()), "are no numbers"),
        (lambda: recsys.Bucketize((1.0, float("nan"))), "are no numbers"),
        (lambda: recsys.Bucketize((2, 1)), "descend from 2 to 1"),
        (lambda: recsys.Bucketize((1, 1, 1)), "more than twice"),
        (lambda: recsys.Onehot((1,), "str"), "holds no numbers"),
        (lambda: recsys.Onehot((1,))([1.0]), "takes a column of numbers"),
        (lambda: recsys.Clamp(2, 1), "low is above high"),
        (lambda: recsys.Clamp(0, 300).result(pa.int8()), "does not hold 300"),
        (lambda: recsys.Clamp(0.5, 1).result(pa.int64()), "does not hold 0.5"),
        (lambda: recsys.BoxCox(float("inf")), "a finite number"),
        (lambda: recsys.Logit(0.7), "between 0 and 0.5"),
        (lambda: recsys.MapId({1.5: 2}), "leads from double"),
        (lambda: recsys.MapId(dict.fromkeys([1])), "leads from"),
        (lambda: recsys.MapId({"a": 1}).result(pa.int64()), "takes large_string"),
    ],
)
def test_parameters_and_columns_that_do_not_fit(make, message):
    with pytest.raises(PipelineError) as raised:
        make()
    assert message in str(raised.value)
