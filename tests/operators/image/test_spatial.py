"""Spatial operators against what torchvision made of one picture; their types, arguments and algebra."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from cedar.core.columns import OBJECT, UNKNOWN, TensorType
from cedar.core.errors import PipelineError
from cedar.operators import image
from cedar.operators.algebra import algebra_of
from cedar.operators.image.layout import ImageType
from tests.operators.image.toy_draws import words
from tests.operators.image.toy_image_values import BOXES, EXPECTED, picture

ONE = words(3)


@pytest.mark.parametrize("call", [name for name in EXPECTED if name != "resized_crop"])
def test_is_what_torchvision_makes(call):
    first, total, boxes = EXPECTED[call]
    operator = eval(f"image.{call}", {"image": image})
    options = {"draws": ONE} if operator.random else {}
    if boxes is None:
        made = operator(picture(), **options)
    else:
        made, moved = operator(picture(), np.array(BOXES, dtype=np.float32), **options)
        np.testing.assert_allclose(moved, np.array(boxes), atol=1e-6)
    assert made[:, :, 0].tolist() == first
    assert int(made.astype(int).sum()) == total


def test_types():
    tensor, ragged = TensorType((6, 9, 3), "uint8"), ImageType(3, "uint8")
    assert image.resize((4, 5)).result(ragged) == TensorType((4, 5, 3), "uint8")
    assert image.resize(4).result(ragged) == ragged
    assert image.resize(4).result(tensor) == TensorType((4, 6, 3), "uint8")
    assert image.random_resized_crop(4).result(ImageType(1, "float32")) == TensorType((4, 4, 1), "float32")
    assert image.random_resized_crop(4).result(OBJECT) == UNKNOWN
    assert image.horizontal_flip().result(tensor, OBJECT, pa.large_list(pa.int64())) == (
        tensor, OBJECT, pa.large_list(pa.int64()),
    )  # fmt: skip
    assert image.expand().result(tensor) == ragged
    assert image.channels_first().result(tensor) == TensorType((3, 6, 9), "uint8")
    assert image.decode().result(pa.large_binary()) == ragged
    assert image.decode(mode="UNCHANGED").result(pa.large_binary()) == ImageType(None, "uint8")


@pytest.mark.parametrize(
    "make",
    [
        lambda: image.resize(0),
        lambda: image.resize((4, 5, 6)),
        lambda: image.resize(4, interpolation="cubic"),
        lambda: image.resize(4, max_size=4),
        lambda: image.resize((4, 5), max_size=9),
        lambda: image.resize(4, interpolation="bicubic", antialias=False),
        lambda: image.center_crop("4"),
        lambda: image.crop(0, 0, 0, 4),
        lambda: image.random_crop((4, 5, 6)),
        lambda: image.random_crop(4, padding=-1),
        lambda: image.random_crop(4, padding=1, fill="red"),
        lambda: image.random_resized_crop(4, scale=(1.0, 0.5)),
        lambda: image.random_resized_crop(4, ratio=(0.0, 1.0)),
        lambda: image.horizontal_flip(1.5),
        lambda: image.vertical_flip(-0.5),
        lambda: image.erasing(2.0),
        lambda: image.erasing(scale=(0.1, 1.5)),
        lambda: image.erasing(ratio=(3.0, 0.3)),
        lambda: image.erasing(value="random"),
        lambda: image.pad(-1),
        lambda: image.pad((1, 2, 3)),
        lambda: image.pad(1, mode="wrap"),
        lambda: image.pad(1, fill="black"),
        lambda: image.expand(side_range=(0.5, 2.0)),
        lambda: image.iou_crop(max_scale=1.5),
        lambda: image.iou_crop(overlaps=()),
        lambda: image.decode(mode="CMYK"),
    ],
)
def test_refuses_arguments_that_do_not_fit(make):
    with pytest.raises(PipelineError):
        make()


def test_algebra_is_spatial_only_where_no_pixel_is_made():
    assert algebra_of(image.horizontal_flip()) == algebra_of(image.crop(0, 0, 4, 4)) == "spatial"
    assert algebra_of(image.vertical_flip()) == "spatial"
    assert algebra_of(image.erasing()) is None
    assert algebra_of(image.center_crop(4, fill=None)) == algebra_of(image.random_crop(4)) == "spatial"
    assert algebra_of(image.random_crop(4, padding=1)) is None
    assert algebra_of(image.center_crop(4)) is algebra_of(image.crop(0, 0, 4, 4, fill=0)) is None
    assert algebra_of(image.pad(1)) is algebra_of(image.expand()) is algebra_of(image.iou_crop()) is None
    assert algebra_of(image.resize(4)) == algebra_of(image.random_resized_crop(4)) == "resampling"


def test_an_image_that_would_not_fit_into_memory_fails(monkeypatch):
    monkeypatch.setenv("CEDAR_MAX_PIXELS", "10000")
    with pytest.raises(ValueError) as caught:
        image.resize(50)(picture(1, 9))
    assert "would become 450 x 50" in str(caught.value)
    with pytest.raises(ValueError) as caught:
        image.expand(side_range=(40.0, 40.0), p=1.0)(picture(6, 9), draws=ONE)
    assert "canvas" in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: image.pad(1.5),
        lambda: image.pad(1, fill=None),
        lambda: image.pad(1, fill="red"),
        lambda: image.resize(22.4),
        lambda: image.resize("22"),
        lambda: image.random_resized_crop(None),
        lambda: image.iou_crop(overlaps=3),
        lambda: image.iou_crop(overlaps="ab"),
        lambda: image.sanitize_boxes("a"),
        lambda: image.decode(exif="x"),
    ],
)
def test_arguments_are_refused_at_the_users_line(make):
    with pytest.raises(PipelineError) as caught:
        make()
    assert caught.value.site is not None
    assert "object is not" not in str(caught.value)
