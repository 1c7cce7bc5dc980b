"""random_crop, and random_resized_crop: torchvision's loop on the same draws, and how its parts are distributed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.operators import image
from cedar.operators.draws import Draws
from cedar.operators.transform import BadValues
from tests.operators.image.toy_draws import words
from tests.operators.image.toy_image_values import picture


@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 1 << 63))
def test_random_resized_crop_follows_its_draws(height, width, word):
    """The loop of torchvision, on the same numbers."""
    draws = Draws(np.array([word], dtype=np.uint64))
    numbers = draws.uniform(40).reshape(10, 4)
    log_low, log_high = math.log(3 / 4), math.log(4 / 3)
    for area, ratio, y, x in numbers.tolist():
        target = height * width * (0.08 + (1.0 - 0.08) * area)
        shape = math.exp(log_low + (log_high - log_low) * ratio)
        wide, tall = round(math.sqrt(target * shape)), round(math.sqrt(target / shape))
        if 0 < wide <= width and 0 < tall <= height:
            expected = [math.floor(y * (height - tall + 1)), math.floor(x * (width - wide + 1)), tall, wide]
            break
    else:
        wide, tall = width, height
        if width / height < 3 / 4:
            tall = round(width / (3 / 4))
        elif width / height > 4 / 3:
            wide = round(height * (4 / 3))
        expected = [(height - tall) // 2, (width - wide) // 2, tall, wide]
    found = image.random_resized_crop(7).moves(np.array([[height, width]]), None, draws).cut
    assert found.tolist() == [expected]


def test_random_resized_crop_is_distributed_as_it_says():
    rows = 20_000
    draws = Draws(np.random.default_rng(1).integers(0, 1 << 63, rows).astype(np.uint64))
    sizes = np.broadcast_to(np.array([1000, 1000]), (rows, 2))
    cut = image.random_resized_crop(8, scale=(0.1, 0.3)).moves(sizes, None, draws).cut
    share, ratio = cut[:, 2] * cut[:, 3] / 1e6, np.log(cut[:, 3] / cut[:, 2])
    for values, low, high in ((share, 0.1, 0.3), (ratio, math.log(3 / 4), math.log(4 / 3))):
        counts, _ = np.histogram(values, bins=10, range=(low - 1e-3, high + 1e-3))
        assert (np.abs(counts - rows / 10) < 6 * math.sqrt(rows / 10)).all()
    assert abs(np.mean(cut[:, 0] / (1000 - cut[:, 2])) - 0.5) < 0.01


@given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 5), st.integers(0, 1 << 63))
def test_random_crop_is_a_part_of_the_padded_image(height, width, padding, word):
    """As in torchvision: pad, then crop at a place that is drawn uniformly; boxes move along."""
    values, draws = picture(height, width), words(word)
    size = (max(1, height + padding - 3), max(1, width + padding - 2))
    boxes = np.array([[0, 0, width, height]], dtype=np.float32)
    made, moved = image.random_crop(size, padding, fill=9)(values, boxes, draws=draws)
    padded = np.pad(values, ((padding, padding), (padding, padding), (0, 0)), constant_values=9)
    surplus = np.array(padded.shape[:2]) - size
    top, left = np.floor(draws.uniform(2)[0] * (surplus + 1)).astype(int).tolist()
    assert np.array_equal(made, padded[top : top + size[0], left : left + size[1]])
    start = np.array([padding - left, padding - top])
    ends = np.concatenate([start, start + np.array([width, height])])
    assert moved.tolist() == [np.clip(ends, 0, [size[1], size[0]] * 2).tolist()]


def test_random_crop_reaches_every_place():
    draws = Draws(np.arange(2000, dtype=np.uint64))
    moves = image.random_crop(4, padding=1).moves(np.full((2000, 2), 4), None, draws)
    assert {tuple(corner) for corner in moves.corner.tolist()} == {(y, x) for y in (-1, 0, 1) for x in (-1, 0, 1)}


def test_an_image_that_is_too_small_for_a_random_crop_fails():
    small, large = picture(3, 9), picture(5, 9)
    images = np.empty(2, dtype=object)
    images[:] = [small, large]
    with pytest.raises(BadValues, match="9 x 3 pixels is too small for a part of 4 x 6") as caught:
        image.random_crop((6, 4), padding=1).columns(images, draws=words(1, 2))
    assert list(caught.value.rows) == [0]
    assert "padding=" in caught.value.fix
