"""Digests: whole numbers by which values are compared, and random numbers are keyed."""

from __future__ import annotations

import hashlib

import torch


def digest(value: object) -> int:
    """63 bits that two values share only if their ``repr`` is the same.

    Example:
        >>> digest((1, "a")) == digest((1, "a")) != digest((1, "b"))
        True
    """
    return int.from_bytes(hashlib.blake2b(repr(value).encode(), digest_size=8).digest()) >> 1


def generator(device: torch.device | str, *key: object) -> torch.Generator:
    """Random numbers that depend on the key alone.

    Example:
        >>> torch.equal(*(torch.rand(3, generator=generator("cpu", 0, "a")) for _ in range(2)))
        True
    """
    return torch.Generator(device).manual_seed(digest(key))
