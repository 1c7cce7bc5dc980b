"""What the image workloads share: JPEG files, made or the user's own, and the steps that OpenCV does best."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmarks.peers.workload import SEED, Array, Batch, Files, Row, library

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DISTINCT = 2000  # files that are created; more rows are links to them
PER_FOLDER = "images"


class Photos(Files):
    """Row i is file i; outputs are float32 (3, side, side)."""

    batch = 64
    side: ClassVar[int]
    compared: ClassVar[tuple[str, ...]] = ("image",)

    def read(self, i: int) -> bytes:
        return (self.path / PER_FOLDER / f"{i:06d}.jpg").read_bytes()

    def ids(self, batch: Batch, position: int) -> Array:
        """From the paths, if there are paths."""
        if "path" not in batch:
            return super().ids(batch, position)
        return np.array([int(str(path).rpartition("/")[2].partition(".")[0]) for path in batch["path"]])

    def thin(self, name: str, value: Array) -> Array:
        """Every seventh pixel of every seventh line."""
        return value[:, ::7, ::7] if name == "image" else value

    def into(self, i: int, content: bytes, out: Array) -> Row:
        """The row, its image written to ``out``."""
        raise NotImplementedError

    def finish(self, i: int, content: bytes) -> Row:
        out = np.empty((3, self.side, self.side), np.float32)
        return self.into(i, content, out)

    def many(self, indices: Iterable[int]) -> dict[str, Array]:
        """A batch whose images are written where they belong."""
        chosen = [int(i) for i in indices]
        images = np.empty((len(chosen), 3, self.side, self.side), np.float32)
        rows = [self.into(i, self.read(i), out) for i, out in zip(chosen, images, strict=True)]
        rest = self.collate([{name: value for name, value in row.items() if name != "image"} for row in rows])
        return {**rest, "image": images}


def decoded(content: bytes) -> Array:
    """uint8 (height, width, 3)."""
    found: Array = library("simplejpeg").decode_jpeg(content, "RGB")
    return found


@lru_cache
def opencv() -> Any:
    """OpenCV without threads of its own: any code that calls it has as many as there are cores."""
    cv2 = library("cv2")
    cv2.setNumThreads(0)
    return cv2


@lru_cache
def _tables() -> list[Array]:
    values = np.arange(256, dtype=np.float32) / np.float32(255)
    return [((values - np.float32(m)) / np.float32(s)).astype(np.float32) for m, s in zip(MEAN, STD, strict=True)]


def normalized(image: Array, out: Array) -> None:
    """uint8 (h, w, 3) to float32 (3, h, w): a table for each channel."""
    cv2 = opencv()
    for plane, table, made in zip(cv2.split(image), _tables(), out, strict=True):
        cv2.LUT(plane, table, made)


def jittered(
    image: Array, order: Iterable[int], brightness: float, contrast: float, saturation: float, hue: float
) -> Array:
    """Colors as torchvision's ColorJitter changes them, in this order, on bytes. ``hue`` is a share of the circle."""
    cv2 = opencv()
    values = np.arange(256, dtype=np.float32)
    for step in order:
        if step == 0:
            image = cv2.LUT(image, np.clip(values * brightness, 0, 255).astype(np.uint8))
        elif step == 1:
            mean = round(cv2.mean(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY))[0])
            image = cv2.LUT(image, np.clip(values * contrast + mean * (1 - contrast), 0, 255).astype(np.uint8))
        elif step == 2:
            gray = cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
            image = cv2.addWeighted(image, saturation, gray, 1 - saturation, 0)
        else:
            h, s, v = cv2.split(cv2.cvtColor(image, cv2.COLOR_RGB2HSV))
            turned = ((np.arange(256) + hue * 180) % 180).astype(np.uint8)
            image = cv2.cvtColor(cv2.merge([cv2.LUT(h, turned), s, v]), cv2.COLOR_HSV2RGB)
    return image


def part(draws: Array, height: int, width: int, scale: tuple[float, float]) -> tuple[int, int, int, int]:
    """A random resized crop: top, left, height, width. Ten tries of four draws each; else the middle of the image."""
    for area_draw, ratio_draw, y, x in draws.reshape(-1, 4):
        area = height * width * (scale[0] + area_draw * (scale[1] - scale[0]))
        ratio = np.exp(np.log(3 / 4) + ratio_draw * (np.log(4 / 3) - np.log(3 / 4)))
        w, h = round(np.sqrt(area * ratio)), round(np.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return int(y * (height - h + 1)), int(x * (width - w + 1)), h, w
    w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    return (height - h) // 2, (width - w) // 2, h, w


def resized(image: Array, height: int, width: int) -> Array:
    """Bilinear, without antialias, as OpenCV does."""
    cv2 = opencv()
    found: Array = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
    return found


def write_photos(folder: Path, rows: int, own: Path | None) -> None:
    """``images/000000.jpg`` and on: the user's own files over and over, or made ones of about 400 x 300."""
    place = folder / PER_FOLDER
    place.mkdir()
    if own is not None:
        files = sorted(path.resolve() for path in own.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
        if not files:
            raise FileNotFoundError(f"there is no .jpg file below {own}")
        for i in range(rows):
            (place / f"{i:06d}.jpg").symlink_to(files[i % len(files)])
        return
    for i in range(rows):
        path = place / f"{i:06d}.jpg"
        if i < DISTINCT:
            path.write_bytes(photo(i))
        else:
            os.link(place / f"{i % DISTINCT:06d}.jpg", path)


def photo(i: int) -> bytes:
    """A made photograph: noise whose strength falls with its frequency, as in real ones, and some shapes with edges."""
    cv2 = opencv()
    rng = np.random.default_rng([SEED, i])
    width, height = int(rng.integers(340, 461)), int(rng.integers(250, 351))
    image = np.full((height, width, 3), 128, np.float32)
    for octave in range(7):
        cells = 2 ** (octave + 1)
        noise = rng.normal(0, 1, (cells + 2, cells + 2, 3)).astype(np.float32)
        gray = noise.mean(axis=2, keepdims=True)
        mixed = 0.35 * noise + 1.2 * gray  # natural colors go together
        image += 52 / 1.65**octave * cv2.resize(mixed, (width, height), interpolation=cv2.INTER_CUBIC)
    for _ in range(int(rng.integers(2, 6))):
        center = (int(rng.integers(0, width)), int(rng.integers(0, height)))
        axes = (int(rng.integers(10, 90)), int(rng.integers(10, 90)))
        color = [float(v) for v in rng.integers(0, 256, 3)]
        shape = np.zeros((height, width, 1), np.float32)
        cv2.ellipse(shape, center, axes, float(rng.integers(0, 180)), 0, 360, 1.0, -1)
        image = image * (1 - 0.6 * shape.reshape(height, width, 1)) + 0.6 * shape.reshape(height, width, 1) * color
    image += rng.normal(0, 2.5, image.shape)
    made: bytes = library("simplejpeg").encode_jpeg(np.clip(image, 0, 255).astype(np.uint8), 88, "RGB", "420")
    return made
