"""The published hash functions behind SigridHash, Cartesian and NGram, on whole arrays, and remainders."""

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

    Examples:
        >>> import numpy as np
        >>> hex(int(twang_mix64(np.array([0]))[0]))
        '0x77cfa1eef01bca90'
    """
    key = values.astype(np.int64, copy=False).view(np.uint64) if values.dtype != np.uint64 else values
    # Shifts of a key that are added to it are one multiplication; in place, as fresh memory costs more than the work.
    mixed: Words = key * np.uint64((1 << 21) - 1)
    mixed -= np.uint64(1)  # so far ~key + (key << 21)
    room = mixed >> np.uint64(24)
    mixed ^= room
    mixed *= np.uint64(1 + (1 << 3) + (1 << 8))
    mixed ^= np.right_shift(mixed, np.uint64(14), out=room)
    mixed *= np.uint64(1 + (1 << 2) + (1 << 4))
    mixed ^= np.right_shift(mixed, np.uint64(28), out=room)
    mixed *= np.uint64(1 + (1 << 31))
    return mixed


def hash_combine(first: Words | np.uint64, second: Words) -> Words:
    """Two words as one: Folly's ``hash_combine`` of two integers, which is CityHash's Hash128to64. Order counts."""
    mixed: Words = second ^ first
    mixed *= _MULTIPLIER
    room = mixed >> np.uint64(47)
    mixed ^= room
    mixed ^= first
    mixed *= _MULTIPLIER
    mixed ^= np.right_shift(mixed, np.uint64(47), out=room)
    mixed *= _MULTIPLIER
    return mixed


def remainders(values: npt.NDArray[Any], divisor: int) -> npt.NDArray[Any]:
    """``values % divisor`` of signed or unsigned integers, from 0 to ``divisor`` - 1: NumPy divides faster than that.

    Args:
        divisor: positive, and in the range of the dtype.

    Examples:
        >>> import numpy as np
        >>> remainders(np.array([-1, 7, 8]), 7).tolist()
        [6, 0, 1]
    """
    by = values.dtype.type(divisor)
    rest: npt.NDArray[Any] = np.floor_divide(values, by)
    rest *= by
    np.subtract(values, rest, out=rest)
    return rest
