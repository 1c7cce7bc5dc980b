"""What is known of a tokenizer: whether texts may be cut before it sees them, or why not."""

from __future__ import annotations

import json

import pytest

from cedar.operators.text import tokenize
from tests.operators.text.toy_tokenizers import CORPUS, column, ids_of, tokenizer, tokenizers


def test_truncation_is_the_tokenizers_padding_is_left_out():
    made = tokenizers.Tokenizer.from_str(tokenizer("bert").to_str())
    made.enable_truncation(6)
    made.enable_padding(length=50)
    texts = ["the quick brown fox", "the"]
    transform = tokenize(made)
    assert transform.how == "text by text: it truncates"
    made.no_padding()
    assert transform.columns(column(texts)).to_pylist() == ids_of(made, texts)
    assert len(transform(texts[0])) == 6


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"pre_tokenizer": None}, "it does not split text before its model"),
        ({"normalizer": {"type": "StripAccents"}, "added_tokens": []}, "its normalizer StripAccents may look beyond"),
        ({"normalizer": {"type": "NFC"}, "added_tokens": "normalized"}, "it looks for added tokens in the normalized"),
        (
            {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "a+"}, "behavior": "Isolated", "invert": False}},
            "its pre-tokenizer Split is not a known one",
        ),
        (
            {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "WhitespaceSplit"},
                {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "split": True}]}},
            "its pre-tokenizer Metaspace may look beyond",
        ),
    ],
)  # fmt: skip
def test_other_tokenizers_see_each_text_as_a_whole(change, why):
    spec = json.loads(tokenizer("gpt2").to_str())
    if change.get("added_tokens") == "normalized":
        change = change | {"added_tokens": [spec["added_tokens"][0] | {"normalized": True}]}
    made = tokenizers.Tokenizer.from_str(json.dumps(spec | change))
    transform = tokenize(made)
    assert why in transform.how
    texts = [*CORPUS, "", CORPUS[0], "caf\u0301e"]
    assert transform.columns(column(texts)).to_pylist() == ids_of(made, texts)
