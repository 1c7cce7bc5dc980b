"""The pass in NumPy, which stands in for the compiled one: the same bits, on the same arguments."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("numba")

from cedar.operators.draws import Draws
from cedar.operators.image import pixels, pixels_plain
from cedar.operators.image.color_jitter import ColorJitter
from cedar.operators.image.gaussian_blur import GaussianBlur
from cedar.operators.image.normalize import Normalize, ToFloat
from cedar.operators.image.pixel_transform import Grayscale
from cedar.operators.image.pixels import compile_pixels
from tests.operators.image.toy_pixels import ENDS, OPERATORS, some_images
from tests.operators.image.without_kernels import both

SIDE = st.integers(1, 45)


@given(
    colors=st.lists(OPERATORS, max_size=4), end=ENDS, height=SIDE, width=SIDE, channels=st.sampled_from([1, 2, 3, 4]),
    kind=st.sampled_from(["noise", "few", "flat"]), first=st.booleans(), seed=st.integers(0, 999),
)  # fmt: skip
def test_pixels(colors, end, height, width, channels, kind, first, seed):
    rng = np.random.default_rng(seed)
    colors = colors if channels in (1, 3) else []
    images = np.stack([some_images(rng, kind, height, width, channels) for _ in range(3)])
    transforms = (*colors, *(each for each in end if channels in (1, 3) or isinstance(each, ToFloat)))
    draws = [Draws(rng.integers(0, 1 << 63, 3).astype(np.uint64)) if t.random else None for t in transforms]
    program = compile_pixels(transforms, channels_first=first)
    fast, plain = both(pixels, lambda: program.run(images, draws))
    assert fast.dtype == plain.dtype
    assert fast.tobytes() == plain.tobytes()


@pytest.mark.parametrize("channels_first", [True, False])
@pytest.mark.parametrize("colors", [[ColorJitter(0.8, 0.8, 0.8, 0.2), Grayscale(p=0.5)], [GaussianBlur(5, 1.0)], []])
def test_a_part_of_an_image(channels_first, colors):
    rng = np.random.default_rng(3)
    image = rng.integers(0, 256, (30, 41, 3), dtype=np.uint8)
    transforms = [*colors, ToFloat(), Normalize(0.5, 0.2)]
    program = compile_pixels(transforms, channels_first=channels_first)
    prepared = program.prepare(np.array([[30, 41]]), [Draws(np.array([5], dtype=np.uint64)) for _ in transforms])
    part = (7, 3, 11, 20)

    def made():
        out = np.zeros(program.shape(image.shape), dtype=np.float32)
        prepared.apply_one(0, image, out, part)
        rows, columns = slice(7, 18), slice(3, 23)
        return (out[:, rows, columns] if channels_first else out[rows, columns]).tobytes()

    fast, plain = both(pixels, made)
    assert fast == plain


@given(x=st.floats(-255, 255, width=32), y=st.floats(-3, 3, width=32), z=st.floats(-70_000, 70_000, width=32))
def test_a_product_and_a_sum_are_rounded_once(x, y, z):
    x, y, z = np.float32(x), np.float32(y), np.float32(z)
    made = pixels_plain._fma(np.array([x]), y, z)[0]
    exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
    near = abs(Fraction(float(made)) - exact)
    for neighbor in (np.nextafter(made, np.float32(np.inf)), np.nextafter(made, np.float32(-np.inf))):
        assert near <= abs(Fraction(float(neighbor)) - exact)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_right_between_two_numbers_goes_where_the_rest_points(sign):
    """As float64 it is just between them, and float32 would take the even one."""
    x, y = np.float32(2.0**-12 * (1 + 2.0**-23)), np.float32(2.0**-12 * (1 - 2.0**-23))
    odd = np.float32(1 + 2.0**-23)
    assert np.float32(np.float64(x) * np.float64(y) + np.float64(odd)) != odd
    assert pixels_plain._fma(np.array([x]), sign * y, sign * odd)[0] == sign * odd
