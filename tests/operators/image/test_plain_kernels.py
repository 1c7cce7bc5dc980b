"""What stands in for kernels while they are compiled: the same bits, on the same arguments."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("numba")

from cedar.operators.draws import Draws
from cedar.operators.image import iou_kernels, iou_plain, pixels, pixels_plain, resample, resample_plain
from cedar.operators.image.blur import GaussianBlur
from cedar.operators.image.color import Grayscale
from cedar.operators.image.jitter import ColorJitter
from cedar.operators.image.normalize import Normalize, ToFloat
from cedar.operators.image.pixels import compile_pixels
from cedar.operators.image.resample import resize_into
from tests.operators.image.test_pixels import ENDS, OPERATORS, some_images

SIDE = st.integers(1, 45)


def both(monkeypatch, module, make):
    """What a call makes with kernels, and without."""
    found = [make()]
    with monkeypatch.context() as patch:
        patch.setattr(module, "compiled", lambda name: None)
        found.append(make())
    return found


@pytest.fixture(scope="module")
def patched():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@given(
    colours=st.lists(OPERATORS, max_size=4), end=ENDS, height=SIDE, width=SIDE, channels=st.sampled_from([1, 2, 3, 4]),
    kind=st.sampled_from(["noise", "few", "flat"]), first=st.booleans(), seed=st.integers(0, 999),
)  # fmt: skip
def test_pixels(patched, colours, end, height, width, channels, kind, first, seed):
    rng = np.random.default_rng(seed)
    colours = colours if channels in (1, 3) else []
    images = np.stack([some_images(rng, kind, height, width, channels) for _ in range(3)])
    transforms = (*colours, *(each for each in end if channels in (1, 3) or isinstance(each, ToFloat)))
    draws = [Draws(rng.integers(0, 1 << 63, 3).astype(np.uint64)) if t.random else None for t in transforms]
    program = compile_pixels(transforms, channels_first=first)
    fast, plain = both(patched, pixels, lambda: program.run(images, draws))
    assert fast.dtype == plain.dtype
    assert fast.tobytes() == plain.tobytes()


@pytest.mark.parametrize("channels_first", [True, False])
@pytest.mark.parametrize("colours", [[ColorJitter(0.8, 0.8, 0.8, 0.2), Grayscale(p=0.5)], [GaussianBlur(5, 1.0)], []])
def test_a_part_of_an_image(patched, channels_first, colours):
    rng = np.random.default_rng(3)
    image = rng.integers(0, 256, (30, 41, 3), dtype=np.uint8)
    transforms = [*colours, ToFloat(), Normalize(0.5, 0.2)]
    program = compile_pixels(transforms, channels_first=channels_first)
    prepared = program.prepared(1, [Draws(np.array([5], dtype=np.uint64)) for _ in transforms])
    part = (7, 3, 11, 20)

    def made():
        out = np.zeros(program.shape(image.shape), dtype=np.float32)
        prepared.apply_one(0, image, out, part)
        rows, columns = slice(7, 18), slice(3, 23)
        return (out[:, rows, columns] if channels_first else out[rows, columns]).tobytes()

    fast, plain = both(patched, pixels, made)
    assert fast == plain


@given(x=st.floats(-255, 255, width=32), y=st.floats(-3, 3, width=32), z=st.floats(-70_000, 70_000, width=32))
def test_a_product_and_a_sum_are_rounded_once(x, y, z):
    from fractions import Fraction

    x, y, z = np.float32(x), np.float32(y), np.float32(z)
    made = pixels_plain._fma(np.array([x]), y, z)[0]
    exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
    near = abs(Fraction(float(made)) - exact)
    for neighbour in (np.nextafter(made, np.float32(np.inf)), np.nextafter(made, np.float32(-np.inf))):
        assert near <= abs(Fraction(float(neighbour)) - exact)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_right_between_two_numbers_goes_where_the_rest_points(sign):
    """As float64 it is just between them, and float32 would take the even one."""
    x, y = np.float32(2.0**-12 * (1 + 2.0**-23)), np.float32(2.0**-12 * (1 - 2.0**-23))
    odd = np.float32(1 + 2.0**-23)
    assert np.float32(np.float64(x) * np.float64(y) + np.float64(odd)) != odd
    assert pixels_plain._fma(np.array([x]), sign * y, sign * odd)[0] == sign * odd


@given(
    height=SIDE, width=SIDE, rows=SIDE, columns=SIDE, channels=st.sampled_from([1, 2, 3, 4, 5]),
    ends=st.tuples(*[st.integers(0, 255)] * 4), antialias=st.booleans(), flip=st.booleans(), seed=st.integers(0, 999),
)  # fmt: skip
def test_resizing(patched, height, width, rows, columns, channels, ends, antialias, flip, seed):
    image = np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)
    top, left = height * min(ends[:2]) / 256, width * min(ends[2:]) / 256
    box = (top, left, height * (abs(ends[0] - ends[1]) + 1) / 257, width * (abs(ends[2] - ends[3]) + 1) / 257)

    def made():
        out = np.empty((rows, columns, channels), dtype=np.uint8)
        resize_into(image, box if sum(ends) % 3 else None, out, antialias=antialias, flip=flip)
        return out

    if top + box[2] > height or left + box[3] > width:
        box = (0, 0, height, width)
    fast, plain = both(patched, resample, made)
    assert fast.tobytes() == plain.tobytes()


@given(seed=st.integers(0, 9999), rows=st.integers(1, 6), trials=st.integers(1, 12))
def test_trials_of_parts(seed, rows, trials):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 300, (rows, 2))
    starts = np.concatenate([[0], np.cumsum(rng.integers(1, 5, rows))])
    corners = rng.random((starts[-1], 2, 2)).astype(np.float32) * 300
    boxes = np.concatenate([corners.min(1), corners.max(1)], axis=1)
    numbers, least = rng.random((rows, 4 * trials)), rng.choice([0.0, 0.1, 0.3, 0.5], rows).astype(np.float32)
    made = []
    for module in (iou_kernels, iou_plain):
        parts, found = np.zeros((rows, 4), dtype=np.int64), np.zeros(rows, dtype=bool)
        inside = np.zeros(starts[-1], dtype=bool)
        module.try_parts(sizes, numbers, least, boxes, starts, (0.3, 0.7, 0.5, 2.0), parts, found, inside)
        kept = [inside[starts[i] : starts[i + 1]].tolist() for i in np.flatnonzero(found)]
        made.append((parts[found].tolist(), found.tolist(), kept))
    assert made[0] == made[1]


@pytest.mark.parametrize("module", [resample, pixels])
def test_one_thread_at_a_time_does_without_kernels(monkeypatch, module):
    """The compiler has the other cores."""
    lock, inside = threading.Lock(), [0, 0]

    def slowly(*_):
        with lock:
            inside[0] += 1
            inside[1] = max(inside)
        time.sleep(0.01)
        with lock:
            inside[0] -= 1

    monkeypatch.setattr(module, "compiled", lambda _: None)
    monkeypatch.setattr(resample_plain, "resize", slowly)
    monkeypatch.setattr(pixels_plain, "apply", slowly)
    image, out = np.zeros((8, 8, 3), np.uint8), np.zeros((4, 4, 3), np.uint8)
    program = compile_pixels((Grayscale(),), channels_first=False)

    def work(_):
        if module is resample:
            resize_into(image, None, out)
        else:
            program.run(image[None], [None])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))
    assert inside == [0, 1]
