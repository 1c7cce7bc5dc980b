"""The published hashes on Python's integers, which those of arrays are compared with."""

from __future__ import annotations

WORD = (1 << 64) - 1


def twang(key: int) -> int:
    """Thomas Wang's mix, as published, on Python's integers."""
    key &= WORD
    key = (~key + (key << 21)) & WORD
    key ^= key >> 24
    key = (key + (key << 3) + (key << 8)) & WORD
    key ^= key >> 14
    key = (key + (key << 2) + (key << 4)) & WORD
    key ^= key >> 28
    return (key + (key << 31)) & WORD


def combine(upper: int, lower: int) -> int:
    """CityHash's Hash128to64."""
    upper, lower = upper & WORD, lower & WORD
    a = ((lower ^ upper) * 0x9DDFEA08EB382D69) & WORD
    a ^= a >> 47
    b = ((upper ^ a) * 0x9DDFEA08EB382D69) & WORD
    b ^= b >> 47
    return (b * 0x9DDFEA08EB382D69) & WORD


def signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def sigrid(value: int, salt: int, most: int) -> int:
    return 0 if most == 1 else signed(combine(salt, twang(value))) % most
