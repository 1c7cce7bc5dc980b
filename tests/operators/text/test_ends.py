"""truncate and special_tokens."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.errors import PipelineError
from cedar.operators.algebra import algebra_of
from cedar.operators.text import byte_level, special_tokens, truncate
from tests.operators.text.toy_tokenizers import tokenizer

LISTS = st.lists(st.none() | st.lists(st.integers(0, 99), max_size=6), max_size=6)


def lists(values, kind=pa.int32()):  # noqa: B008 - a type, which nothing changes
    return pa.array([[7, 7], *values], pa.large_list(kind)).slice(1)


@given(LISTS, st.integers(0, 7), st.booleans())
def test_truncate(values, length, last):
    found = truncate(length, keep="last" if last else "first").columns(lists(values))
    cut = [None if v is None else v[max(0, len(v) - length) :] if last else v[:length] for v in values]
    assert found.to_pylist() == cut
    assert found.type == pa.large_list(pa.int32())


def test_truncate_takes_lists_of_anything_and_commutes_with_what_is_per_value():
    assert truncate(1)(["a", "b"]) == ["a"]
    assert truncate(2)([None, 1, 2]) == [None, 1]
    assert algebra_of(truncate(3)) == "length"


@given(LISTS, st.lists(st.integers(0, 99), max_size=3), st.lists(st.integers(0, 99), max_size=3))
def test_special_tokens(values, begin, end):
    found = special_tokens(begin, end).columns(lists(values))
    assert found.to_pylist() == [None if v is None else begin + v + end for v in values]
    assert found.type == pa.large_list(pa.int32())


def test_names_are_the_tokenizers():
    assert special_tokens(end="<eos>", tokenizer=byte_level())([1]) == [1, 258]
    bert = special_tokens("[CLS]", ["[SEP]", 9], tokenizer("bert"))
    assert bert([5]) == [1, 5, 2, 9]
    assert bert == special_tokens(1, (2, 9))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: special_tokens("<eos>"),
        lambda: special_tokens("<none>", tokenizer=byte_level()),
        lambda: special_tokens(1.5),
        lambda: special_tokens(True),
        lambda: truncate(-1),
        lambda: truncate(3, keep="middle"),
        lambda: truncate(3).result(pa.int64()),
        lambda: special_tokens(300).result(pa.large_list(pa.uint8())),
        lambda: special_tokens(300).columns(pa.array([[1]], pa.large_list(pa.int8()))),
        lambda: special_tokens(3).result(pa.large_list(pa.float32())),
    ],
)
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(PipelineError):
        wrong()
