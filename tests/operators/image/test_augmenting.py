"""rand_augment and trivial_augment: which operators rows draw, and how much of them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import cedar
from cedar.operators import image
from cedar.operators.image.augmenting import OPERATORS
from tests.operators.image.toy_draws import MANY, words

ONE_WAY = ("identity", "posterize", "solarize", "autocontrast", "equalize")


def test_all_operators_are_as_likely_in_both_directions():
    told = [each for row in image.rand_augment(2, 15).describe(MANY) for each in row["operators"]]
    assert len(told) == 2 * len(MANY)
    counts = Counter(told)
    for operator in OPERATORS:
        there, back = counts[(operator, 0.5)], counts[(operator, -0.5)]
        assert abs((there + back) * 14 / len(told) - 1) < 0.07
        assert back == 0 if operator in ONE_WAY else abs(there / back - 1) < 0.12


def test_trivial_magnitudes_are_uniform():
    told = [each for row in image.trivial_augment(5).describe(MANY) for each in row["operators"]]
    counts = Counter(abs(share) for _, share in told)
    assert set(counts) == {0, 0.25, 0.5, 0.75, 1}
    assert all(abs(count * 5 / len(MANY) - 1) < 0.07 for count in counts.values())


@pytest.mark.parametrize("augment", [image.rand_augment(), image.trivial_augment()])
def test_a_row_is_the_same_in_any_block(augment):
    values = np.random.default_rng(0).integers(0, 256, (64, 20, 30, 3), dtype=np.uint8)
    draws = MANY.take(np.arange(64))
    whole = augment.columns(values, draws=draws)
    rows = np.array([50, 3, 17])
    assert np.array_equal(augment.columns(values[rows], draws=draws.take(rows)), whole[rows])


def test_it_goes_through_a_pipeline_in_one_pass():
    p = cedar.from_items([{"image": np.full((8, 8, 3), n, dtype=np.uint8)} for n in range(20)])
    p = p.map(image.rand_augment(), "image").map(image.vertical_flip(), "image").map(image.to_float(), "image")
    runs = [np.stack([row["image"] for row in p.loader(executor=kind)]) for kind in ("inline", "threads")]
    assert np.array_equal(*runs)


def test_no_operators_change_nothing():
    values = np.ones((4, 4, 3), dtype=np.uint8)
    assert np.array_equal(image.rand_augment(0)(values, draws=words(1)), values)


@pytest.mark.parametrize(
    "make",
    [
        lambda: image.rand_augment(-1),
        lambda: image.rand_augment(magnitude=31),
        lambda: image.rand_augment(num_magnitude_bins=1),
        lambda: image.rand_augment(magnitude=3.5),
        lambda: image.trivial_augment(num_magnitude_bins=1),
        lambda: image.trivial_augment(interpolation="bicubic"),
    ],
)
def test_other_arguments_are_refused(make):
    with pytest.raises(cedar.PipelineError, match="_augment"):
        make()
