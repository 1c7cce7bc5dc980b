"""Steps of pixel operators: joined, with their tables, and told."""

from __future__ import annotations

import numpy as np

from cedar.operators.image.pixels_steps import (
    BLUR,
    BRIGHTNESS,
    NONE,
    PERMUTE,
    SOLARIZE,
    Steps,
    concatenate_steps,
    one_step,
)


def blur(*tables):
    return Steps(np.array([[BLUR]]), np.array([[[0.0, len(tables) - 1.0]]]), [np.float32(table) for table in tables])


def test_joined_steps_point_to_their_own_tables():
    steps = [blur([1], [1, 2, 3]), one_step(1, BRIGHTNESS, 0.5), blur([4, 5, 6, 7, 8])]
    codes, numbers, tables, lengths = concatenate_steps(steps, 1)
    assert codes.tolist() == [[BLUR, BRIGHTNESS, BLUR]]
    assert numbers.tolist() == [[[0, 1], [0.5, 0], [2, 2]]]
    assert tables.tolist() == [[1, 0, 0, 0, 0], [1, 2, 3, 0, 0], [4, 5, 6, 7, 8]]
    assert lengths.tolist() == [1, 3, 5]


def test_no_steps_of_some_rows():
    codes, numbers, tables, lengths = concatenate_steps([], 3)
    assert codes.shape == (3, 0)
    assert numbers.shape == (3, 0, 2)
    assert tables.shape == (0, 0)
    assert lengths.shape == (0,)


def test_a_step_for_some_rows_is_told_of_them():
    steps = one_step(2, SOLARIZE, 90.0, np.array([True, False]))
    assert steps.codes.tolist() == [[SOLARIZE], [NONE]]
    turned = steps.followed_by(one_step(2, PERMUTE, 2 + (0 << 2) + (1 << 4)))
    assert turned.describe() == [
        {"applied": True, "threshold": 90.0, "channels": (2, 0, 1)},
        {"applied": True, "channels": (2, 0, 1)},
    ]
    assert steps.describe()[1] == {"applied": False}
