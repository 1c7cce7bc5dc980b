"""What a column of images is: what is refused by its type, and by its rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

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
        (lambda: image.decode(), (pa.struct({"bytes": pa.binary(), "path": pa.string()}),), ".struct.field('bytes')"),
        (lambda: image.horizontal_flip(), (OBJECT, pa.int64()), "takes boxes: lists of four floats"),
        (lambda: image.iou_crop(), (OBJECT,), "reads images and boxes"),
        (lambda: image.random_resized_crop(4), (ImageType(None),), "their numbers of channels differ"),
    ],
)
def test_refuses_columns_that_it_cannot_read(make, kinds, says):
    with pytest.raises(PipelineError) as caught:
        make().result(*kinds)
    assert says in str(caught.value)


def test_what_is_no_image_fails_by_its_row():
    column = objects([picture(), None, np.zeros((3, 3)), "text", np.zeros((0, 3, 3), dtype=np.uint8), picture(4, 4)])
    with pytest.raises(BadValues) as caught:
        image.horizontal_flip(1.0).columns(column, draws=Draws(np.arange(6, dtype=np.uint64)))
    assert sorted(caught.value.rows) == [1, 2, 3, 4]
    assert "no image" in caught.value.rows[1]
    assert "shape (3, 3)" in caught.value.rows[2]
