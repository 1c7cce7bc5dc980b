"""SimCLR's images: decode, random resized crop to 224, flip, color jitter, grayscale, blur, normalize.

Resizing is bilinear without antialias, for all: that is what OpenCV, which most loaders are used with, does. Jitter of
strength 0.8 for four images of five, grayscale for one of five, blur for every other, as SimCLR has them. The draws of
a row follow from its number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.photos import (
    MEAN,
    STD,
    Photos,
    decoded,
    jittered,
    normalized,
    opencv,
    part,
    resized,
    write_photos,
)
from benchmarks.peers.workload import Array, Row, Workload, split_mix

SIDE, STRENGTH, KERNEL, SIGMA = 224, 0.8, 23, (0.1, 2.0)
TRIES = 10


@dataclass(frozen=True)
class Draw:
    """What is drawn for a row."""

    crop: Array
    flip: bool
    jitter: bool
    order: tuple[int, ...]
    brightness: float
    contrast: float
    saturation: float
    hue: float
    gray: bool
    blur: bool
    sigma: float


def draw(i: int) -> Draw:
    numbers = split_mix(i, 4 * TRIES + 13)
    flip, b, c, s, h, gray, sigma, jitter, blur, *order = numbers[4 * TRIES :].tolist()
    return Draw(
        crop=numbers[: 4 * TRIES],
        flip=flip < 0.5,
        jitter=jitter < 0.8,
        order=tuple(int(k) for k in np.argsort(order)),
        brightness=1 + STRENGTH * (2 * b - 1),
        contrast=1 + STRENGTH * (2 * c - 1),
        saturation=1 + STRENGTH * (2 * s - 1),
        hue=0.2 * (2 * h - 1),
        gray=gray < 0.2,
        blur=blur < 0.5,
        sigma=SIGMA[0] + sigma * (SIGMA[1] - SIGMA[0]),
    )


class SimCLR(Photos):
    side = SIDE

    def into(self, i: int, content: bytes, out: Array) -> Row:
        cv2 = opencv()
        image = decoded(content)
        d = draw(i)
        top, left, height, width = part(d.crop, image.shape[0], image.shape[1], (0.08, 1.0))
        image = resized(image[top : top + height, left : left + width], SIDE, SIDE)
        if d.flip:
            image = cv2.flip(image, 1)
        if d.jitter:
            image = jittered(image, d.order, d.brightness, d.contrast, d.saturation, d.hue)
        if d.gray:
            image = cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
        if d.blur:
            image = blurred(image, d.sigma)
        normalized(image, out)
        return {"id": np.int64(i), "image": out}


def blurred(image: Array, sigma: float) -> Array:
    """A Gaussian of 23 pixels, less what lies beyond four deviations: a quarter of the time, within 1 of 255."""
    cv2 = opencv()
    size = min(KERNEL, 2 * math.ceil(4 * sigma) + 1)
    kernel = cv2.getGaussianKernel(size, sigma, cv2.CV_32F)
    found: Array = cv2.sepFilter2D(image, -1, kernel, kernel)
    return found


def prepare(folder: Path, rows: int, own: Path | None) -> None:
    write_photos(folder, rows, own)


def pipeline(work: Any, _setting: str) -> Any:
    import cedar
    from cedar.operators import image

    return (
        cedar.read_files(f"{work.folder}/images/*.jpg")
        .map(image.decode(), "bytes", into="image")
        .map(image.random_resized_crop(SIDE, antialias=False), "image")
        .map(image.horizontal_flip(), "image")
        .map(image.color_jitter(STRENGTH, STRENGTH, STRENGTH, 0.2, p=0.8), "image")
        .map(image.grayscale(p=0.2), "image")
        .map(image.gaussian_blur(KERNEL, SIGMA, p=0.5), "image")
        .map(image.to_float(), "image")
        .map(image.normalize(MEAN, STD), "image")
        .map(image.channels_first(), "image")
        .select("path", "image")
        .batch(work.batch, last="keep")
    )


def decode_alone(work: SimCLR, rows: Sequence[int]) -> int:
    for i in rows:
        decoded(work.read(i))
    return len(rows)


WORKLOAD = Workload(
    name="simclr",
    title="SimCLR images",
    unit="images",
    rows=(130, 2048, 6000),
    work=SimCLR,
    prepare=prepare,
    pipeline=pipeline,
    limits={"decode": decode_alone},
    random=True,
    tolerance=0.05,
)
