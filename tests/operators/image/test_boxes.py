"""Boxes next to images: kinds of columns, boxes that go, and boxes that do not fit."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import cedar
from cedar.core.columns import TensorType, objects
from cedar.core.errors import PipelineError
from cedar.operators import image
from cedar.operators.image.layout import ImageType, PlanarType
from cedar.operators.transform import BadValues
from tests.operators.image.toy_draws import words
from tests.operators.image.toy_image_values import BOXES, picture

FIXED = pa.large_list(pa.list_(pa.float32(), 4))
NESTED = pa.large_list(pa.large_list(pa.float64()))
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


IMAGES, LABELS = ImageType(3, "uint8"), pa.large_list(pa.int64())
POLYGONS = pa.large_list(pa.large_list(pa.large_list(pa.float32())))


@pytest.mark.parametrize(
    "columns",
    [
        [ImageType(1, "uint8")], [PlanarType()], [TensorType((6, 9, 1), "uint8")], [FIXED, ImageType(1, "uint8")],
        [FIXED, TensorType((2, 6, 9), "bool")], [FIXED, POLYGONS], [FIXED, LABELS, TensorType((2, 17, 3), "float32")],
    ],
)  # fmt: skip
def test_masks_polygons_and_keypoints_are_refused_as_they_would_not_move(columns):
    with pytest.raises(PipelineError) as caught:
        image.horizontal_flip().result(IMAGES, *columns)
    assert '"mask", name="flip"' in caught.value.fix


def test_masks_that_are_python_objects_fail_as_they_would_not_move():
    images, boxes = objects([picture()] * 2), objects([np.zeros((1, 4), dtype=np.float32)] * 2)
    for masks in (np.zeros((1, 6, 9)), [np.zeros((6, 9))]):
        with pytest.raises(BadValues, match=r"shape \(6, 9\) for each box") as caught:
            image.horizontal_flip(1.0).columns(images, boxes, objects([[7], masks]), draws=words(1, 2))
        assert list(caught.value.rows) == [1]
    kept = image.sanitize_boxes().columns(boxes, objects([np.zeros((1, 6, 9))] * 2))  # moves nothing
    assert [entries.shape for entries in kept[1]] == [(0, 6, 9)] * 2


@pytest.mark.parametrize(
    "boxes",
    [[[[1, 2, 3, 4]], [[1, 2, 3, 5], [0, 0, 9, 9]]], [np.array([[1, 2, 3, 4]]), np.array([[0, 0, 9, 9]])]],
)
def test_boxes_of_integers_are_refused_with_a_call_that_makes_floats(boxes):
    p = cedar.from_items([{"image": picture(), "boxes": own} for own in boxes])
    with pytest.raises(PipelineError, match="takes boxes") as caught:
        list(p.map(image.resize((12, 18)), "image", "boxes"))
    call = caught.value.fix.partition(": .")[2]
    moved = [row["boxes"] for row in eval(f"p.{call}", {"p": p}).map(image.resize((12, 18)), "image", "boxes")]
    assert as_lists(moved) == [[[2 * x for x in box] for box in np.array(own).tolist()] for own in boxes]
