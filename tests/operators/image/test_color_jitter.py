"""color_jitter: which changes a row draws, and what arguments are refused."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")

import cedar
from cedar.operators.algebra import algebra_of
from cedar.operators.image.color_jitter import CODES, ColorJitter
from cedar.operators.image.distort import PhotometricDistort
from cedar.operators.image.pixels_steps import BRIGHTNESS, CONTRAST, HUE, NONE, SATURATION
from tests.operators.image.toy_draws import MANY, squares


def test_draws_are_uniform_and_their_order_is():
    steps = ColorJitter(0.8, (0.5, 0.6), 2.0, 0.2).steps(squares(len(MANY)), MANY)
    for code, low, high in ((BRIGHTNESS, 0.2, 1.8), (CONTRAST, 0.5, 0.6), (SATURATION, 0.0, 3.0), (HUE, -0.2, 0.2)):
        drawn = steps.numbers[:, :, 0][steps.codes == code]
        assert len(drawn) == len(MANY)
        assert low <= drawn.min()
        assert drawn.max() <= high
        counts = np.histogram(drawn, bins=10, range=(low, high))[0]
        assert abs(counts / 2000 - 1).max() < 0.1
        places = np.bincount(np.flatnonzero((steps.codes == code).ravel()) % 4, minlength=4)
        assert abs(places / 5000 - 1).max() < 0.06
    orders = np.unique(steps.codes, axis=0, return_counts=True)[1]
    assert len(orders) == 24
    assert abs(orders / (20_000 / 24) - 1).max() < 0.15


def test_p_is_the_share_of_rows_that_change():
    steps = ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.3).steps(squares(len(MANY)), MANY)
    changed = (steps.codes != NONE).any(1)
    assert abs(changed.mean() - 0.3) < 0.015
    assert ((steps.codes != NONE).sum(1)[changed] == 4).all()


def test_a_row_draws_the_same_in_any_block():
    jitter = ColorJitter(0.8, 0.8, 0.8, 0.2, p=0.8)
    whole = jitter.steps(squares(len(MANY)), MANY)
    part = jitter.steps(squares(3), MANY.take(np.array([7, 19_000, 2])))
    assert np.array_equal(whole.codes[[7, 19_000, 2]], part.codes)
    assert np.array_equal(whole.numbers[[7, 19_000, 2]], part.numbers)


def test_what_changes_nothing_draws_nothing():
    image = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    for jitter in (ColorJitter(), ColorJitter(brightness=0.0, hue=0), ColorJitter(contrast=(1.0, 1.0))):
        assert not jitter.random
        assert np.array_equal(jitter(image), image)
    assert ColorJitter(brightness=0.1).random
    assert ColorJitter(p=0.5).random


def test_without_contrast_it_is_pointwise():
    assert algebra_of(ColorJitter(0.8, None, 0.8, 0.2)) == "pointwise"
    assert algebra_of(ColorJitter(0.8, 0.8)) is None  # it looks at the whole image
    assert algebra_of(PhotometricDistort()) is None


def test_equal_arguments_make_equal_transforms():
    assert ColorJitter(0.8, hue=0.2) == ColorJitter((0.19999999999999996, 1.8), None, None, (-0.2, 0.2))
    assert hash(ColorJitter(0.8)) == hash(ColorJitter(0.8))
    assert ColorJitter(0.8) != ColorJitter(0.7)


@pytest.mark.parametrize(
    "wrong",
    [
        {"brightness": -0.1}, {"contrast": (2.0, 1.0)}, {"saturation": (-1.0, 1.0)}, {"hue": 0.6}, {"hue": -0.1},
        {"hue": (-0.6, 0.1)}, {"brightness": "much"}, {"brightness": (1.0, 2.0, 3.0)}, {"p": 1.5},
        {"contrast": (0.0, float("inf"))}, {"contrast": float("nan")},
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(wrong):
    with pytest.raises(cedar.PipelineError, match="color_jitter"):
        ColorJitter(**wrong)


def test_codes_are_in_the_order_of_torchvisions_numbers():
    assert CODES == (BRIGHTNESS, CONTRAST, SATURATION, HUE)
