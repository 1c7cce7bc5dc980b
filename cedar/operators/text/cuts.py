"""Find positions at which a text can be cut before tokenization without changing the ids.

Most tokenizers first split the text, usually with a regular expression that matches repeatedly from left to right, and
then encode each piece separately. A position is a safe cut if a match always begins there and the matches before it do
not depend on the text after it. A *family* is a set of pairs of adjacent characters between which a cut is safe for a
given regular expression. The pairs are derived from the expression's alternatives; tests compare each family with the
library on every short string over the character classes.

Cuts are only made between ASCII characters, and between a non-ASCII character other than white space and a space. The
class of other characters depends on the library's Unicode version.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np

from cedar.core.columns import Index
from cedar.operators.text.string_column import ASCII, Bytes, Mask

Pairs: TypeAlias = frozenset[tuple[str, str]]

# Classes of ASCII characters. Other control characters have no class, since normalizers may remove them.
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
    # ' ?\p{L}+', ' ?\p{N}+' and ' ?[^\s\p{L}\p{N}]+' match an optional space and a run of one class; also matches "'s".
    "gpt2": _COMMON | _pairs(_PUNCTUATION, ("line",)) | {("letter", "quote")}
    | _pairs(("under", "slash", "mark"), ("letter",)),
    # In '[^\r\n\p{L}\p{N}]?\p{L}+' a sign may begin a word; in '[^\s\p{L}\p{N}]+[\r\n]*' line ends may follow signs.
    "cl100k": _COMMON | {("letter", "quote")},
    # A word may end with "(?i:'s|'t|...)?".
    "o200k": _COMMON,
    # Each punctuation character is a piece; white space is dropped.
    "bert": _pairs(_NOT_WHITE, _WHITE) | _pairs(("letter", "digit"), _PUNCTUATION) | _pairs(_PUNCTUATION, _NOT_WHITE),
    # Runs of word characters and runs of other characters are pieces; white space is dropped.
    "words": _pairs(_NOT_WHITE, _WHITE)
    | _pairs(("letter", "digit", "under"), ("quote", "slash", "mark"))
    | _pairs(("quote", "slash", "mark"), ("letter", "digit", "under")),
    "white": _pairs(_NOT_WHITE, _WHITE),
    "spaces": _pairs((*_NOT_WHITE, "tab", "line"), ("space",)),
}  # fmt: skip

# White space outside ASCII, and characters that normalizers may remove.
_WIDE = frozenset(
    c for c in "\x85\xa0\u1680\u180e\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u200b"
    "\u2028\u2029\u202f\u205f\u2060\u3000\ufeff\ufffd"
)  # fmt: skip


@cache
def safe_pairs(family: str) -> Mask:
    """Return a table, bool[65536]: entry 256 * a + b is True if a text may be cut between bytes a and b."""
    safe = np.zeros((256, 256), dtype=np.bool_)
    for left, right in FAMILIES[family]:
        for a in CLASSES[left]:
            safe[ord(a), [ord(b) for b in CLASSES[right]]] = True
    safe[ASCII:, ord(" ")] = True  # ``cuts`` checks whether the character is white space
    return safe.reshape(-1)


@cache
def _wide_white_space() -> Index:
    """Return the UTF-8 encodings of the characters in ``_WIDE`` as sorted integers."""
    return np.sort(np.array([int.from_bytes(c.encode()) for c in _WIDE], dtype=np.int64))


@dataclass(frozen=True)
class Cutter:
    """Finds the positions at which strings may be cut, for one family of regular expressions."""

    family: str

    def cuts(self, data: Bytes, start: int, stop: int) -> Mask:
        """Return a mask, bool[stop - start], of the bytes from ``start`` to ``stop`` before which ``data`` may be cut.

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
    """Return a mask of the indices that follow a character in ``_WIDE``."""
    last_byte = data[indices - 1].astype(np.int64)
    second_last = data[np.maximum(indices - 2, 0)].astype(np.int64)
    third_last = data[np.maximum(indices - 3, 0)].astype(np.int64)
    pair = (second_last << 8) | last_byte
    return np.isin(pair, _wide_white_space()) | np.isin((third_last << 16) | pair, _wide_white_space())
