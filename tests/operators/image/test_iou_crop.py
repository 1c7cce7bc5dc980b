"""iou_crop against torchvision's loop, on the same draws."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cedar.operators import image
from tests.operators.image.toy_draws import words
from tests.operators.image.toy_image_values import picture


@st.composite
def some_boxes(draw):
    """A height, a width, and boxes in such an image."""
    height, width = draw(st.integers(2, 90)), draw(st.integers(2, 90))
    corner = st.tuples(st.floats(0, 1, width=32), st.floats(0, 1, width=32))
    boxes = []
    for (x0, y0), (x1, y1) in draw(st.lists(st.tuples(corner, corner), max_size=5)):
        boxes.append([min(x0, x1) * width, min(y0, y1) * height, max(x0, x1) * width, max(y0, y1) * height])
    return height, width, np.array(boxes, dtype=np.float32).reshape(-1, 4)


def plain_iou_crop(height, width, boxes, draws, overlaps=(0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0), trials=40):
    """torchvision's loop: top, left, height, width and which boxes stay; None: nothing is cut."""
    for turn in range(50):
        numbers = draws.uniform(1 + 4 * trials, first=turn * (1 + 4 * trials))[0].tolist()
        least = overlaps[int(numbers[0] * len(overlaps))]
        if least >= 1.0:
            return None
        for i in range(trials):
            a, b, c, d = numbers[1 + 4 * i : 5 + 4 * i]
            wide, tall = int(width * (0.3 + (1.0 - 0.3) * a)), int(height * (0.3 + (1.0 - 0.3) * b))
            if not tall or not 0.5 <= wide / tall <= 2.0:
                continue
            left, top = int((width - wide) * c), int((height - tall) * d)
            right, bottom = left + wide, top + tall
            if left == right or top == bottom:
                continue
            x, y = (boxes[:, 0] + boxes[:, 2]) / 2, (boxes[:, 1] + boxes[:, 3]) / 2
            inside = (left < x) & (x < right) & (top < y) & (y < bottom)
            if not inside.any():
                continue
            best = 0.0
            for x0, y0, x1, y1 in boxes[inside]:
                shared = max(min(x1, right) - max(x0, left), np.float32(0)) * max(
                    min(y1, bottom) - max(y0, top), np.float32(0)
                )
                union = np.float32(wide * tall) + (x1 - x0) * (y1 - y0) - shared
                best = max(best, shared / union)
            if best < np.float32(least):
                continue
            return top, left, tall, wide, inside
    return None


@given(some_boxes(), st.integers(0, 1 << 63))
def test_iou_crop_follows_its_draws(case, word):
    height, width, boxes = case
    pixels = picture(height, width)
    made, moved, labels = image.iou_crop()(pixels, boxes, list(range(len(boxes))), draws=words(word))
    found = plain_iou_crop(height, width, boxes, words(word)) if len(boxes) else None
    if found is None:
        assert np.array_equal(made, pixels)
        assert np.array_equal(moved, boxes)
        assert labels == list(range(len(boxes)))
        return
    top, left, tall, wide, inside = found
    assert np.array_equal(made, pixels[top : top + tall, left : left + wide])
    expected = boxes[inside] - np.array([left, top, left, top], dtype=np.float32)
    assert np.array_equal(moved, np.clip(expected, 0, np.array([wide, tall, wide, tall], dtype=np.float32)))
    assert labels == np.flatnonzero(inside).tolist()


def test_iou_crop_without_an_overlap_that_leaves_the_image_ends():
    """torchvision would draw forever: no part of such an image has its sides in proportion."""
    pixels = picture(1, 60)
    boxes = np.array([[0, 0, 60, 1]], dtype=np.float32)
    made, moved = image.iou_crop(overlaps=(0.9,))(pixels, boxes, draws=words(4))
    assert np.array_equal(made, pixels)
    assert np.array_equal(moved, boxes)
