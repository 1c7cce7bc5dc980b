"""sharpness: the share of rows, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import cedar
from cedar.operators import image
from cedar.operators.image.pixels_steps import SHARPEN
from tests.operators.image.toy_draws import MANY, squares


def test_p_is_the_share_of_rows_that_change():
    steps = image.sharpness(2, p=0.25).steps(squares(len(MANY)), MANY)
    assert abs((steps.codes == SHARPEN).mean() - 0.25) < 0.02
    assert (steps.numbers[:, 0, 0] == 2).all()


def test_one_changes_nothing():
    values = np.random.default_rng(0).integers(0, 256, (9, 8, 3), dtype=np.uint8)
    assert np.array_equal(image.sharpness(1, p=1.0)(values), values)


@pytest.mark.parametrize("wrong", [(-1,), ("much",), (float("inf"),), (2, 1.5)])
def test_wrong_arguments_are_refused(wrong):
    with pytest.raises(cedar.PipelineError, match="sharpness"):
        image.sharpness(*wrong)
