"""The compiled Fourier transform: tones, clicks, and lanes that do not see each other."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")

from cedar.operators.audio.fft_kernels import transform
from cedar.operators.audio.fft_plan import plan

LANES = 32
SIZES = [1, 2, 12, 45, 64, 77, 200]


def transformed(given):
    """complex (n, lanes), transformed along its first axis."""
    n, lanes = given.shape
    stages = plan(n)
    x = np.stack([given.real.ravel(), given.imag.ravel()]).astype(np.float32)
    z = transform(x, np.empty_like(x), n, lanes, stages.radices, stages.twiddles, stages.starts)
    return (z[0] + 1j * z[1]).reshape(n, lanes)


@pytest.mark.parametrize("n", SIZES)
def test_a_tone_becomes_one_value_and_a_click_all_of_them(n):
    given = np.zeros((n, LANES), np.complex128)
    k = n // 3
    given[:, 0] = np.exp(2j * np.pi * k * np.arange(n) / n)
    given[0, LANES - 1] = 1
    want = np.zeros_like(given)
    want[k, 0] = n
    want[:, LANES - 1] = 1
    assert np.abs(transformed(given) - want).max() < 1e-6 * n


def test_a_lane_does_not_see_the_others():
    rng = np.random.default_rng(0)
    given = rng.standard_normal((60, LANES)) + 1j * rng.standard_normal((60, LANES))
    alone = np.zeros_like(given)
    alone[:, 3] = given[:, 3]
    made = transformed(alone)
    assert made[:, 3].tobytes() == transformed(given)[:, 3].tobytes()
    assert not np.delete(made, 3, axis=1).any()
