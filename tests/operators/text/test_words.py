"""The words that are known of a tokenizer: kept, forgotten and shared."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

from cedar.operators.text import tokenize, words
from tests.operators.text.toy_tokenizers import CORPUS, column, ids_of, tokenizer, tokenizers


def test_words_are_forgotten_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr(words, "_MAX_WORDS", 20)
    made = tokenizers.Tokenizer.from_str(tokenizer("gpt2").to_str().replace("<|end|>", "<|fresh|>"))
    transform = tokenize(made)
    known = transform.tokenizer.encoder().token_cache
    for _ in range(3):
        for text in CORPUS:
            assert transform(text) == made.encode(text).ids
            assert len(known._generation._codes) < 20


def test_long_words_are_not_kept():
    made = tokenizers.Tokenizer.from_str(tokenizer("gpt2").to_str().replace("<|end|>", "<|long|>"))
    transform = tokenize(made)
    texts = ["x" * 500, "y" * 15, "y" * 17, "a" + "\0" * 7, "a", "\0" * 3]
    for _ in range(2):
        assert transform.columns(column(texts)).to_pylist() == ids_of(made, texts)
    assert set(transform.tokenizer.encoder().token_cache._generation._codes) == {t.encode() for t in texts[1:]}


def test_threads_share_words():
    made = tokenizers.Tokenizer.from_str(tokenizer("gpt2").to_str().replace("<|end|>", "<|shared|>"))
    transform, rng = tokenize(made), random.Random(3)
    vocabulary = ["".join(rng.choices("abcdefgh", k=rng.randint(1, 20))) for _ in range(800)]
    columns = [[" ".join(rng.choices(vocabulary, k=40)) for _ in range(30)] for _ in range(24)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda texts: transform.columns(column(texts)).to_pylist(), columns, timeout=60))
    assert found == [ids_of(made, texts) for texts in columns]
