"""Digests: whole numbers by which values are compared, and random numbers are keyed."""

from __future__ import annotations

import hashlib


def digest(value: object) -> int:
    """63 bits that two values share only if their ``repr`` is the same.

    Example:
        >>> digest((1, "a")) == digest((1, "a")) != digest((1, "b"))
        True
    """
    return int.from_bytes(hashlib.blake2b(repr(value).encode(), digest_size=8).digest()) >> 1
