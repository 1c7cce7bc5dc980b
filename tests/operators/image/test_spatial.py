"""Spatial operators against what torchvision made of one picture, and against the parts of Pillow's resizing."""

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from cedar.core.columns import OBJECT, UNKNOWN, TensorType, objects
from cedar.core.errors import PipelineError
from cedar.operators import image
from cedar.operators.algebra import algebra_of
from cedar.operators.draws import Draws
from cedar.operators.image.layout import ImageType
from cedar.operators.image.moves import RowMoves, Steps, moved_boxes
from tests.operators.image.toy_image_values import BOXES, EXPECTED, RESIZED_CROP, picture

ONE = Draws(np.array([3], dtype=np.uint64))
SIDES = st.integers(1, 40)


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


def test_resized_crop_is_what_torchvision_makes():
    first, total, boxes = EXPECTED["resized_crop"]
    moves = RowMoves(cut=np.array([RESIZED_CROP]), size=np.array([[3, 4]]))
    made = Steps([moves], 0).apply(picture())
    assert made[:, :, 0].tolist() == first
    assert int(made.astype(int).sum()) == total
    (moved,) = moved_boxes([np.array(BOXES, dtype=np.float32)], moves, np.array([[6, 9]]))
    np.testing.assert_allclose(moved, np.array(boxes), atol=1e-6)


@given(SIDES, SIDES, st.integers(1, 30), st.integers(1, 30), st.sampled_from(["bilinear", "bicubic", "nearest"]))
def test_resize_is_pillows_along_rows_then_down(height, width, tall, wide, name):
    filters = {"bilinear": Image.BILINEAR, "bicubic": Image.BICUBIC, "nearest": Image.NEAREST}
    given_image = picture(height, width)
    pillow = Image.fromarray(given_image)
    if name != "nearest":
        pillow = pillow.resize((wide, height), filters[name])
    expected = np.asarray(pillow.resize((wide, tall), filters[name]))
    assert np.array_equal(image.resize((tall, wide), interpolation=name)(given_image), expected)


@given(SIDES, SIDES, st.integers(1, 30), st.none() | st.integers(1, 30))
def test_the_shorter_side_is_given(height, width, size, more):
    short, long = min(height, width), max(height, width)
    new_short, new_long = size, int(size * long / short)
    if more is not None and new_long > size + more:
        new_short, new_long = int((size + more) * new_short / new_long), size + more
    expected = (new_short, new_long) if width > height else (new_long, new_short)
    operator = image.resize(size, max_size=None if more is None else size + more)
    assert operator(picture(height, width)).shape[:2] == tuple(max(1, side) for side in expected)


@given(SIDES, SIDES, st.integers(-50, 50), st.integers(-50, 50), st.integers(1, 30), st.integers(1, 30))
def test_crop_takes_what_is_there_and_fills_the_rest(height, width, top, left, tall, wide):
    given_image = picture(height, width)
    expected = np.full((tall, wide, 3), 9, dtype=np.uint8)
    for y in range(tall):
        for x in range(wide):
            if 0 <= top + y < height and 0 <= left + x < width:
                expected[y, x] = given_image[top + y, left + x]
    assert np.array_equal(image.crop(top, left, tall, wide, fill=9)(given_image), expected)
    inside = top >= 0 and left >= 0 and top + tall <= height and left + wide <= width
    if inside:
        assert np.array_equal(image.crop(top, left, tall, wide)(given_image), expected)
    else:
        with pytest.raises(ValueError) as caught:
            image.crop(top, left, tall, wide)(given_image)
        assert "does not hold" in str(caught.value)


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


