"""Digests: whole numbers by which values are compared, and random numbers are keyed."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_DRAWING = threading.Lock()  # torch has one generator for all threads


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


@contextmanager
def keyed(device: torch.device | str, *key: object) -> Iterator[None]:
    """What torch draws inside, in dropout for instance, depends on the key alone; what it draws later does not.

    Example:
        >>> for _ in range(2):
        ...     with keyed("cpu", 0, "a"):
        ...         torch.rand(1).item() == torch.rand(1).item()
        False
        False
    """
    device = torch.device(device)
    with _DRAWING, torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(digest(key))
        yield
