"""SSD-like: images of many sizes with boxes; images without a box worth learning from are dropped after decoding."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import cedar
from benchmarks.suite.case import read
from benchmarks.suite.images import decode, write_images
from cedar.operators.algebra import pointwise

WRITERS = ("images", "case")
SIDE = 160
Array = npt.NDArray[Any]


def data(directory: str, rows: int, seed: int) -> None:
    write_images(directory, rows, seed, 200, 400)


@pointwise
def to_float(image: Array) -> Array:
    return image.astype(np.float32) / np.float32(255)


@pointwise
def distort(image: Array, rng: np.random.Generator) -> Array:
    return image * np.float32(rng.uniform(0.5, 1.5)) + np.float32(rng.uniform(-0.1, 0.1))


def large(boxes: Array) -> list[float]:
    """The boxes that cover at least 4% of the image."""
    corners = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
    keep = (corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1]) > 0.04
    found: list[float] = corners[keep].ravel().tolist()
    return found


def any_box(boxes: Array) -> bool:
    return len(boxes) > 0


def crop(image: Array, boxes: Array, rng: np.random.Generator) -> tuple[Array, list[float]]:
    """Cuts up to a fifth from each side; boxes follow, in shares of the new image."""
    corners = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
    low, high = rng.random(2) * 0.2, 1 - rng.random(2) * 0.2
    side = np.array(image.shape[:2][::-1])
    (x0, y0), (x1, y1) = (low * side).astype(int), (high * side).astype(int)
    moved = np.clip((corners - np.tile(low, 2)) / np.tile(high - low, 2), 0, 1)
    return image[y0:y1, x0:x1], moved.ravel().tolist()


def resize(image: Array) -> Array:
    """To the nearest pixel."""
    rows = np.arange(SIDE) * image.shape[0] // SIDE
    columns = np.arange(SIDE) * image.shape[1] // SIDE
    nearest: Array = image[rows[:, None], columns]
    return nearest


def flip(image: Array, boxes: Array, rng: np.random.Generator) -> tuple[Array, list[float]]:
    corners = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
    if rng.random() < 0.5:
        image = np.ascontiguousarray(image[:, ::-1])
        corners = np.stack([1 - corners[:, 2], corners[:, 1], 1 - corners[:, 0], corners[:, 3]], axis=1)
    return image, corners.ravel().tolist()


def make(directory: str, rows: int) -> cedar.Pipeline:
    return (
        read(directory)
        .map(decode, "jpeg", into="image", dtype=object)
        .map(to_float, "image", dtype=object)
        .map(distort, "image", random=True, dtype=object)
        .map(large, "boxes", dtype=list[float])
        .filter(any_box, "boxes")
        .map(crop, "image", "boxes", into=("image", "boxes"), random=True, dtype=(object, list[float]))
        .map(resize, "image")
        .map(flip, "image", "boxes", into=("image", "boxes"), random=True)
        .select("image", "boxes", "label")
        .batch(16, last="keep")
    )
