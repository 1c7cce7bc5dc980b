"""Plans of Fourier transforms: how a length is taken apart."""

from __future__ import annotations

import math

import pytest

from cedar.operators.audio.fft_plan import plan


@pytest.mark.parametrize("n", [1, 2, 12, 45, 64, 77, 200])
def test_a_plan_takes_n_apart(n):
    stages = plan(n)
    radices = stages.radices.tolist()
    assert math.prod(radices) == n
    assert all(radix == 4 or all(radix % d for d in range(2, radix)) for radix in radices)
    sizes = [2 * (radix - 1) * n // math.prod(radices[: i + 1]) for i, radix in enumerate(radices)]
    assert stages.starts.tolist() == [sum(sizes[:i]) for i in range(len(sizes))]
    assert len(stages.twiddles) == sum(sizes)
