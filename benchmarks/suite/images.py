"""Images as the two vision pipelines read them: JPEG, smooth with some noise, with boxes and labels."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.suite.case import write

GROUP = 24  # images of a row group


def write_images(directory: str, rows: int, seed: int, least: int, most: int) -> None:
    """Square JPEGs of ``least`` to ``most`` pixels a side, and 0 to 6 boxes each: x0, y0, x1, y1 as shares, in turn."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    jpegs, boxes = [], []
    for _ in range(rows):
        side = int(rng.integers(least, most + 1))
        coarse = Image.fromarray(rng.integers(0, 256, (20, 20, 3), dtype=np.uint8))
        pixels = np.asarray(coarse.resize((side, side), Image.Resampling.BICUBIC)).astype(np.int16)
        noisy = np.clip(pixels + rng.integers(-12, 13, pixels.shape), 0, 255).astype(np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(noisy).save(buffer, "JPEG", quality=85)
        jpegs.append(buffer.getvalue())
        boxes.append(_boxes(rng))
    write(directory, {"jpeg": jpegs, "boxes": boxes, "label": rng.integers(0, 1000, rows)}, GROUP)


def _boxes(rng: np.random.Generator) -> list[float]:
    count = int(rng.integers(0, 7))
    corner = rng.random((count, 2)) * 0.8
    size = rng.random((count, 2)) ** 2 * 0.5
    flat: list[float] = np.concatenate([corner, np.minimum(corner + size, 1.0)], axis=1).ravel().tolist()
    return flat


def decode(jpeg: bytes) -> npt.NDArray[Any]:
    """uint8, height by width by 3."""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB"))
