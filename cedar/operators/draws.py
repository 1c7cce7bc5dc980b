"""Draws: random generators keyed by a row, so that a row draws the same wherever and whenever it is worked on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def keyed_generator(key: int, seed: int) -> np.random.Generator:
    """A generator of its own for the row whose key hashes to ``key``; both are 64-bit words.

    Example:
        >>> keyed_generator(7, 1).random() == keyed_generator(7, 1).random() != keyed_generator(8, 1).random()
        True
    """
    return np.random.Generator(np.random.Philox(key=np.array([key, seed], dtype=np.uint64)))


def seeded(fn: Callable[..., Any], seed: int, *, fresh: bool) -> Callable[..., Any]:
    """``fn`` with the hash of the row's key as first argument, which it gets in turn as ``rng=``.

    Setting a generator's state takes a tenth of the time of making one. ``fresh`` makes one all the same, for calls
    that may still be drawing when the next one starts.
    """
    if fresh:
        return lambda key, *args: fn(*args, rng=keyed_generator(key, seed))
    generator = keyed_generator(0, seed)
    bits: Any = generator.bit_generator
    state = bits.state
    words = state["state"]["key"]

    def call(key: int, *args: Any) -> Any:
        words[0] = key
        bits.state = state
        return fn(*args, rng=generator)

    return call
