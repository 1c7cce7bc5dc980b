"""The published hash functions behind SigridHash, Cartesian and NGram, on whole arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

_MULTIPLIER = np.uint64(0x9DDFEA08EB382D69)


def twang_mix64(values: npt.NDArray[Any]) -> Words:
    """Thomas Wang's 64-bit mix: a bijection, so different ids never collide here; as in Folly's ``hash/Hash.h``.

    Args:
        values: integers, signed ones as their 64 bits in two's complement.

    Example:
        >>> import numpy as np
        >>> hex(int(twang_mix64(np.array([0]))[0]))
        '0x77cfa1eef01bca90'
    """
    key = values.astype(np.int64, copy=False).view(np.uint64) if values.dtype != np.uint64 else values
    key = ~key + (key << np.uint64(21))
    key ^= key >> np.uint64(24)
    key = key + (key << np.uint64(3)) + (key << np.uint64(8))
    key ^= key >> np.uint64(14)
    key = key + (key << np.uint64(2)) + (key << np.uint64(4))
    key ^= key >> np.uint64(28)
    mixed: Words = key + (key << np.uint64(31))
    return mixed


def hash_combine(first: Words | np.uint64, second: Words) -> Words:
    """Two words as one: Folly's ``hash_combine`` of two integers, which is CityHash's Hash128to64. Order counts."""
    mixed = (second ^ first) * _MULTIPLIER
    mixed ^= mixed >> np.uint64(47)
    mixed = (first ^ mixed) * _MULTIPLIER
    mixed ^= mixed >> np.uint64(47)
    combined: Words = mixed * _MULTIPLIER
    return combined
