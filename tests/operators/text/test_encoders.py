"""Encoders: the tokenizers of libraries, and functions and classes of users."""

from __future__ import annotations

import pickle
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.errors import PipelineError
from cedar.operators.text import tokenize
from cedar.operators.transform import BadValues
from tests.operators.text.toy_tokenizers import CORPUS, TEXTS, column, gpt2_ranks, tokenizer, tokenizers


def test_a_tokenizer_that_draws_is_refused():
    made = tokenizers.Tokenizer.from_str(tokenizer("gpt2").to_str())
    made.model.dropout = 0.1
    with pytest.raises(PipelineError, match="drops merges at random"):
        tokenize(made)


def test_words_that_a_tokenizer_does_not_have_are_named_by_row():
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"to": 0, "be": 1}, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transform = tokenize(made)
    assert transform.how.startswith("word by word")
    with pytest.raises(BadValues) as caught:
        transform.columns(column(["to be", "or", "be", "be not"]))
    assert sorted(caught.value.rows) == [1, 3]
    assert "the tokenizer raised" in caught.value.rows[1]
    assert transform.columns(column(["to be", "be"])).to_pylist() == [[0, 1], [1]]


def test_a_function_of_a_text():
    transform = tokenize(lambda text: [len(word) for word in text.split()])
    assert transform.how == "text by text: cedar cannot tell how a function splits text"
    assert transform.columns(column(["a bb", None, "", "a bb"])).to_pylist() == [[1, 2], None, [], [1, 2]]


def test_a_function_of_many_texts():
    seen = []

    def ids(texts):
        seen.append(list(texts))
        return [np.arange(len(text)) for text in texts]

    assert tokenize(ids, batched=True).columns(column(["ab", "c", "ab"])).to_pylist() == [[0, 1], [0], [0, 1]]
    assert seen == [["ab", "c"]]  # equal texts once


class Counted:
    made = 0

    def __init__(self, more=0):
        type(self).made += 1
        self.more = more

    def __call__(self, text):
        return [len(text) + self.more]


@pytest.mark.parametrize(("given", "ids"), [(Counted, [[1], [2]]), (partial(Counted, more=3), [[4], [5]])])
def test_a_class_is_made_once(given, ids):
    Counted.made = 0
    transform = tokenize(given)
    assert [transform(text) for text in ("a", "bb")] == ids
    assert Counted.made == 1


def fails(text):
    if "!" in text:
        raise KeyError(text)
    return {"large": [2**40], "word": "no", "half": [1.5], "none": None}.get(text, [1])


@pytest.mark.parametrize("batched", [False, True])
def test_a_function_that_fails_names_the_rows(batched):
    fn = (lambda texts: [fails(t) for t in texts]) if batched else fails
    with pytest.raises(BadValues) as caught:
        tokenize(fn, batched=batched).columns(column(["a", "!", "b", "!", "x!"]))
    assert caught.value.rows == {
        1: "the tokenizer raised KeyError: '!'",
        3: "the tokenizer raised KeyError: '!'",
        4: "the tokenizer raised KeyError: 'x!'",
    }
    with pytest.raises(BadValues) as caught:
        tokenize(fn, batched=batched).columns(column(["a", "large", "word", "half", "none"]))
    assert sorted(caught.value.rows) == [1, 2, 3, 4]
    assert all("is not a list of ids" in why for why in caught.value.rows.values())


def test_a_function_that_gives_too_few_lists():
    with pytest.raises(BadValues, match="returned 1 lists for 2 strings"):
        tokenize(lambda texts: [[1]], batched=True).columns(column(["a", "b"]))


@pytest.mark.parametrize(
    ("pattern", "how"),
    [
        (r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s""", "word by word"),
        (r"\S+|\s+", "text by text: its regular expression"),
    ],
)
def test_tiktoken(pattern, how):
    tiktoken = pytest.importorskip("tiktoken")
    made = tiktoken.Encoding("toy", pat_str=pattern, mergeable_ranks=gpt2_ranks(), special_tokens={"<|end|>": 700})
    transform = tokenize(made)
    assert transform.how.startswith(how)
    assert transform.tokenizer.token_to_id("<|end|>") == 700
    assert pickle.loads(pickle.dumps(transform)) == transform

    @given(st.lists(TEXTS, max_size=6))
    def run(texts):
        texts = [*CORPUS, "a<|end|>b", "", "trailing  ", *texts]
        assert transform.columns(column(texts)).to_pylist() == [made.encode_ordinary(t) for t in texts]

    run()


def test_a_fast_tokenizer_of_transformers():
    transformers = pytest.importorskip("transformers")
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer("bert"), unk_token="[UNK]")
    assert tokenize(made).columns(column(CORPUS)).to_pylist() == made(CORPUS)["input_ids"]


def test_the_truncation_of_the_last_call_of_transformers_is_not_kept():
    transformers = pytest.importorskip("transformers")
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer("bert"), unk_token="[UNK]")
    made(CORPUS[0], truncation=True, max_length=3)
    assert tokenize(made).columns(column(CORPUS)).to_pylist() == made(CORPUS)["input_ids"]


def test_the_truncation_of_a_tokenizer_is_kept():
    made = tokenizers.Tokenizer.from_str(tokenizer("bert").to_str())
    made.enable_truncation(3)
    found = tokenize(made).columns(column(CORPUS)).to_pylist()
    assert found == [made.encode(text).ids for text in CORPUS]
    assert max(map(len, found)) == 3
