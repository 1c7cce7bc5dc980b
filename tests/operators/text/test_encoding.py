"""Encoding: texts of any kind and length, in stretches of any size, give the ids of the library."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.operators.text import encoding, tokenize
from cedar.operators.transform import BadValues
from tests.operators.text.toy_tokenizers import NAMES, TEXTS, column, ids_of, tokenizer


@pytest.fixture(params=[7, 1 << 18], ids=["cut short", "as it is"])
def stretch(request, monkeypatch):
    """How many bytes are worked on at a time."""
    monkeypatch.setattr(encoding, "_BYTES_PER_PASS", request.param)


@pytest.mark.heavy
@pytest.mark.usefixtures("stretch")
@pytest.mark.parametrize("name", NAMES)
def test_any_text(name):
    made = tokenizer(name)

    @given(st.lists(TEXTS | st.none(), max_size=6), st.booleans())
    def run(texts, special):
        found = tokenize(made, special=special).columns(column(texts)).to_pylist()
        assert found == [None if t is None else made.encode(t, add_special_tokens=special).ids for t in texts]

    run()


def test_special_tokens_inside_a_text_are_those_tokens():
    made = tokenizer("gpt2 prefix")
    texts = ["a b", "a<|end|>b c", "<|end|>", "<|end", " <|end|> x<|end|>", "<|end|", ""]
    assert tokenize(made).columns(column(texts)).to_pylist() == ids_of(made, texts)
    assert 0 in tokenize(made)("a<|end|>b")


@pytest.mark.usefixtures("stretch")
def test_a_row_that_cannot_be_cut_fails_beyond_a_length():
    made = tokenizer("gpt2")
    texts = ["short", "x" * 2000, "many words " * 500, "<|end|> many words " * 500]
    with pytest.raises(BadValues) as caught:
        tokenize(made, longest=1000).columns(column(texts))
    assert caught.value.rows == {1: "tokenize: 2,000 bytes that cannot be cut; the limit is 1,000"}
    del texts[1]
    with pytest.raises(BadValues) as caught:
        tokenize(made, longest="1KB").columns(column(texts))
    assert caught.value.rows == {2: "tokenize: 9,500 bytes as a whole; the limit is 1,000"}
    assert tokenize(made).columns(column(texts)).to_pylist() == ids_of(made, texts)


def test_no_rows_and_empty_rows():
    transform = tokenize(tokenizer("gpt2"))
    assert transform.columns(column([])).to_pylist() == []
    assert transform.columns(column(["", "", None])).to_pylist() == [[], [], None]
    assert transform.columns(pa.array([], pa.large_string())).type == pa.large_list(pa.int32())


def test_a_function_is_not_called_for_nulls():
    known = {"a": 1, "b": 2}
    transform = tokenize(lambda text: [known[word] for word in text.split(" ")])
    assert transform.columns(column(["a b", None, "b", None, "b"])).to_pylist() == [[1, 2], None, [2], None, [2]]
    assert transform.columns(column([None])).to_pylist() == [None]
