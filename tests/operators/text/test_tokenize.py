"""tokenize: the ids are those of the library, however they were come by."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

import cedar
from cedar.core.errors import PipelineError
from cedar.operators.text import tokenize
from cedar.operators.transform import BadValues
from tests.operators.text.toy_tokenizers import CORPUS, NAMES, SHAKESPEARE, column, ids_of, tokenizer, tokenizers


@pytest.mark.parametrize("name", NAMES)
def test_every_tokenizer_gives_its_ids(name):
    made = tokenizer(name)
    transform = tokenize(made)
    assert transform.how.startswith("word by word")
    texts = [*CORPUS, *SHAKESPEARE.read_text().splitlines()[:400]] if SHAKESPEARE.exists() else CORPUS
    for _ in range(2):  # words that are new, and words that are known
        found = transform.columns(column(texts))
        found.validate(full=True)
        assert found.type == pa.large_list(pa.int32()) == transform.result(pa.large_string())
        assert found.to_pylist() == ids_of(made, texts)


def test_what_a_tokenizer_puts_around_a_text_can_be_left_out():
    made = tokenizer("bert")
    assert tokenize(made)("the fox") == made.encode("the fox").ids
    assert tokenize(made, special=False)("the fox") == made.encode("the fox").ids[1:-1]
    assert tokenize(made)("") == [1, 2]


def test_a_column_of_something_else_is_refused():
    with pytest.raises(PipelineError, match="takes text, not int64"):
        tokenize(tokenizer("gpt2")).result(pa.int64())


def test_pairs_of_strings_are_refused_with_a_function_of_both():
    p = cedar.from_items([{"a": "to", "b": "be"}])
    with pytest.raises(PipelineError, match="it reads 1 column, not 2") as caught:
        p.map(tokenize(), "a", "b", into="ids")
    assert 'lambda a, b: tokenizer(a, b)["input_ids"]' in caught.value.fix


def test_a_slow_tokenizer_of_transformers_is_answered_with_its_encode():
    class Slow:
        def __call__(self, text):
            return {"input_ids": self.encode(text), "attention_mask": [1]}

        def encode(self, text):
            return [len(text)]

    with pytest.raises(BadValues) as caught:
        tokenize(Slow()).columns(column(["to be"]))
    assert "text.tokenize(tokenizer.encode)" in caught.value.fix
    assert tokenize(Slow().encode).columns(column(["to be"])).to_pylist() == [[5]]


def test_a_path_or_a_folder(tmp_path):
    made = tokenizer("gpt2")
    made.save(str(tmp_path / "tokenizer.json"))
    assert tokenize(tmp_path) == tokenize(str(tmp_path / "tokenizer.json")) == tokenize(made)
    (tmp_path / "wrong.json").write_text('{"model": 3}')
    for path, why in (("none.json", "cannot be read"), ("wrong.json", "not a tokenizer.json")):
        with pytest.raises(PipelineError, match=why) as caught:
            tokenize(tmp_path / path)
        assert caught.value.site.file == __file__


@pytest.mark.parametrize("wrong", [3, b"abc", [1]])
def test_what_is_no_tokenizer(wrong):
    with pytest.raises(PipelineError, match="is not a tokenizer") as caught:
        tokenize(wrong)
    assert caught.value.site.file == __file__


def test_a_tokenizer_with_a_part_in_python_is_refused():
    library = pytest.importorskip("tokenizers")

    class Part:
        def pre_tokenize(self, text):
            pass

    made = library.Tokenizer(library.models.BPE())
    made.pre_tokenizer = library.pre_tokenizers.PreTokenizer.custom(Part())
    with pytest.raises(PipelineError, match="cannot be saved") as caught:
        tokenize(made)
    assert caught.value.site.file == __file__


def test_equal_tokenizers_make_equal_transforms_that_travel():
    transform = tokenize(tokenizer("gpt2"))
    again = pickle.loads(pickle.dumps(transform))
    assert (again, hash(again), again.identity) == (transform, hash(transform), transform.identity)
    assert again(CORPUS[0]) == tokenizer("gpt2").encode(CORPUS[0]).ids
    other = tokenize(tokenizer("cl100k"))
    assert other != transform
    assert other.identity != transform.identity
    assert len(repr(transform)) < 300


def test_whether_the_library_works_in_threads_of_its_own(monkeypatch):
    made = tokenizers.Tokenizer.from_str(tokenizer("gpt2").to_str())
    made.enable_truncation(9)
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    assert [each.pooled for each in (tokenize(made), tokenize(tokenizer("gpt2")), tokenize(), tokenize(len))] == [
        True, False, False, False
    ]  # fmt: skip
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    assert not tokenize(made).pooled
