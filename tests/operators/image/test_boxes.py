"""Boxes beside images: iou_crop against torchvision's loop, boxes that go, kinds of columns."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.columns import objects
from cedar.operators import image
from cedar.operators.draws import Draws
from cedar.operators.transform import BadValues
from tests.operators.image.toy_image_values import BOXES, picture

FIXED = pa.large_list(pa.list_(pa.float32(), 4))
NESTED = pa.large_list(pa.large_list(pa.float64()))


def words(*values):
    return Draws(np.array(values, dtype=np.uint64))


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
    """torchvision would draw for ever: no part of such an image has its sides in proportion."""
    pixels = picture(1, 60)
    boxes = np.array([[0, 0, 60, 1]], dtype=np.float32)
    made, moved = image.iou_crop(overlaps=(0.9,))(pixels, boxes, draws=words(4))
    assert np.array_equal(made, pixels)
    assert np.array_equal(moved, boxes)


COLUMNS = {
    "objects": lambda rows: objects([np.array(r, dtype=np.float32).reshape(-1, 4) for r in rows]),
    "fixed": lambda rows: pa.array(rows, FIXED),
    "nested": lambda rows: pa.array(rows, NESTED),
}


def as_lists(column):
    return [
        np.array(r, dtype=np.float64).reshape(-1, 4).tolist()
        for r in (column.to_pylist() if isinstance(column, pa.Array) else column)
    ]


@pytest.mark.parametrize("kind", list(COLUMNS))
def test_kinds_of_columns_come_out_as_they_went_in(kind):
    rows = [BOXES, [], BOXES[:1]]
    column = COLUMNS[kind](rows)
    images = objects([picture(), picture(5, 5), picture(7, 9)])
    made, moved = image.horizontal_flip(1.0).columns(images, column, draws=words(1, 2, 3))
    assert [m.shape for m in made] == [(6, 9, 3), (5, 5, 3), (7, 9, 3)]
    assert type(moved) is type(column)
    assert not isinstance(moved, pa.Array) or moved.type == column.type
    assert as_lists(moved) == [[[9 - b[2], b[1], 9 - b[0], b[3]] for b in row] for row in rows]


@pytest.mark.parametrize("kind", list(COLUMNS))
def test_small_boxes_go_with_their_labels(kind):
    rows = [[[0, 0, 5, 5], [1, 1, 1.5, 9]], [], [[3, 3, 3, 3]]]
    labels = pa.array([["cat", "dog"], [], ["cow"]], pa.large_list(pa.large_string()))
    kept, names = image.sanitize_boxes().columns(COLUMNS[kind](rows), labels)
    assert as_lists(kept) == [[[0, 0, 5, 5]], [], []]
    assert names.to_pylist() == [["cat"], [], []]
    _, arrays = image.sanitize_boxes().columns(
        COLUMNS[kind](rows), objects([np.array([1, 2]), np.array([]), np.array([3])])
    )
    assert [a.tolist() for a in arrays] == [[1], [], []]


def test_rows_whose_boxes_do_not_fit_fail():
    images = objects([picture()] * 5)
    boxes = objects([np.zeros((1, 4)), None, np.zeros((2, 3)), "no", np.full((1, 4), np.nan)])
    with pytest.raises(BadValues) as caught:
        image.horizontal_flip(1.0).columns(images, boxes, draws=words(*range(5)))
    assert sorted(caught.value.rows) == [1, 2, 3, 4]
    assert "shape (2, 3)" in caught.value.rows[2]
    assert "finite" in caught.value.rows[4]
    labels = pa.array([[1], [1, 2]], pa.large_list(pa.int64()))
    with pytest.raises(BadValues) as caught:
        image.sanitize_boxes().columns(objects([np.zeros((1, 4)), np.zeros((1, 4))]), labels)
    assert caught.value.rows == {1: "2 entries for 1 boxes"}


def test_images_of_one_size_with_as_many_boxes_stay_tensors():
    images, boxes = np.stack([picture(), picture()]), np.array([BOXES, BOXES], dtype=np.float32)
    made, moved = image.resize((12, 18)).columns(images, boxes)
    assert made.shape == (2, 12, 18, 3)
    assert np.array_equal(moved, boxes * 2)


def test_the_users_boxes_are_not_written_to():
    boxes = np.array(BOXES, dtype=np.float32)
    image.horizontal_flip(1.0)(picture(), boxes, draws=words(1))
    image.crop(1, 1, 3, 3)(picture(), boxes)
    assert np.array_equal(boxes, np.array(BOXES, dtype=np.float32))
