"""Bilinear resizing against Pillow, bit for bit; strides, flips, and what does not fit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("numba")
Image = pytest.importorskip("PIL.Image")

from cedar.operators.image.resample import resize_into  # noqa: E402

SIDE = st.integers(1, 40)
PLACE = st.integers(0, 255)  # of 256 parts


def part(places, size):
    """A range within a size, its ends in 256ths, at least one of them long."""
    low, high = sorted(places)
    return size * low / 256, max(size * (high - low) / 256, 1 / 256)


@given(SIDE, SIDE, SIDE, SIDE, st.sampled_from([1, 3]), st.tuples(PLACE, PLACE, PLACE, PLACE), st.integers(0, 99))
def test_is_pillows_resize_of_a_box(height, width, rows, columns, channels, places, seed):
    image = np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)
    (top, tall), (left, wide) = part(places[:2], height), part(places[2:], width)
    if top + tall > height or left + wide > width:
        top, tall, left, wide = 0, height, 0, width
    out = np.empty((rows, columns, channels), dtype=np.uint8)
    resize_into(image, (top, left, tall, wide), out)
    # Columns, then rows: one axis at a time, since Pillow 13 swaps them where the height shrinks much more.
    pillow = Image.fromarray(image if channels == 3 else image[:, :, 0])
    pillow = pillow.resize((columns, height), Image.Resampling.BILINEAR, (left, 0, left + wide, height))
    pillow = pillow.resize((columns, rows), Image.Resampling.BILINEAR, (0, top, columns, top + tall))
    assert np.array_equal(out, np.asarray(pillow).reshape(out.shape))


@given(SIDE, SIDE, SIDE, SIDE, st.integers(1, 9), st.booleans(), st.integers(0, 99))
def test_any_channels_strides_and_flips(height, width, rows, columns, channels, antialias, seed):
    large = np.random.default_rng(seed).integers(0, 256, (2 * height + 1, width + 3, channels), dtype=np.uint8)
    for view in (large[1:, 2 : 2 + width][:height], large[:height, :width][::-1, ::-1], large[::2, :-3], large[:1, :1]):
        out = np.empty((rows, columns, channels), dtype=np.uint8)
        resize_into(view, None, out, antialias=antialias)
        for channel in range(channels):  # each channel is as if it were alone
            alone = np.empty((rows, columns, 1), dtype=np.uint8)
            resize_into(np.ascontiguousarray(view[:, :, channel : channel + 1]), None, alone, antialias=antialias)
            assert np.array_equal(out[:, :, channel], alone[:, :, 0])
        mirrored = np.empty_like(out)
        resize_into(view, None, mirrored, antialias=antialias, flip=True)
        assert np.array_equal(mirrored[:, ::-1], out)


def test_reads_what_may_not_be_written_and_nothing_beyond_it():
    image = np.frombuffer(bytes(range(240)) * 3, dtype=np.uint8).reshape(8, 30, 3)
    out = np.empty((5, 7, 3), dtype=np.uint8)
    resize_into(image, None, out)
    other = np.empty_like(out)
    resize_into(image.copy(), None, other)
    assert np.array_equal(out, other)


def test_the_same_size_is_a_copy():
    image = np.random.default_rng(0).integers(0, 256, (17, 23, 3), dtype=np.uint8)
    out = np.empty_like(image)
    resize_into(image, None, out)
    assert np.array_equal(out, image)


def test_an_empty_out_is_left_alone():
    resize_into(np.zeros((3, 3, 3), dtype=np.uint8), None, np.empty((0, 4, 3), dtype=np.uint8))


@pytest.mark.parametrize(
    ("source", "box", "out", "says"),
    [
        (np.zeros((4, 4, 3), np.uint8), None, np.empty((2, 2, 1), np.uint8), "cannot be resized"),
        (np.zeros((0, 4, 3), np.uint8), None, np.empty((2, 2, 3), np.uint8), "cannot be resized"),
        (np.zeros((4, 4, 3), np.float32), None, np.empty((2, 2, 3), np.uint8), "uint8"),
        (np.zeros((4, 4, 3), np.uint8), None, np.empty((2, 4, 3), np.uint8)[:, ::2], "contiguous"),
        (np.zeros((4, 4, 3), np.uint8), (0, 0, 5, 4), np.empty((2, 2, 3), np.uint8), "not within"),
        (np.zeros((4, 4, 3), np.uint8), (0, 0, float("nan"), 4), np.empty((2, 2, 3), np.uint8), "not within"),
        (np.zeros((4, 4, 3), np.uint8), (1, 1, 0, 2), np.empty((2, 2, 3), np.uint8), "not within"),
    ],
)
def test_what_does_not_fit_is_refused(source, box, out, says):
    with pytest.raises(ValueError, match=says):
        resize_into(source, box, out)
