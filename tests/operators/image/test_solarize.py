"""solarize, posterize, autocontrast and equalize: Pillow's values, and the share of rows that change."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")
Image = pytest.importorskip("PIL.Image")
ImageOps = pytest.importorskip("PIL.ImageOps")

from cedar.operators.image.pixels_steps import NONE  # noqa: E402
from cedar.operators.image.solarize import Autocontrast, Equalize, Posterize, Solarize  # noqa: E402
from tests.operators.image.toy_draws import MANY, squares  # noqa: E402

PICTURE = (np.random.default_rng(0).integers(0, 40, (64, 50, 3)) ** 2 // 7 + [3, 20, 0]).astype(np.uint8)


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        *((Solarize(at, p=1.0), lambda image, at=at: ImageOps.solarize(image, at)) for at in (0, 100, 255)),
        *((Posterize(bits, p=1.0), lambda image, bits=bits: ImageOps.posterize(image, bits)) for bits in (1, 3, 8)),
        (Equalize(p=1.0), ImageOps.equalize),
    ],
)
def test_is_pillows(made, wanted):
    assert np.array_equal(made(PICTURE), np.asarray(wanted(Image.fromarray(PICTURE))))


def test_each_channel_is_stretched_by_itself():
    image = np.array([[[10, 0, 9], [20, 128, 9], [30, 255, 9]]], dtype=np.uint8)
    assert Autocontrast(p=1.0)(image).tolist() == [[[0, 0, 9], [127, 128, 9], [254, 255, 9]]]  # rounded down


@pytest.mark.parametrize("made", [Solarize(9, p=0.25), Posterize(3, p=0.25), Autocontrast(p=0.25), Equalize(p=0.25)])
def test_p_is_the_share_of_rows_that_change(made):
    assert abs((made.steps(squares(len(MANY)), MANY).codes != NONE).mean() - 0.25) < 0.02
