"""photometric_distort: which changes a row draws, and what arguments are refused."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")

import cedar
from cedar.operators.image.distort import PhotometricDistort
from cedar.operators.image.pixels_steps import BRIGHTNESS, CONTRAST, HUE, PERMUTE, SATURATION
from tests.operators.image.toy_draws import MANY, squares


def test_distort_draws_as_ssd_does():
    steps = PhotometricDistort().steps(squares(len(MANY)), MANY)
    for code, low, high in (
        (BRIGHTNESS, 0.875, 1.125),
        (CONTRAST, 0.5, 1.5),
        (SATURATION, 0.5, 1.5),
        (HUE, -0.05, 0.05),
    ):
        taken = steps.codes == code
        assert taken.sum(1).max() == 1
        assert abs(taken.any(1).mean() - 0.5) < 0.02
        drawn = steps.numbers[:, :, 0][taken]
        assert low <= drawn.min()
        assert drawn.max() <= high
        assert abs(drawn.mean() - (low + high) / 2) < (high - low) / 100
    before = steps.codes[:, 1] == CONTRAST
    after = steps.codes[:, 4] == CONTRAST
    assert abs(before.mean() - 0.25) < 0.02
    assert abs(after.mean() - 0.25) < 0.02
    orders = steps.numbers[steps.codes[:, 5] == PERMUTE, 5, 0].astype(int)
    found, counts = np.unique(orders, return_counts=True)
    assert len(found) == 6
    assert abs(counts / len(orders) * 6 - 1).max() < 0.1
    assert {tuple(order >> 2 * c & 3 for c in range(3)) for order in found} == {
        (0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)
    }  # fmt: skip


@pytest.mark.parametrize("wrong", [{"brightness": (2.0, 1.0)}, {"hue": (-0.7, 0.0)}, {"p": -0.1}, {"contrast": None}])
def test_wrong_arguments_of_distort_are_refused(wrong):
    with pytest.raises(cedar.PipelineError, match="photometric_distort"):
        PhotometricDistort(**wrong)
