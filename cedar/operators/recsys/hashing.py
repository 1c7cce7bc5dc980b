"""Vectorized hash functions for SigridHash, Cartesian and NGram, as published in Folly, and a fast remainder."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

KeyValueStore = npt.NDArray[np.uint64]

_MULTIPLIER = np.uint64(0x9DDFEA08EB382D69)


def twang_mix64(values: npt.NDArray[Any]) -> KeyValueStore:
    """Hash ids with Thomas Wang's 64-bit mix, as in Folly's ``hash/Hash.h``. Different ids never collide.

    Args:
        values: integers; negative ones are hashed as their 64 bits in two's complement.

    Examples:
        >>> import numpy as np
        >>> hex(int(twang_mix64(np.array([0]))[0]))
        '0x77cfa1eef01bca90'
    """
    key = values.astype(np.int64, copy=False).view(np.uint64) if values.dtype != np.uint64 else values
    # Compute each sum of shifted keys as one multiplication, in place: allocating arrays would take longer.
    mixed: KeyValueStore = key * np.uint64((1 << 21) - 1)
    mixed -= np.uint64(1)  # now equal to ~key + (key << 21)
    buffer = mixed >> np.uint64(24)
    mixed ^= buffer
    mixed *= np.uint64(1 + (1 << 3) + (1 << 8))
    mixed ^= np.right_shift(mixed, np.uint64(14), out=buffer)
    mixed *= np.uint64(1 + (1 << 2) + (1 << 4))
    mixed ^= np.right_shift(mixed, np.uint64(28), out=buffer)
    mixed *= np.uint64(1 + (1 << 31))
    return mixed


def hash_combine(first: KeyValueStore | np.uint64, second: KeyValueStore) -> KeyValueStore:
    """Combine two hashes as Folly's ``hash_combine`` does (CityHash's Hash128to64). The order matters."""
    mixed: KeyValueStore = second ^ first
    mixed *= _MULTIPLIER
    buffer = mixed >> np.uint64(47)
    mixed ^= buffer
    mixed ^= first
    mixed *= _MULTIPLIER
    mixed ^= np.right_shift(mixed, np.uint64(47), out=buffer)
    mixed *= _MULTIPLIER
    return mixed


def remainders(values: npt.NDArray[Any], divisor: int) -> npt.NDArray[Any]:
    """Return ``values % divisor`` from 0 to ``divisor`` - 1, computed by division, which is faster than NumPy's ``%``.

    Args:
        divisor: a positive integer that the dtype can hold.

    Examples:
        >>> import numpy as np
        >>> remainders(np.array([-1, 7, 8]), 7).tolist()
        [6, 0, 1]
    """
    typed_divisor = values.dtype.type(divisor)
    remainder: npt.NDArray[Any] = np.floor_divide(values, typed_divisor)
    remainder *= typed_divisor
    np.subtract(values, remainder, out=remainder)
    return remainder
