"""Plans for Fourier transforms of a given length by Stockham's algorithm, with radices 4, 2, 3, 5 and any prime.

Van Loan, Computational Frameworks for the Fast Fourier Transform, 1992. Twiddle factors are float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

# Cosines and sines of 1/3 and 1/5 of a full turn.
S3 = np.float32(math.sin(2 * math.pi / 3))
C51, C52 = np.float32(math.cos(2 * math.pi / 5)), np.float32(math.cos(4 * math.pi / 5))
S51, S52 = np.float32(math.sin(2 * math.pi / 5)), np.float32(math.sin(4 * math.pi / 5))
HALF = np.float32(0.5)
ZERO = np.float32(0)


@dataclass(frozen=True, eq=False)
class Plan:
    """The stages of a Fourier transform of ``n`` values.

    Args:
        radices: int64[stages]: the radix of each stage; their product is n.
        twiddles: float32[...]: for each stage, for each p, the real and imaginary parts of w^p to w^(p (radix - 1)).
        starts: int64[stages]: the index in ``twiddles`` at which each stage's factors begin.
    """

    n: int
    radices: npt.NDArray[np.int64]
    twiddles: npt.NDArray[np.float32]
    starts: npt.NDArray[np.int64]


@lru_cache(maxsize=32)
def plan(n: int) -> Plan:
    """Return the plan for ``n`` values.

    Examples:
        >>> plan(400).radices.tolist(), plan(14).radices.tolist()
        ([4, 4, 5, 5], [2, 7])
    """
    radices: list[int] = []
    starts: list[int] = []
    twiddles: list[npt.NDArray[np.float32]] = []
    rest = n
    while rest > 1:
        radix = next((r for r in (4, 2, 3, 5) if rest % r == 0), 0)
        radix = radix or next(r for r in range(7, rest + 1) if rest % r == 0)
        turns = np.outer(np.arange(rest // radix), np.arange(1, radix)) % rest / rest
        roots = np.exp(-2j * np.pi * turns)
        starts.append(sum(part.size for part in twiddles))
        twiddles.append(np.stack([roots.real, roots.imag], axis=-1).ravel().astype(np.float32))
        radices.append(radix)
        rest //= radix
    flat = np.concatenate(twiddles) if twiddles else np.zeros(0, dtype=np.float32)
    return Plan(n, np.array(radices, dtype=np.int64), flat, np.array(starts, dtype=np.int64))
