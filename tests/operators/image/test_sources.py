"""Scaled decoding: near the exact result, of the same rows and boxes, and only where it was asked for."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

import cedar
from benchmarks.mutated_images import encoded
from cedar.operators import image
from cedar.operators.draws import Draws
from cedar.operators.image.base import IMAGES
from cedar.operators.transform import Link
from cedar.testing.compare import blocks_of
from tests.operators.image.image_files import photo

NEAR = 2.0  # of 255, on average


def chain(operators, data, *, exact):
    links = [Link(image.decode(), ("bytes",), ("image",), exact)]
    links += [Link(operator, ("image",), ("image",)) for operator in operators]
    words = np.arange(len(data), dtype=np.uint64)
    draws = [Draws(words + np.uint64(7)) if link.transform.random else None for link in links]
    return IMAGES.run(links, {"bytes": pa.array(data, pa.large_binary())}, draws)


def both(operators, data):
    """The images, exact and not; rows fail alike."""
    (left, faults), (right, others) = (chain(operators, data, exact=exact) for exact in (True, False))
    assert faults == others
    return left["image"], right["image"]


def apart(left, right):
    return float(np.abs(left.astype(int) - right.astype(int)).mean())


OPERATORS = [
    [image.resize((30, 40))],
    [image.resize(31)],
    [image.resize((30, 40), interpolation="bicubic")],
    [image.random_resized_crop(24, scale=(0.5, 1.0)), image.horizontal_flip()],
    [image.horizontal_flip(1.0), image.crop(11, 7, 200, 301), image.resize((40, 50)), image.pad(2)],
    [image.crop(3, 1, 250, 160), image.horizontal_flip(1.0), image.resize((60, 30)), image.horizontal_flip(1.0)],
    [image.resize((20, 20)), image.crop(1, 1, 9, 9)],
]


@pytest.mark.heavy
@pytest.mark.parametrize("operators", OPERATORS)
@pytest.mark.parametrize("kind", ["jpeg", "jpeg-progressive", "jpeg-gray"])
def test_is_near_the_exact_result(operators, kind):
    data = [encoded(kind, photo(*size)) for size in ((256, 320), (301, 403), (255, 321))]
    left, right = both(operators, data)
    for row in range(3):
        assert left[row].shape == right[row].shape
        assert apart(left[row], right[row]) < NEAR
    assert any(not np.array_equal(left[row], right[row]) for row in range(3))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_turned_images_are_turned_first(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    Image.fromarray(photo(203, 307)).save(file, "JPEG", exif=exif, quality=90)  # no multiples of anything
    links = [
        Link(image.decode(exif=True), ("bytes",), ("image",)),
        Link(image.resize((12, 12)), ("image",), ("image",)),
    ]
    data = {"bytes": pa.array([file.getvalue()], pa.large_binary())}
    exact, _ = IMAGES.run(links, data, [None, None])
    links[0] = Link(links[0].transform, ("bytes",), ("image",), exact=False)
    made, _ = IMAGES.run(links, data, [None, None])
    assert apart(exact["image"], made["image"]) < NEAR


SAME = [
    [image.resize((130, 130))],  # by less than 2
    [image.resize((30, 30), antialias=False)],
    [image.resize((30, 30), interpolation="nearest")],
    [image.pad(3), image.resize((30, 30))],
    [image.grayscale(), image.resize((30, 30))],
    [image.crop(0, 0, 50, 50)],
]


@pytest.mark.parametrize("operators", SAME)
def test_elsewhere_nothing_differs(operators):
    left, right = both(operators, [encoded("jpeg", photo(256, 256)), encoded("png", photo(256, 256))])
    assert all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def test_other_formats_and_damaged_files_are_as_ever():
    whole = encoded("jpeg", photo(200, 200))
    data = [encoded("png", photo(200, 200)), whole[:-400], encoded("jpeg-cmyk", photo(200, 200)), b"nothing"]
    left, right = both([image.resize((20, 20))], data)
    assert np.array_equal(left[[0, 2]], right[[0, 2]])


@pytest.fixture
def folder(tmp_path):
    for i in range(9):
        (tmp_path / f"{i}.jpg").write_bytes(encoded("jpeg", photo(200 + 7 * i, 300 - 9 * i)))
    return tmp_path


def pipeline(folder):
    p = cedar.read_files(f"{folder}/*.jpg").map(lambda path: [[5.0, 4.0, 30.0, 28.0]], "path", into="boxes")
    p = p.map(image.decode(), "bytes", into="image")
    p = p.map(image.random_resized_crop(24, scale=(0.6, 1.0)), "image", "boxes")
    return p.map(image.horizontal_flip(), "image", "boxes").select("path", "image", "boxes").batch(4, last="keep")


def batches(pipeline, **options):
    with pipeline.loader(seed=5, **options) as loader:
        return [(list(b["path"]), np.array(b["image"]), b["boxes"]) for b in loader], loader.explain()


def test_a_loader_does_it_only_if_told_to_and_says_so(folder):
    exact, told = batches(pipeline(folder), plan="off", executor="inline")
    assert "inexact" not in told
    same, told = batches(pipeline(folder), executor="inline")
    assert "inexact" not in told
    assert all(np.array_equal(a[1], b[1]) for a, b in zip(exact, same, strict=True))
    near, told = batches(pipeline(folder), executor="inline", exact=False)
    assert "inexact: map(Decode): JPEG files at 1/2, 1/4 or 1/8, where RandomResizedCrop" in told
    for ours, theirs in zip(near, exact, strict=True):
        assert ours[0] == theirs[0]
        assert str(ours[2]) == str(theirs[2])
        assert 0 < apart(ours[1], theirs[1]) < NEAR


def test_executors_and_block_sizes_do_not_show(folder):
    expected, _ = batches(pipeline(folder), executor="inline", exact=False)
    for rows in (1, 3):
        with blocks_of(rows):
            found, _ = batches(pipeline(folder), executor="threads", workers=2, exact=False)
        assert all(np.array_equal(a[1], b[1]) for a, b in zip(expected, found, strict=True))
