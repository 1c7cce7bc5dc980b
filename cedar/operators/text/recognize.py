"""What is known of a tokenizer: whether, and how, strings may be cut before it sees them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cedar.operators.text.cuts import Cutter

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# The expressions that published tokenizers split by, each with the family of cuts that it allows.
PATTERNS: dict[str, str] = {
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt2",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt2",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s": "gpt2",
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}": "cl100k",
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_TAIL}": "cl100k",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+":
        "cl100k",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
    r"|\s+(?!\S)|\s": "cl100k",
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+{_CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*"
    rf"{_CONTRACTIONS}?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+": "o200k",
}  # fmt: skip
_GPT2 = next(iter(PATTERNS))
_LOCAL = frozenset({"NFC", "NFD", "NFKC", "NFKD", "Lowercase"})  # character by character, up to the next ASCII one
_KEEPING = {("Isolated", False), ("Removed", True)}  # matches are pieces; these expressions match everything
_WITHIN = frozenset(
    "ByteLevel Digits Punctuation Split Whitespace WhitespaceSplit BertPreTokenizer CharDelimiterSplit".split()
)  # functions of one piece


@dataclass(frozen=True)
class TokenizerTraits:
    """How a tokenizer may be fed.

    Args:
        cutter: where strings may be cut; None: nowhere.
        why: why nowhere.
        prefix: a space is put before a text that begins with none.
        whole: strings in which one of these occurs are not cut.
    """

    cutter: Cutter | None
    why: str = ""
    prefix: bool = False
    whole: tuple[str, ...] = ()


def known_pattern(pattern: str) -> TokenizerTraits:
    """Of a tokenizer that splits strings by a regular expression alone."""
    family = PATTERNS.get(pattern)
    return (
        TokenizerTraits(Cutter(family)) if family else _unknown("its expression is not one of those that were analyzed")
    )


def known_tokenizer(text: str) -> TokenizerTraits:
    """Of a Hugging Face tokenizer, from its JSON."""
    spec = json.loads(text)
    if spec.get("truncation"):
        return _unknown("it truncates")
    added = spec.get("added_tokens") or []
    normalizers = [n["type"] for n in _flat(spec.get("normalizer"), "normalizers")]
    splits = _flat(spec.get("pre_tokenizer"), "pretokenizers")
    if normalizers and any(token.get("normalized") for token in added):
        return _unknown("it looks for added tokens in the normalized text")
    while len(splits) > 1 and splits[0]["type"] == "Digits":  # by neighboring characters: neutral to any cut
        splits = splits[1:]
    if not splits:
        return _unknown("it splits no text before its model sees it")
    family, prefix = _family(splits[0])
    if family is None:
        return _unknown(f"its pre-tokenizer {splits[0]['type']} is not one of those that were analyzed")
    allowed = {"BertNormalizer"} | _LOCAL if family in ("bert", "words", "white") else _LOCAL
    strange = [name for name in normalizers if name not in allowed]
    if strange or (prefix and {"NFKC", "NFKD"} & set(normalizers)):
        return _unknown(f"its normalizer {(strange or normalizers)[0]} may look beyond a cut")
    odd = [s["type"] for s in splits[1:] if s["type"] not in _WITHIN and not _unaware(s)]
    if odd or any(s["type"] == "ByteLevel" and s.get("add_prefix_space") for s in splits[1:]):
        return _unknown(f"its pre-tokenizer {(odd or ['ByteLevel'])[0]} may look beyond a cut")
    return TokenizerTraits(Cutter(family), prefix=prefix, whole=tuple(token["content"] for token in added))


def _unknown(why: str) -> TokenizerTraits:
    return TokenizerTraits(None, why)


def _flat(part: Mapping[str, Any] | None, inner: str) -> list[Mapping[str, Any]]:
    """A pre-tokenizer or normalizer as a list, sequences opened."""
    if part is None:
        return []
    if part["type"] != "Sequence":
        return [part]
    return [each for child in part[inner] for each in _flat(child, inner)]


def _family(split: Mapping[str, Any]) -> tuple[str | None, bool]:
    """The family of a pre-tokenizer, and whether it puts a space in front."""
    kind = split["type"]
    if kind == "ByteLevel" and split.get("use_regex", True):
        return PATTERNS[_GPT2], bool(split.get("add_prefix_space"))
    if kind == "Split" and (split.get("behavior"), bool(split.get("invert"))) in _KEEPING:
        return PATTERNS.get(split["pattern"].get("Regex", "")), False
    if kind == "Metaspace" and split.get("split", True):
        return "spaces", False  # a piece after a cut begins with a space, and gets none in front
    return {"BertPreTokenizer": "bert", "Whitespace": "words", "WhitespaceSplit": "white"}.get(kind), False


def _unaware(split: Mapping[str, Any]) -> bool:
    """A Metaspace that does not ask for the place of a piece in the text."""
    return bool(split["type"] == "Metaspace" and split.get("prepend_scheme", "always") != "first")
