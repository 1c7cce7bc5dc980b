"""Runs of pixel operators: in one pass as one by one, and each alone as plain NumPy computes it, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("numba")

from cedar.operators.draws import Draws
from cedar.operators.image.normalize import Normalize, ToFloat
from cedar.operators.image.pixels import compile_pixels
from cedar.operators.image.solarize import Solarize
from tests.operators.image import pixels_oracle as oracle
from tests.operators.image.toy_pixels import ENDS, OPERATORS, some_images


@given(
    st.lists(OPERATORS, max_size=4), ENDS, st.integers(1, 45), st.integers(1, 45), st.sampled_from([1, 3]), st.data()
)
def test_one_pass_is_one_by_one_is_plain_numpy(colors, end, height, width, channels, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    kind = data.draw(st.sampled_from(["noise", "few", "flat"]))
    images = [some_images(rng, kind, height, width, channels) for _ in range(3)]
    transforms = (*colors, *end)
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
            steps = transform.steps(np.full((3, 2), (height, width)), own)
            model = [oracle.plain(steps, row, image) for row, image in enumerate(model)]
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
