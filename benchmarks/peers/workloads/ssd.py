"""SSD's images: decode, color jitter, expand, a crop that keeps enough of some box, resize to 300, flip, normalize.

Boxes and labels follow. Resizing is bilinear without antialias, for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.photos import MEAN, STD, Photos, decoded, jittered, normalized, opencv, resized, write_photos
from benchmarks.peers.workload import Array, Row, Workload, library, split_mix

SIDE = 300
JITTER = (0.125, 0.5, 0.5, 0.05)
LARGEST = 2.0  # canvas, in sides of the image
OVERLAPS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
TRIALS, TURNS = 40, 10


class SSD(Photos):
    """A row has its image, and its boxes and labels as lists."""

    batch = 32
    side = SIDE
    regular = False
    compared = ("image", "boxes", "labels")

    @cached_property
    def annotations(self) -> dict[str, Array]:
        with np.load(self.path / "annotations.npz") as file:
            return {name: file[name] for name in file.files}

    def truth(self, i: int) -> tuple[Array, Array]:
        held = self.annotations
        first, last = held["offsets"][i : i + 2]
        return held["boxes"][first:last], held["labels"][first:last]

    def into(self, i: int, content: bytes, out: Array) -> Row:
        image = decoded(content)
        boxes, labels = self.truth(i)
        n = split_mix(i, 13)
        b, c, s, h = (1 + strength * (2 * u - 1) for strength, u in zip(JITTER, n[:4], strict=True))
        image = jittered(image, np.argsort(n[4:8]), b, c, s, h - 1)
        if n[8] < 0.5:
            image, boxes = expanded(image, boxes, n[9:12])
        image, boxes, labels = cropped(image, boxes, labels, i)
        height, width = image.shape[:2]
        image = resized(image, SIDE, SIDE)
        boxes = boxes * np.array([SIDE / width, SIDE / height] * 2, np.float32)
        if n[12] < 0.5:
            image = opencv().flip(image, 1)
            boxes = np.stack([SIDE - boxes[:, 2], boxes[:, 1], SIDE - boxes[:, 0], boxes[:, 3]], axis=1)
        normalized(image, out)
        return {"id": np.int64(i), "image": out, "boxes": boxes.astype(np.float32), "labels": labels}

    def collate(self, rows: Sequence[Row]) -> dict[str, Array]:
        made: dict[str, Array] = {
            name: np.stack([row[name] for row in rows]) for name in ("id", "image") if name in rows[0]
        }
        made["boxes/offsets"] = np.concatenate([[0], np.cumsum([len(row["boxes"]) for row in rows])])
        made["labels/offsets"] = made["boxes/offsets"].copy()
        for name in ("boxes", "labels"):
            made[f"{name}/values"] = np.concatenate([row[name] for row in rows])
        return made


def expanded(image: Array, boxes: Array, numbers: Array) -> tuple[Array, Array]:
    """On a larger black canvas."""
    height, width = image.shape[:2]
    factor = 1 + numbers[0] * (LARGEST - 1)
    tall, wide = int(height * factor), int(width * factor)
    top, left = int((tall - height) * numbers[1]), int((wide - width) * numbers[2])
    canvas = np.zeros((tall, wide, 3), np.uint8)
    canvas[top : top + height, left : left + width] = image
    return canvas, boxes + np.array([left, top, left, top], np.float32)


def cropped(image: Array, boxes: Array, labels: Array, row: int) -> tuple[Array, Array, Array]:
    """The first drawn part in which the center of a box lies that overlaps it enough; all trials at once."""
    height, width = image.shape[:2]
    for turn in range(TURNS):
        n = split_mix((row << 8) + turn + (1 << 40), 1 + 4 * TRIALS)
        overlap = OVERLAPS[int(n[0] * len(OVERLAPS))]
        if overlap >= 1:
            break
        w, h, x, y = n[1:].reshape(4, TRIALS)
        w, h = (width * (0.3 + 0.7 * w)).astype(int), (height * (0.3 + 0.7 * h)).astype(int)
        x, y = ((width - w) * x).astype(int), ((height - h) * y).astype(int)
        parts = np.stack([x, y, x + w, y + h], axis=1)
        low, high = np.maximum(parts[:, None, :2], boxes[:, :2]), np.minimum(parts[:, None, 2:], boxes[:, 2:])
        shared = np.maximum(high - low, 0).prod(axis=2)
        union = (w * h)[:, None] + (boxes[:, 2:] - boxes[:, :2]).prod(axis=1) - shared
        centers: Array = (boxes[:, :2] + boxes[:, 2:]) / 2
        inside = np.all(((parts[:, None, :2] < centers) & (centers < parts[:, None, 2:])), axis=2)
        fits = (w <= 2 * h) & (h <= 2 * w) & (inside & (shared >= overlap * union)).any(axis=1)
        if fits.any():
            k = int(fits.argmax())
            left, top, right, bottom = parts[k].tolist()
            kept = np.clip(boxes[inside[k]], [left, top] * 2, [right, bottom] * 2) - np.array(
                [left, top] * 2, np.float32
            )
            return image[top:bottom, left:right], kept.astype(np.float32), labels[inside[k]]
    return image, boxes, labels


def prepare(folder: Path, rows: int, own: Path | None) -> None:
    """Photographs, and one to six boxes with labels each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    write_photos(folder, rows, own)
    boxes, counts = [], []
    for i in range(rows):
        height, width = library("simplejpeg").decode_jpeg_header((folder / "images" / f"{i:06d}.jpg").read_bytes())[:2]
        rng = np.random.default_rng([i, 1])
        count = int(rng.integers(1, 7))
        corner = rng.random((count, 2)) * 0.7
        size = 0.1 + rng.random((count, 2)) * 0.4
        shares = np.concatenate([corner, np.minimum(corner + size, 1.0)], axis=1)
        boxes.append((shares * [width, height, width, height]).astype(np.float32))
        counts.append(count)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    values = np.concatenate(boxes)
    labels = np.random.default_rng(2).integers(0, 90, len(values))
    np.savez(folder / "annotations.npz", boxes=values, labels=labels, offsets=offsets)
    held = pa.array(offsets.astype(np.int32))
    four = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), 4)
    columns = {
        "id": np.arange(rows),
        "boxes": pa.ListArray.from_arrays(held, four),
        "labels": pa.ListArray.from_arrays(held, pa.array(labels)),
    }
    pq.write_table(pa.table(columns), folder / "annotations.parquet")


