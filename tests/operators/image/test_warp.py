"""rotation, affine and perspective: what rows draw, in any block, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import cedar
from cedar.core.columns import TensorType
from cedar.operators import image
from cedar.operators.algebra import algebra_of
from tests.operators.image.toy_draws import MANY, squares, words

KINDS = [image.rotation(30), image.affine(20, (0.2, 0.1), (0.5, 2.0), 10), image.perspective(0.7, 0.8)]


@pytest.mark.parametrize("warp", KINDS, ids=lambda warp: type(warp).__name__)
def test_a_row_draws_the_same_in_any_block(warp):
    rows = np.array([7, 19_000, 2])
    sizes = np.stack([np.arange(20_000) % 50 + 2, np.arange(20_000) % 31 + 2], axis=1)
    whole, part = warp.describe(MANY, _images(sizes)), warp.describe(MANY.take(rows), _images(sizes[rows]))
    assert [whole[row] for row in rows] == part


def test_angles_are_uniform():
    matrices = np.array([told["matrix"] for told in image.rotation((10, 50)).describe(MANY, _images(squares(20_000)))])
    angles = np.degrees(np.arctan2(matrices[:, 3], matrices[:, 0]))
    counts = np.histogram(angles, bins=10, range=(10, 50))[0]
    assert counts.sum() == 20_000
    assert abs(counts / 2000 - 1).max() < 0.1


def test_p_is_the_share_of_rows_whose_perspective_changes():
    told = image.perspective(0.5, 0.25).describe(MANY, _images(squares(20_000)))
    assert abs(np.mean([each["applied"] for each in told]) - 0.25) < 0.02


def test_an_image_that_is_a_pixel_wide_keeps_its_perspective():
    narrow = np.arange(9, dtype=np.uint8).reshape(9, 1, 1)
    assert np.array_equal(image.perspective(1.0, 1.0)(narrow, draws=words(1)), narrow)


def test_corners_may_meet():
    for word in range(200):  # of three pixels a side, they often do
        assert image.perspective(1.0, 1.0)(np.ones((3, 3, 3), dtype=np.uint8), draws=words(word)).shape == (3, 3, 3)


def test_a_fill_has_a_value_for_each_channel():
    kind = TensorType((8, 8, 3), "uint8")
    assert image.rotation(9, fill=(1, 2, 3)).result(kind) == kind
    with pytest.raises(cedar.PipelineError, match="2 values, the images 3"):
        image.rotation(9, fill=(1, 2)).result(kind)
    with pytest.raises(cedar.PipelineError, match="0 to 255"):
        image.rotation(9, fill=256).result(kind)


def test_nothing_moves_past_them():
    assert {algebra_of(warp) for warp in KINDS} == {"resampling"}


@pytest.mark.parametrize(
    "make",
    [
        lambda: image.rotation("much"),
        lambda: image.rotation(-5),
        lambda: image.rotation((30, 10)),
        lambda: image.rotation(30, "bicubic"),
        lambda: image.rotation(30, center=(1, 2, 3)),
        lambda: image.affine(0, (0.5, 1.5)),
        lambda: image.affine(0, scale=(0, 1)),
        lambda: image.affine(0, shear=(1, 2, 3)),
        lambda: image.perspective(1.5),
        lambda: image.perspective(p=-1),
        lambda: image.perspective(fill="white"),
    ],
)
def test_other_arguments_are_refused(make):
    with pytest.raises(cedar.PipelineError) as caught:
        make()
    assert caught.value.site is not None


def _images(sizes):
    """Images of some sizes, of no memory."""
    made = np.empty(len(sizes), dtype=object)
    for row, (height, width) in enumerate(sizes.tolist()):
        made[row] = np.broadcast_to(np.zeros(3, dtype=np.uint8), (height, width, 3))
    return made
