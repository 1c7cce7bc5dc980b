"""Cuts: places where a text may be cut before it is tokenized, the ids of the pieces being those of the whole.

A tokenizer with a pre-tokenizer splits the text first, most by a regular expression that is matched repeatedly
from left to right, and turns each piece into ids by itself. Where a match begins at a place whatever is before it,
and what is before it matches alike whatever follows, both sides may be encoded by themselves. A *family* names
pairs of neighboring characters between which that is so, by looking at each alternative of its expression; tests
compare each table with the library on every short string over the classes.

Only ASCII characters take part, and the space after any other character that is not white space: what another character
counts as depends on a library's version of Unicode.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np

from cedar.core.columns import Index
from cedar.operators.text.string_column import ASCII, Bytes, Mask

Pairs: TypeAlias = frozenset[tuple[str, str]]

# Classes of ASCII characters. Other control characters are in none: normalizers drop them.
CLASSES: dict[str, str] = {
    "space": " ", "tab": "\t", "line": "\r\n", "quote": "'", "under": "_", "slash": "/",
    "letter": "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", "digit": "0123456789",
    "mark": '!"#$%&()*+,-.:;<=>?@[\\]^`{|}~',
}  # fmt: skip
_SIGNS = ("quote", "under", "slash", "mark")
_SOLID = ("letter", "digit", *_SIGNS)
_WHITE = ("space", "tab", "line")


def _pairs(left: tuple[str, ...], right: tuple[str, ...]) -> Pairs:
    return frozenset((a, b) for a in left for b in right)


_COMMON = (
    _pairs(_SOLID, ("space", "tab"))  # white space begins a match
    | _pairs(("letter", "digit"), ("line",))
    | _pairs(("letter",), ("digit", "under", "slash", "mark"))
    | _pairs(("digit",), ("letter", *_SIGNS))
    | _pairs(_SIGNS, ("digit",))
)
FAMILIES: dict[str, Pairs] = {
    # ' ?\p{L}+', ' ?\p{N}+', ' ?[^\s\p{L}\p{N}]+': runs of one kind, with a space before; "'s" after a letter.
    "gpt2": _COMMON | _pairs(_SIGNS, ("line",)) | {("letter", "quote")}
    | _pairs(("under", "slash", "mark"), ("letter",)),
    # '[^\r\n\p{L}\p{N}]?\p{L}+': a sign may open a word; '[^\s\p{L}\p{N}]+[\r\n]*': and be closed by line ends.
    "cl100k": _COMMON | {("letter", "quote")},
    # "(?i:'s|'t|...)?" closes a word.
    "o200k": _COMMON,
    # Each sign by itself, white space dropped.
    "bert": _pairs(_SOLID, _WHITE) | _pairs(("letter", "digit"), _SIGNS) | _pairs(_SIGNS, _SOLID),
    # Runs of word characters, runs of others, white space dropped.
    "words": _pairs(_SOLID, _WHITE)
    | _pairs(("letter", "digit", "under"), ("quote", "slash", "mark"))
    | _pairs(("quote", "slash", "mark"), ("letter", "digit", "under")),
    "white": _pairs(_SOLID, _WHITE),
    "spaces": _pairs((*_SOLID, "tab", "line"), ("space",)),
}  # fmt: skip

# Last bytes of the white space outside ASCII, each with what is before them.
_WIDE = frozenset(
    c for c in "\x85\xa0\u1680\u180e\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u200b"
    "\u2028\u2029\u202f\u205f\u2060\u3000\ufeff\ufffd"
)  # fmt: skip


@cache
def table(family: str) -> Mask:
    """bool[65536]: whether a text may be cut between two bytes, by the first times 256 plus the second."""
    safe = np.zeros((256, 256), dtype=np.bool_)
    for left, right in FAMILIES[family]:
        for a in CLASSES[left]:
            safe[ord(a), [ord(b) for b in CLASSES[right]]] = True
    safe[ASCII:, ord(" ")] = True  # looked at again: the character may be white space
    return safe.reshape(-1)


@cache
def _wide() -> Index:
    """The white space outside ASCII as numbers of the last three bytes; two-byte characters have a 0 in front."""
    return np.sort(np.array([int.from_bytes(c.encode()) for c in _WIDE], dtype=np.int64))


@dataclass(frozen=True)
class Cutter:
    """How strings are cut: by a family."""

    family: str

    def cuts(self, data: Bytes, start: int, stop: int) -> Mask:
        """bool[stop - start]: whether ``data`` may be cut before each byte from ``start`` to ``stop``.

        The first byte of ``data`` never counts as a cut, nor is the edge of a row known here.
        """
        low = max(start, 1)
        pairs = data[low - 1 : stop - 1].astype(np.uint16)
        pairs <<= 8
        pairs |= data[low:stop]
        safe: Mask = table(self.family).take(pairs)
        high = np.flatnonzero(safe & (pairs >= ASCII << 8))
        if len(high):
            safe[high] = ~_ends_white(data, high + low)
        return safe if low == start else np.concatenate([np.zeros(low - start, dtype=np.bool_), safe])


def _ends_white(data: Bytes, places: Index) -> Mask:
    """Whether the character before each place, which is not ASCII, is white space, or one that may be dropped."""
    one = data[places - 1].astype(np.int64)
    two = data[np.maximum(places - 2, 0)].astype(np.int64)
    three = data[np.maximum(places - 3, 0)].astype(np.int64)
    pair = (two << 8) | one
    return np.isin(pair, _wide()) | np.isin((three << 16) | pair, _wide())
