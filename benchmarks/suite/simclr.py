"""SimCLR-like: augmentations written colors first, as a list of user functions with declared algebra.

Crop and flip (spatial) may move before what works on each pixel (pointwise), which then works on fewer, and on bytes
longer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import cedar
from benchmarks.suite.case import Step, composed, read
from benchmarks.suite.images import decode, write_images
from cedar.operators.algebra import pointwise, spatial

WRITERS = ("images", "case")
SIDE = 320
CROP = 128
MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
STD = np.array([0.229, 0.224, 0.225], dtype=np.float32)
Image = npt.NDArray[Any]


def data(directory: str, rows: int, seed: int) -> None:
    write_images(directory, rows, seed, SIDE, SIDE)


@pointwise
def to_float(image: Image) -> Image:
    return image.astype(np.float32) / np.float32(255)


@pointwise
def jitter(image: Image, rng: np.random.Generator) -> Image:
    return np.clip(image * np.float32(rng.uniform(0.6, 1.4)), 0, 1)


@pointwise
def grayscale(image: Image, rng: np.random.Generator) -> Image:
    """A fifth of the images; a pixel at a time."""
    if rng.random() >= 0.2:
        return image
    gray = image[..., 0] * np.float32(0.299) + image[..., 1] * np.float32(0.587) + image[..., 2] * np.float32(0.114)
    return np.repeat(gray[..., None], 3, axis=2)


@pointwise
def normalize(image: Image) -> Image:
    return (image - MEAN) / STD


@spatial
def crop(image: Image, rng: np.random.Generator) -> Image:
    y, x = rng.integers(0, SIDE - CROP, 2)
    return image[y : y + CROP, x : x + CROP]


@spatial
def flip(image: Image, rng: np.random.Generator) -> Image:
    return np.ascontiguousarray(image[:, ::-1]) if rng.random() < 0.5 else image


STEPS: dict[str, Step] = {
    "to_float": lambda p: p.map(to_float, "image"),
    "jitter": lambda p: p.map(jitter, "image", random=True, name="jitter"),
    "grayscale": lambda p: p.map(grayscale, "image", random=True, name="grayscale"),
    "crop": lambda p: p.map(crop, "image", random=True, name="crop"),
    "flip": lambda p: p.map(flip, "image", random=True, name="flip"),
}


def start(directory: str) -> cedar.Pipeline:
    return read(directory).map(decode, "jpeg", into="image")


def finish(p: cedar.Pipeline) -> cedar.Pipeline:
    return p.map(normalize, "image").select("image", "label").batch(16, last="keep")


def make(directory: str, rows: int) -> cedar.Pipeline:
    return composed(start(directory), STEPS, finish)