def pipeline(work: Any, _setting: str) -> Any:
    import cedar
    from cedar.operators import image

    return (
        cedar.zip(
            cedar.read_files(f"{work.folder}/images/*.jpg"), cedar.read_parquet(f"{work.folder}/annotations.parquet")
        )
        .map(image.decode(), "bytes", into="image")
        .map(image.color_jitter(*JITTER), "image")
        .map(image.expand(side_range=(1.0, LARGEST)), "image", "boxes")
        .map(image.iou_crop(), "image", "boxes", "labels")
        .map(image.resize((SIDE, SIDE), antialias=False), "image", "boxes")
        .map(image.horizontal_flip(), "image", "boxes")
        .map(image.to_float(), "image")
        .map(image.normalize(MEAN, STD), "image")
        .map(image.channels_first(), "image")
        .select("path", "image", "boxes", "labels")
        .batch(work.batch, last="keep")
    )


def decode_alone(work: SSD, rows: Sequence[int]) -> int:
    for i in rows:
        decoded(work.read(i))
    return len(rows)


WORKLOAD = Workload(
    name="ssd",
    title="SSD images with boxes",
    unit="images",
    rows=(130, 2048, 6000),
    work=SSD,
    prepare=prepare,
    pipeline=pipeline,
    limits={"decode": decode_alone},
    random=True,
    tolerance=0.05,
)
