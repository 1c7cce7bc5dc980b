"""Cuts: positions at which a text may be cut before tokenization without changing the ids.

A tokenizer with a pre-tokenizer first splits the text, usually by a regular expression that matches repeatedly from
left to right, and then encodes each piece separately. A position is a safe cut if a match always begins there, and the
text before it always matches in the same way, whatever is on the other side. A *family* is a set of pairs of adjacent
characters with a safe cut between them, derived from each alternative of its expression. Tests compare each table with
the library on every short string over the classes.

Only pairs of ASCII characters are used, and a space after a non-ASCII character that is not white space, since the
class of other characters depends on the library's version of Unicode.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np

from cedar.core.columns import Index
from cedar.operators.text.string_column import ASCII, Bytes, Mask

Pairs: TypeAlias = frozenset[tuple[str, str]]

# Classes of ASCII characters. Other control characters have no class, since normalizers drop them.
CLASSES: dict[str, str] = {
    "space": " ", "tab": "\t", "line": "\r\n", "quote": "'", "under": "_", "slash": "/",
    "letter": "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", "digit": "0123456789",
    "mark": '!"#$%&()*+,-.:;<=>?@[\\]^`{|}~',
}  # fmt: skip
_PUNCTUATION = ("quote", "under", "slash", "mark")
_NOT_WHITE = ("letter", "digit", *_PUNCTUATION)
_WHITE = ("space", "tab", "line")


def _pairs(left: tuple[str, ...], right: tuple[str, ...]) -> Pairs:
    return frozenset((a, b) for a in left for b in right)


_COMMON = (
    _pairs(_NOT_WHITE, ("space", "tab"))  # white space always begins a match
    | _pairs(("letter", "digit"), ("line",))
    | _pairs(("letter",), ("digit", "under", "slash", "mark"))
    | _pairs(("digit",), ("letter", *_PUNCTUATION))
    | _pairs(_PUNCTUATION, ("digit",))
)
FAMILIES: dict[str, Pairs] = {
    # ' ?\p{L}+', ' ?\p{N}+', ' ?[^\s\p{L}\p{N}]+' match runs of one kind after a possible space; "'s" follows a letter.
    "gpt2": _COMMON | _pairs(_PUNCTUATION, ("line",)) | {("letter", "quote")}
    | _pairs(("under", "slash", "mark"), ("letter",)),
    # In '[^\r\n\p{L}\p{N}]?\p{L}+' a sign may begin a word; in '[^\s\p{L}\p{N}]+[\r\n]*' line ends may follow signs.
    "cl100k": _COMMON | {("letter", "quote")},
    # "(?i:'s|'t|...)?" may end a word.
    "o200k": _COMMON,
    # Each sign is a piece; white space is dropped.
    "bert": _pairs(_NOT_WHITE, _WHITE) | _pairs(("letter", "digit"), _PUNCTUATION) | _pairs(_PUNCTUATION, _NOT_WHITE),
    # Runs of word characters and runs of other characters are pieces; white space is dropped.
    "words": _pairs(_NOT_WHITE, _WHITE)
    | _pairs(("letter", "digit", "under"), ("quote", "slash", "mark"))
    | _pairs(("quote", "slash", "mark"), ("letter", "digit", "under")),
    "white": _pairs(_NOT_WHITE, _WHITE),
    "spaces": _pairs((*_NOT_WHITE, "tab", "line"), ("space",)),
}  # fmt: skip

# White space outside ASCII, and characters that may be dropped.
_WIDE = frozenset(
    c for c in "\x85\xa0\u1680\u180e\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u200b"
    "\u2028\u2029\u202f\u205f\u2060\u3000\ufeff\ufffd"
)  # fmt: skip


@cache
def safe_pairs(family: str) -> Mask:
    """Return bool[65536]: at 256 * a + b, whether a text may be cut between bytes a and b."""
    safe = np.zeros((256, 256), dtype=np.bool_)
    for left, right in FAMILIES[family]:
        for a in CLASSES[left]:
            safe[ord(a), [ord(b) for b in CLASSES[right]]] = True
    safe[ASCII:, ord(" ")] = True  # ``cuts`` checks whether the character is white space
    return safe.reshape(-1)


@cache
def _wide_white_space() -> Index:
    """Return the characters of ``_WIDE`` as sorted integers of their two or three UTF-8 bytes."""
    return np.sort(np.array([int.from_bytes(c.encode()) for c in _WIDE], dtype=np.int64))


@dataclass(frozen=True)
class Cutter:
    """Finds the positions at which strings may be cut, by the pairs of a family."""

    family: str

    def cuts(self, data: Bytes, start: int, stop: int) -> Mask:
        """Return bool[stop - start]: whether ``data`` may be cut before each byte from ``start`` to ``stop``.

        The first byte of ``data`` is never a cut. Row boundaries are not considered.
        """
        low = max(start, 1)
        pairs = data[low - 1 : stop - 1].astype(np.uint16)
        pairs <<= 8
        pairs |= data[low:stop]
        safe: Mask = safe_pairs(self.family).take(pairs)
        high = np.flatnonzero(safe & (pairs >= ASCII << 8))
        if len(high):
            safe[high] = ~_after_white_space(data, high + low)
        return safe if low == start else np.concatenate([np.zeros(low - start, dtype=np.bool_), safe])


def _after_white_space(data: Bytes, indices: Index) -> Mask:
    """Return whether the non-ASCII character before each index is white space or one that may be dropped."""
    last_byte = data[indices - 1].astype(np.int64)
    second_last = data[np.maximum(indices - 2, 0)].astype(np.int64)
    third_last = data[np.maximum(indices - 3, 0)].astype(np.int64)
    pair = (second_last << 8) | last_byte
    return np.isin(pair, _wide_white_space()) | np.isin((third_last << 16) | pair, _wide_white_space())
