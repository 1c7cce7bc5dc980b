"""Runs of pixel operators: in one pass as one by one, and each alone as plain NumPy computes it, bit for bit."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("numba")

from cedar.operators.draws import Draws
from cedar.operators.image.blur import GaussianBlur
from cedar.operators.image.color import Grayscale
from cedar.operators.image.distort import PhotometricDistort
from cedar.operators.image.jitter import ColorJitter
from cedar.operators.image.normalize import Normalize, ToFloat
from cedar.operators.image.pixels import compile_pixels
from cedar.operators.image.pixels_steps import (
    AUTOCONTRAST,
    BLUR,
    BRIGHTNESS,
    CONTRAST,
    EQUALIZE,
    GREY,
    GREY_ONE,
    HUE,
    NONE,
    PERMUTE,
    POSTERIZE,
    SATURATION,
    SOLARIZE,
    SPREAD,
)
from cedar.operators.image.solarize import Autocontrast, Equalize, Posterize, Solarize
from tests.operators.image import test_pixels_oracle as oracle

P = st.sampled_from([0.0, 0.5, 1.0])
OPERATORS = st.one_of(
    st.builds(
        ColorJitter,
        brightness=st.sampled_from([None, 0.8, (0.0, 3.0)]),
        contrast=st.sampled_from([None, 0.8, (0.0, 3.0)]),
        saturation=st.sampled_from([None, 0.8, (0.0, 3.0)]),
        hue=st.sampled_from([None, 0.2, 0.5]),
        p=P,
    ),
    st.builds(Grayscale, num_output_channels=st.sampled_from([1, 3])),
    st.builds(Grayscale, p=st.just(0.5)),
    st.builds(GaussianBlur, st.sampled_from([1, 3, (5, 9), 23]), st.sampled_from([1.0, (0.1, 2.0), (2.0, 9.0)]), P),
    st.builds(Solarize, st.integers(-1, 255), P),
    st.builds(Posterize, st.integers(0, 8), P),
    st.builds(Autocontrast, P),
    st.builds(Equalize, P),
    st.builds(PhotometricDistort, p=P),
)
NORMS = st.builds(Normalize, st.floats(-2, 2), st.floats(1e-30, 1e30) | st.sampled_from([0.229, -3.0, 1e-3]))
ENDS = (
    st.just(())
    | st.tuples(st.just(ToFloat()))
    | st.tuples(st.just(ToFloat()), NORMS)
    | st.tuples(st.just(ToFloat()), NORMS, NORMS)
)


def plain(steps, row, image):
    """The steps of a row, by the oracle."""
    for code, (first, second) in zip(steps.codes[row], steps.numbers[row], strict=True):
        three = image.shape[2] == 3
        if code == BRIGHTNESS:
            image = oracle.brightness(image, first)
        elif code == CONTRAST:
            image = oracle.contrast(image, first)
        elif code == SATURATION:
            image = oracle.saturation(image, first)
        elif code == HUE:
            image = oracle.hue(image, first)
        elif code == GREY:
            image = oracle.grey(image)
        elif code == GREY_ONE:
            image = oracle.grey(image)[:, :, :1]
        elif code == SPREAD:
            image = image if three else np.repeat(image, 3, axis=2)
        elif code == SOLARIZE:
            image = oracle.solarize(image, first)
        elif code == POSTERIZE:
            image = image // np.uint8(first) * np.uint8(first) if first < 256 else image * np.uint8(0)
        elif code == PERMUTE:
            image = image[:, :, [int(first) >> 2 * c & 3 for c in range(3)]] if three else image
        elif code == AUTOCONTRAST:
            image = oracle.autocontrast(image)
        elif code == EQUALIZE:
            image = oracle.equalize(image)
        elif code == BLUR:
            image = oracle.blur(image, steps.tables[int(first)], steps.tables[int(second)])
        else:
            assert code == NONE
    return image


def some_images(rng, kind, height, width, channels):
    if kind == "noise":
        return rng.integers(0, 256, (height, width, channels), dtype=np.uint8)
    if kind == "few":
        return rng.choice(np.array([0, 1, 128, 254, 255], dtype=np.uint8), (height, width, channels))
    return np.full((height, width, channels), rng.integers(0, 256), dtype=np.uint8)


@given(
    st.lists(OPERATORS, max_size=4), ENDS, st.integers(1, 45), st.integers(1, 45), st.sampled_from([1, 3]), st.data()
)
def test_one_pass_is_one_by_one_is_plain_numpy(colours, end, height, width, channels, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    kind = data.draw(st.sampled_from(["noise", "few", "flat"]))
    images = [some_images(rng, kind, height, width, channels) for _ in range(3)]
    transforms = (*colours, *end)
    draws = [Draws(rng.integers(0, 1 << 63, 3).astype(np.uint64)) if t.random else None for t in transforms]

    alone = list(images)
    model = list(images)
    for transform, own in zip(transforms, draws, strict=True):
        alone = compile_pixels([transform]).run(alone, [own])
        if isinstance(transform, ToFloat):
            model = [oracle.unit(image) for image in model]
        elif isinstance(transform, Normalize):
            model = [oracle.standard(image, transform.mean, transform.std) for image in model]
        else:
            steps = transform.steps(3, own)
            model = [plain(steps, row, image) for row, image in enumerate(model)]
    first = data.draw(st.booleans())
    program = compile_pixels(transforms, channels_first=first)
    before = np.stack(images)
    fused = program.run(before, draws)
    listed = program.run([before[0], before[1, :, ::-1][:, ::-1], np.asfortranarray(before[2])], draws)
    assert np.array_equal(before, np.stack(images))  # only read
    for row in range(3):
        assert alone[row].dtype == model[row].dtype
        assert alone[row].tobytes() == model[row].tobytes()
        wanted = np.ascontiguousarray(np.moveaxis(model[row], 2, 0)) if first else model[row]
        assert fused[row].shape == listed[row].shape == wanted.shape
        assert fused[row].tobytes() == wanted.tobytes() == np.ascontiguousarray(listed[row]).tobytes()


@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 1, 1), (1, 3000, 3), (67, 61, 3), (224, 224, 3)])
def test_sizes_around_the_stretches(shape):
    rng = np.random.default_rng(3)
    image = rng.integers(0, 256, shape, dtype=np.uint8)
    transforms = [ColorJitter(0.8, 0.8, 0.8, 0.2), GaussianBlur(23), Grayscale(p=0.5), Solarize(100)]
    draws = [Draws(rng.integers(0, 1 << 63, 1).astype(np.uint64)) for _ in transforms]
    wanted = image
    for transform, own in zip(transforms, draws, strict=True):
        wanted = plain(transform.steps(1, own), 0, wanted)
    assert np.array_equal(compile_pixels(transforms).run(image[None], draws)[0], wanted)
    padded = np.zeros((shape[0], shape[1] + 2, shape[2]), dtype=np.uint8)
    padded[:, 1:-1] = image
    assert np.array_equal(compile_pixels(transforms).run([padded[:, 1:-1]], draws)[0], wanted)  # rows apart


@pytest.mark.parametrize("channels", [1, 3])
def test_steps_on_the_whole_image_follow_each_other(channels):
    whole = [
        ColorJitter(contrast=(1.9, 1.9)), Autocontrast(1.0), Equalize(1.0), GaussianBlur(5, 1.0), Grayscale(3),
        Solarize(120, 1.0),
    ]  # fmt: skip
    rng = np.random.default_rng(7)
    image = (rng.integers(0, 90, (40, 50, channels)) + 60).astype(np.uint8)
    draws = Draws(np.array([11], dtype=np.uint64))
    for transforms in itertools.product(whole, repeat=3):
        given = [draws if t.random else None for t in transforms]
        wanted = image
        for transform, own in zip(transforms, given, strict=True):
            wanted = plain(transform.steps(1, own), 0, wanted)
        assert np.array_equal(compile_pixels(transforms).run(image[None], given)[0], wanted), transforms


def test_rows_of_differing_sizes_and_no_rows():
    program = compile_pixels([Solarize(100, p=1.0), ToFloat()])
    images = [np.full((1, 2, 3), 200, dtype=np.uint8), np.full((4, 1, 1), 10, dtype=np.uint8)]
    made = program.run(images, [None, None])
    assert [image.shape for image in made] == [(1, 2, 3), (4, 1, 1)]
    assert made[0][0, 0, 0] == np.float32(55) * np.float32(1 / 255)
    assert program.run([], [None, None]) == []
    assert program.run(np.zeros((0, 4, 5, 3), dtype=np.uint8), [None, None]).shape == (0, 4, 5, 3)


def test_writes_where_it_is_told():
    images = np.arange(2 * 3 * 4 * 3, dtype=np.uint8).reshape(2, 3, 4, 3)
    out = np.full((4, 3, 3, 4), 7.0, dtype=np.float32)
    made = compile_pixels([ToFloat()], channels_first=True).run(images, [None], out[1:3])
    assert made.base is out
    assert np.array_equal(out[1:3], oracle.unit(images).transpose(0, 3, 1, 2))
    assert (out[0] == 7).all()
    assert (out[3] == 7).all()
    gaps = np.empty((2, 3, 8, 3), np.float32)[:, :, ::2]
    for wrong in (np.empty((2, 3, 4, 3), np.uint8), np.empty((2, 4, 3, 3), np.float32), gaps):
        with pytest.raises(ValueError, match="out is not"):
            compile_pixels([ToFloat()]).run(images, [None], wrong)


def test_an_order_that_is_no_pass_is_refused():
    for transforms in ([ToFloat(), Solarize(3)], [Normalize(0, 1), ToFloat()], [ToFloat(), ToFloat()], [abs]):
        with pytest.raises(ValueError, match="does not follow"):
            compile_pixels(transforms)
