"""erasing: torchvision's loop on the same draws, and what stays unchanged."""

from __future__ import annotations

import math

import numpy as np
import pytest

import cedar
from cedar.operators import image
from tests.operators.image.toy_draws import MANY, words


def drawn_part(erasing, row, height, width):
    """torchvision's loop: top, left, height and width of the part; None: nothing is erased."""
    numbers = MANY.take(np.array([row])).uniform(41)[0]
    if numbers[0] >= erasing.p:
        return None
    low, high = erasing.scale
    tall, flat = math.log(erasing.ratio[1]), math.log(erasing.ratio[0])
    for share, ratio, top, left in numbers[1:].reshape(10, 4):
        area, ratio = height * width * (low + share * (high - low)), math.exp(tall + ratio * (flat - tall))
        h, w = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < h < height and 0 < w < width:
            return math.floor(top * (height - h + 1)), math.floor(left * (width - w + 1)), h, w
    return None


def test_is_the_loop_of_torchvision():
    erasing = image.erasing(p=0.7, scale=(0.02, 0.9))
    sizes = np.stack([np.arange(300) % 17 + 1, np.arange(300) % 31 + 1], axis=1)
    parts = erasing.moves(sizes, None, MANY.take(np.arange(300))).erase.tolist()
    wanted = [drawn_part(erasing, row, *size) for row, size in enumerate(sizes.tolist())]
    assert parts == [list(part or (0, 0, 0, 0)) for part in wanted]
    assert 100 < sum(part is None for part in wanted) < 200


def test_a_part_becomes_the_value_and_nothing_else_changes():
    picture = np.random.default_rng(1).random((20, 30, 3)).astype(np.float32)
    erasing = image.erasing(p=1.0, value=(1.0, 2.0, -3.0))
    kept, (told,) = picture.copy(), erasing.describe(words(5), picture[None])
    made = erasing(picture, draws=words(5))
    assert np.array_equal(picture, kept)
    top, left = told["top"], told["left"]
    kept[top : top + told["height"], left : left + told["width"]] = (1.0, 2.0, -3.0)
    assert np.array_equal(made, kept)
    assert not np.array_equal(made, picture)


def test_bytes_hold_the_value_or_it_is_refused():
    picture = np.zeros((9, 9, 3), dtype=np.uint8)
    assert image.erasing(p=1.0, value=9)(picture, draws=words(5)).max() == 9
    with pytest.raises(cedar.PipelineError, match=r"Erasing\(value=\(300,\)\): uint8 images hold values from 0 to 255"):
        image.erasing(value=300)(picture, draws=words(5))


def test_boxes_stay():
    boxes = np.array([[1, 2, 5, 6]], dtype=np.float32)
    _, moved = image.erasing(p=1.0)(np.zeros((9, 9, 3), dtype=np.uint8), boxes, draws=words(5))
    assert np.array_equal(moved, boxes)
