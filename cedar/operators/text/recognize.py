"""Recognize tokenizers for which strings may be cut into words before encoding."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cedar.operators.text.cuts import Cutter

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# Regular expressions of published tokenizers, and the family of safe cuts (see ``cuts``) of each expression.
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
_LOCAL_NORMALIZERS = frozenset({"NFC", "NFD", "NFKC", "NFKD", "Lowercase"})  # these never combine ASCII characters
_MATCHES_ARE_PIECES = {("Isolated", False), ("Removed", True)}  # (behavior, invert) for which pieces are matches
_PER_PIECE = frozenset(
    "ByteLevel Digits Punctuation Split Whitespace WhitespaceSplit BertPreTokenizer CharDelimiterSplit".split()
)  # pre-tokenizers whose result depends only on the given piece


@dataclass(frozen=True)
class TokenizerTraits:
    """Whether and where strings may be cut before a tokenizer encodes them.

    Args:
        cutter: finds the positions at which strings may be cut; None if strings must not be cut.
        why: the reason if strings must not be cut.
        prefix: whether the tokenizer adds a space before a text that does not begin with a space.
        whole: names of special tokens; strings that contain one of them must not be cut.
    """

    cutter: Cutter | None
    why: str = ""
    prefix: bool = False
    whole: tuple[str, ...] = ()


def traits_of_pattern(pattern: str) -> TokenizerTraits:
    """Return the traits of a tokenizer whose only pre-tokenizer is a regular expression."""
    family = PATTERNS.get(pattern)
    return TokenizerTraits(Cutter(family)) if family else _not_cuttable("its regular expression is not a known one")


def traits_of_tokenizer(text: str) -> TokenizerTraits:
    """Return the traits of a Hugging Face tokenizer from the text of its tokenizer.json."""
    spec = json.loads(text)
    if spec.get("truncation"):
        return _not_cuttable("it truncates")
    added = spec.get("added_tokens") or []
    normalizers = [n["type"] for n in _flatten(spec.get("normalizer"), "normalizers")]
    splits = _flatten(spec.get("pre_tokenizer"), "pretokenizers")
    if normalizers and any(token.get("normalized") for token in added):
        return _not_cuttable("it looks for added tokens in the normalized text")
    while len(splits) > 1 and splits[0]["type"] == "Digits":  # depends only on adjacent characters, so any cut is safe
        splits = splits[1:]
    if not splits:
        return _not_cuttable("it does not split text before its model")
    family, prefix = _split_family(splits[0])
    if family is None:
        return _not_cuttable(f"its pre-tokenizer {splits[0]['type']} is not a known one")
    allowed = {"BertNormalizer"} | _LOCAL_NORMALIZERS if family in ("bert", "words", "white") else _LOCAL_NORMALIZERS
    unsupported_normalizers = [name for name in normalizers if name not in allowed]
    if unsupported_normalizers or (prefix and {"NFKC", "NFKD"} & set(normalizers)):
        return _not_cuttable(f"its normalizer {(unsupported_normalizers or normalizers)[0]} may look beyond a cut")
    unsupported = [s["type"] for s in splits[1:] if s["type"] not in _PER_PIECE and not _ignores_position(s)]
    if unsupported or any(s["type"] == "ByteLevel" and s.get("add_prefix_space") for s in splits[1:]):
        return _not_cuttable(f"its pre-tokenizer {(unsupported or ['ByteLevel'])[0]} may look beyond a cut")
    return TokenizerTraits(Cutter(family), prefix=prefix, whole=tuple(token["content"] for token in added))


def _not_cuttable(why: str) -> TokenizerTraits:
    return TokenizerTraits(None, why)


def _flatten(part: Mapping[str, Any] | None, inner: str) -> list[Mapping[str, Any]]:
    """Return a pre-tokenizer or normalizer as a list, with nested sequences flattened."""
    if part is None:
        return []
    if part["type"] != "Sequence":
        return [part]
    return [each for child in part[inner] for each in _flatten(child, inner)]


def _split_family(split: Mapping[str, Any]) -> tuple[str | None, bool]:
    """Return the family of a pre-tokenizer (None if unknown), and whether it adds a space before a text."""
    kind = split["type"]
    if kind == "ByteLevel" and split.get("use_regex", True):
        return PATTERNS[_GPT2], bool(split.get("add_prefix_space"))
    if kind == "Split" and (split.get("behavior"), bool(split.get("invert"))) in _MATCHES_ARE_PIECES:
        return PATTERNS.get(split["pattern"].get("Regex", "")), False
    if kind == "Metaspace" and split.get("split", True):
        return "spaces", False  # cuts are before spaces, so no space is added to pieces
    return {"BertPreTokenizer": "bert", "Whitespace": "words", "WhitespaceSplit": "white"}.get(kind), False


def _ignores_position(split: Mapping[str, Any]) -> bool:
    """Return whether a pre-tokenizer is a Metaspace whose result does not depend on a piece's position in the text."""
    return bool(split["type"] == "Metaspace" and split.get("prepend_scheme", "always") != "first")
