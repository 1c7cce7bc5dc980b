"""Draws: random numbers keyed by row, which are the same in any block, worker or retry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cedar.core.columns import Index
from cedar.core.cursor import Hashes, mix64_array

_STEP = 0x9E3779B97F4A7C15  # the increment of splitmix64


def keyed_generator(key: int, seed: int) -> np.random.Generator:
    """Return the generator of the row whose key hashes to ``key``; ``key`` and ``seed`` are 64-bit integers.

    Examples:
        >>> keyed_generator(7, 1).random() == keyed_generator(7, 1).random() != keyed_generator(8, 1).random()
        True
    """
    return np.random.Generator(np.random.Philox(key=np.array([key, seed], dtype=np.uint64)))


def seeded(fn: Callable[..., Any], seed: int, *, fresh: bool) -> Callable[..., Any]:
    """Wrap ``fn``, so that it gets a generator as ``rng=``. The wrapper's first argument is the hash of the row's key.

    The wrapper reuses one generator and sets its state, which takes a tenth of the time of creating one. ``fresh``
    creates one for each call, because a call that timed out may still be drawing when the next call starts.
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


@dataclass(frozen=True)
class Draws:
    """Random numbers for the rows of a block, many rows at a time; ``words`` is uint64[n], one seed per row.

    A row's numbers depend only on its seed (splitmix64), so they are the same in any block. The object has no state, so
    repeated calls return the same numbers. Request all numbers of a row in one call, or continue with ``first``.

    Examples:
        >>> draws = Draws(np.array([3, 7], dtype=np.uint64))
        >>> draws.uniform(2).shape, bool((draws.uniform(1, first=1) == draws.uniform(2)[:, 1:]).all())
        ((2, 2), True)
    """

    words: Hashes

    def __len__(self) -> int:
        return len(self.words)

    def bits(self, k: int, first: int = 0) -> Hashes:
        """Return each row's k random integers beginning with index ``first``, uint64[n, k]."""
        steps = np.arange(first, first + k, dtype=np.uint64) * np.uint64(_STEP)
        return mix64_array(self.words[:, None] + steps[None, :])

    def uniform(self, k: int, first: int = 0) -> npt.NDArray[np.float64]:
        """Return float64[n, k], uniform in [0, 1)."""
        return np.asarray((self.bits(k, first) >> np.uint64(11)) * 2.0**-53, dtype=np.float64)

    def integers(self, low: int, high: int, k: int, first: int = 0) -> npt.NDArray[np.int64]:
        """Return int64[n, k], uniform in [low, high)."""
        return low + np.floor(self.uniform(k, first) * (high - low)).astype(np.int64)

    def take(self, rows: Index) -> Draws:
        """Return the draws of some of the rows."""
        return Draws(self.words[rows])

    def generator(self, row: int) -> np.random.Generator:
        """Return a NumPy generator for one row, for other distributions. Creating it takes about 10 us."""
        return keyed_generator(int(self.words[row]), _STEP)
