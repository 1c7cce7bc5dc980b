"""The published hash functions: golden words, steps computed manually, and plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.operators import recsys
from cedar.operators.recsys.hashing import hash_combine, remainders, twang_mix64
from tests.operators.recsys.toy_hashes import WORD, combine, signed, twang

# Worked out manually from the definitions, step by step, for id 1 and salt 0.
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


@given(st.lists(st.tuples(st.integers(0, WORD), st.integers(0, WORD)), max_size=5))
def test_words_are_combined_as_published(pairs):
    upper, lower = (np.array([pair[i] for pair in pairs], dtype=np.uint64) for i in (0, 1))
    assert hash_combine(upper, lower).tolist() == [combine(*pair) for pair in pairs]
