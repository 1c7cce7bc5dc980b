"""The second epoch of images whose deterministic prefix may be kept: decode, resize | crop, flip, normalize.

Who has a cache uses it as documented; the others do all the work again. The rate is that of the epochs after the first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.photos import MEAN, STD, Photos, decoded, normalized, opencv, part, resized, write_photos
from benchmarks.peers.workload import Array, Cached, Row, Workload, split_mix

KEPT_SIDE, SIDE = 256, 224
SCALE = (0.5, 1.0)


class CachedPhotos(Photos, Cached):
    side = SIDE

    def prefix(self, content: bytes) -> Array:
        return resized(decoded(content), KEPT_SIDE, KEPT_SIDE)

    def suffix(self, i: int, kept: Array) -> Row:
        return self.rest(i, kept, np.empty((3, SIDE, SIDE), np.float32))

    def rest(self, i: int, kept: Array, out: Array) -> Row:
        numbers = split_mix(i, 41)
        top, left, height, width = part(numbers[:40], KEPT_SIDE, KEPT_SIDE, SCALE)
        image = resized(kept[top : top + height, left : left + width], SIDE, SIDE)
        if numbers[40] < 0.5:
            image = opencv().flip(image, 1)
        normalized(image, out)
        return {"id": np.int64(i), "image": out}

    def into(self, i: int, content: bytes, out: Array) -> Row:
        return self.rest(i, self.prefix(content), out)


def prepare(folder: Path, rows: int, own: Path | None) -> None:
    write_photos(folder, rows, own)


def pipeline(work: Any, _setting: str) -> Any:
    import cedar
    from cedar.operators import image

    return (
        cedar.read_files(f"{work.folder}/images/*.jpg")
        .map(image.decode(), "bytes", into="image")
        .drop("bytes")
        .map(image.resize((KEPT_SIDE, KEPT_SIDE), antialias=False), "image")
        .cache()
        .map(image.random_resized_crop(SIDE, scale=SCALE, antialias=False), "image")
        .map(image.horizontal_flip(), "image")
        .map(image.to_float(), "image")
        .map(image.normalize(MEAN, STD), "image")
        .map(image.channels_first(), "image")
        .select("path", "image")
        .batch(work.batch, last="keep")
    )


WORKLOAD = Workload(
    name="cached",
    title="second epoch, deterministic prefix cached",
    unit="images",
    rows=(130, 2048, 4000),
    work=CachedPhotos,
    prepare=prepare,
    pipeline=pipeline,
    random=True,
    tolerance=0.05,
)