def test_flip_and_expand_happen_as_often_as_they_say():
    rows = 20_000
    draws = Draws(np.random.default_rng(2).integers(0, 1 << 63, rows).astype(np.uint64))
    sizes = np.broadcast_to(np.array([100, 200]), (rows, 2))
    flips = image.horizontal_flip(0.3).moves(sizes, None, draws).flip
    assert abs(flips.mean() - 0.3) < 0.02
    pad = image.expand(p=0.4).moves(sizes, None, draws).pad
    grown = pad.any(axis=1)
    assert abs(grown.mean() - 0.4) < 0.02
    canvas = sizes[grown] + pad[grown, :2] + pad[grown, 2:]
    factor = canvas / sizes[grown]
    assert (np.abs(factor[:, 0] - factor[:, 1]) <= 0.01).all()
    assert abs(factor.mean() - 2.5) < 0.05
    assert (factor >= 1).all()
    assert (factor <= 4).all()
    assert (pad >= 0).all()


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
    ("make", "kinds", "says"),
    [
        (lambda: image.resize(4), (pa.int64(),), "takes images"),
        (lambda: image.resize(4), (TensorType((3, 6, 9), "uint8"),), "takes images"),
        (lambda: image.resize(4), (TensorType((6, 9, 3), "float64"),), "takes images"),
        (lambda: image.decode(), (pa.large_string(),), "bytes of image files"),
        (lambda: image.horizontal_flip(), (OBJECT, pa.int64()), "boxes beside the images"),
        (lambda: image.iou_crop(), (OBJECT,), "reads images and boxes"),
        (lambda: image.random_resized_crop(4), (ImageType(None),), "differing numbers of channels"),
    ],
)
def test_refuses_columns_that_it_cannot_read(make, kinds, says):
    with pytest.raises(PipelineError) as caught:
        make().result(*kinds)
    assert says in str(caught.value)


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
        lambda: image.random_resized_crop(4, scale=(1.0, 0.5)),
        lambda: image.random_resized_crop(4, ratio=(0.0, 1.0)),
        lambda: image.horizontal_flip(1.5),
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
    assert algebra_of(image.center_crop(4, fill=None)) == "spatial"
    assert algebra_of(image.center_crop(4)) is algebra_of(image.crop(0, 0, 4, 4, fill=0)) is None
    assert algebra_of(image.pad(1)) is algebra_of(image.expand()) is algebra_of(image.iou_crop()) is None
    assert algebra_of(image.resize(4)) == algebra_of(image.random_resized_crop(4)) == "resampling"


def test_floats_are_cut_flipped_and_resized_too():
    floats = (picture(12, 10) / 255).astype(np.float32)
    made = image.resize((6, 5))(floats)
    planes = [
        Image.fromarray(floats[..., i]).resize((5, 12), Image.BILINEAR).resize((5, 6), Image.BILINEAR) for i in range(3)
    ]
    assert made.dtype == np.float32
    assert np.array_equal(made, np.stack([np.asarray(p) for p in planes], axis=2))
    assert np.array_equal(image.center_crop(4)(floats), floats[4:8, 3:7])


def test_an_image_that_would_not_fit_into_memory_fails(monkeypatch):
    monkeypatch.setenv("CEDAR_MAX_PIXELS", "10000")
    with pytest.raises(ValueError) as caught:
        image.resize(50)(picture(1, 9))
    assert "would become 450 x 50" in str(caught.value)
    with pytest.raises(ValueError) as caught:
        image.expand(side_range=(40.0, 40.0), p=1.0)(picture(6, 9), draws=ONE)
    assert "canvas" in str(caught.value)


def test_what_is_no_image_fails_by_its_row():
    column = objects([picture(), None, np.zeros((3, 3)), "text", np.zeros((0, 3, 3), dtype=np.uint8), picture(4, 4)])
    from cedar.operators.transform import BadValues

    with pytest.raises(BadValues) as caught:
        image.horizontal_flip(1.0).columns(column, draws=Draws(np.arange(6, dtype=np.uint64)))
    assert sorted(caught.value.rows) == [1, 2, 3, 4]
    assert "no image" in caught.value.rows[1]
    assert "shape (3, 3)" in caught.value.rows[2]


EDGES = st.sampled_from(["constant", "edge"])
MOVES = st.lists(
    st.one_of(
        st.builds(lambda *shares: ("cut", shares), *[st.floats(0, 1)] * 4),
        st.builds(lambda f: ("flip", f), st.booleans()),
        st.builds(lambda *pad: ("pad", pad), st.tuples(*[st.integers(0, 3)] * 4), EDGES),
        st.builds(lambda s: ("size", s), st.tuples(st.integers(1, 9), st.integers(1, 9))),
    ),
    max_size=6,
)  # fmt: skip


@given(SIDES, SIDES, MOVES)
def test_no_pixel_outside_the_part_that_is_needed_is_looked_at(height, width, drawn):
    plan, tall, wide = [], height, width
    for kind, value in drawn:
        if kind == "cut":
            h, w = 1 + int(value[2] * (tall - 1)), 1 + int(value[3] * (wide - 1))
            plan.append(RowMoves(cut=np.array([[int(value[0] * (tall - h)), int(value[1] * (wide - w)), h, w]])))
        elif kind == "flip":
            plan.append(RowMoves(flip=np.array([value])))
        elif kind == "pad":
            plan.append(RowMoves(pad=np.array([value[0]]), mode=value[1]))
        else:
            plan.append(RowMoves(size=np.array([value])))
        tall, wide = plan[-1].sizes(np.array([[tall, wide]]))[0].tolist()
    steps = Steps(plan, 0)
    top, left, part_tall, part_wide = steps.part_needed(height, width)
    whole = picture(height, width)
    odd = 255 - whole
    odd[top : top + part_tall, left : left + part_wide] = whole[top : top + part_tall, left : left + part_wide]
    assert np.array_equal(steps.apply(odd), steps.apply(whole))
