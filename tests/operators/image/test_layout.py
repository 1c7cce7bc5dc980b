"""What a column of images is: what is refused by its type, and by its rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import cedar
from benchmarks.mutated_images import encoded
from cedar.core.columns import OBJECT, TensorType, objects
from cedar.core.errors import PipelineError
from cedar.operators import image
from cedar.operators.draws import Draws
from cedar.operators.image.layout import ImageType
from cedar.operators.transform import BadValues
from tests.operators.image.toy_image_values import picture


@pytest.mark.parametrize(
    ("make", "kinds", "says"),
    [
        (lambda: image.resize(4), (pa.int64(),), "takes images"),
        (lambda: image.resize(4), (TensorType((3, 6, 9), "uint8"),), "takes images"),
        (lambda: image.resize(4), (TensorType((6, 9, 3), "float64"),), "takes images"),
        (lambda: image.decode(), (pa.large_string(),), "bytes of image files"),
        (lambda: image.decode(), (pa.struct({"bytes": pa.binary(), "path": pa.string()}),), '.struct.field("bytes")'),
        (lambda: image.horizontal_flip(), (OBJECT, pa.int64()), "takes boxes: lists of four floats"),
        (lambda: image.iou_crop(), (OBJECT,), "reads images and boxes"),
        (lambda: image.random_resized_crop(4), (ImageType(None),), "their numbers of channels differ"),
    ],
)
def test_refuses_columns_that_it_cannot_read(make, kinds, says):
    with pytest.raises(PipelineError) as caught:
        make().result(*kinds)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("transforms", "advice"),
    [
        ([image.normalize((0.5,), (0.5,))], "put to_float() before it"),
        ([image.to_float(), image.color_jitter(0.4)], "put it before to_float()"),
        ([image.to_float(), image.rotation(10)], "put it before to_float()"),
        ([image.to_float(), image.to_float()], "use to_float() once"),
    ],
)
@pytest.mark.parametrize("column", [np.stack([picture()] * 2), objects([picture(), picture(4, 4)])])
def test_an_operator_on_the_wrong_side_of_to_float_is_told_where_to_go(transforms, advice, column):
    p = cedar.from_items([{"image": each} for each in column])
    for transform in transforms:
        p = p.map(transform, "image")
    with pytest.raises(cedar.CedarError) as caught:
        list(p)
    assert advice in caught.value.fix


def test_files_in_structs_are_refused_with_a_call_that_takes_their_bytes():
    data = pa.array([{"bytes": encoded("png", picture()), "path": "a.png"}])
    p = cedar.from_arrow(pa.table({"image": data}))
    with pytest.raises(PipelineError, match="bytes of image files") as caught:
        list(p.map(image.decode(), "image"))
    call = caught.value.fix.partition("example .")[2]
    taken = eval(f"p.{call}", {"p": p, "col": cedar.col})
    assert np.array_equal(next(iter(taken.map(image.decode(), "bytes", into="image")))["image"], picture())


def test_pil_images_are_refused_with_a_call_that_makes_arrays():
    pil = pytest.importorskip("PIL.Image")
    p = cedar.from_items([{"image": pil.fromarray(picture())} for _ in range(2)])
    with pytest.raises(cedar.RowError, match="a PIL image is not an array") as caught:
        list(p.map(image.resize(4), "image"))
    assert ".map(np.asarray, 'image')" in str(caught.value)
    assert next(iter(p.map(np.asarray, "image").map(image.resize(4), "image")))["image"].shape == (4, 6, 3)


def test_what_is_no_image_fails_by_its_row():
    column = objects([picture(), None, np.zeros((3, 3)), "text", np.zeros((0, 3, 3), dtype=np.uint8), picture(4, 4)])
    with pytest.raises(BadValues) as caught:
        image.horizontal_flip(1.0).columns(column, draws=Draws(np.arange(6, dtype=np.uint64)))
    assert sorted(caught.value.rows) == [1, 2, 3, 4]
    assert "no image" in caught.value.rows[1]
    assert "shape (3, 3)" in caught.value.rows[2]
