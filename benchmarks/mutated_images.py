"""Damaged image files by the thousand: decode() must answer each with an image or an error, and soon.

``python -m benchmarks.mutated_images --inputs 10000`` decodes so many mutated files of every format in a process of
its own, which the parent watches: it counts images, errors, crashes of the process and files that take over 2 seconds.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from cedar.operators.image.decoding import decode_image
from cedar.operators.image.headers import BadImage, read_header

SECONDS = 2.0  # that one file may take
LIMIT = 1 << 24  # pixels
FORMATS: dict[str, dict[str, Any]] = {
    "jpeg": {"format": "JPEG", "quality": 85},
    "jpeg-progressive": {"format": "JPEG", "quality": 85, "progressive": True},
    "jpeg-restarts": {"format": "JPEG", "quality": 75, "restart_marker_blocks": 2},
    "jpeg-gray": {"format": "JPEG", "mode": "L"},
    "jpeg-cmyk": {"format": "JPEG", "mode": "CMYK"},
    "png": {"format": "PNG"},
    "png-palette": {"format": "PNG", "mode": "P"},
    "png-alpha": {"format": "PNG", "mode": "RGBA"},
    "png-16bit": {"format": "PNG", "mode": "I;16"},
    "webp": {"format": "WEBP", "quality": 80},
    "webp-lossless": {"format": "WEBP", "lossless": True},
    "webp-animated": {"format": "WEBP", "frames": 3},
    "gif": {"format": "GIF", "frames": 2},
    "bmp": {"format": "BMP"},
    "tiff": {"format": "TIFF"},
}


def picture(height: int = 48, width: int = 72) -> npt.NDArray[np.uint8]:
    """An RGB image with smooth parts, edges and noise."""
    y, x = np.mgrid[:height, :width]
    image = np.stack([x * 3 % 256, y * 5 % 256, (x * y) // 8 % 256], axis=2)
    image[height // 4 : height // 2, width // 3 : width // 2] = (250, 20, 90)
    noise = np.random.default_rng(0).integers(0, 24, image.shape)
    return np.clip(image + noise, 0, 255).astype(np.uint8)


def encoded(kind: str, image: npt.NDArray[np.uint8] | None = None) -> bytes:
    """A file of one of the ``FORMATS``."""
    from PIL import Image

    options = dict(FORMATS[kind])
    frame = Image.fromarray(picture() if image is None else image)
    mode = options.pop("mode", "RGB")
    if mode == "I;16":
        frame = Image.fromarray(np.asarray(frame.convert("L")).astype(np.uint16) * 257)
    else:
        frame = frame.convert(mode)
    if frames := options.pop("frames", 0):
        options |= {"save_all": True, "append_images": [frame.rotate(90 * i) for i in range(1, frames)]}
    file = io.BytesIO()
    frame.save(file, **options)
    return file.getvalue()


def mutated(data: bytes, seed: int) -> bytes:
    """A damaged copy: bytes changed, cut off, left out, doubled or zeroed."""
    rng = np.random.default_rng(seed)
    at, long = int(rng.integers(len(data))), int(rng.integers(1, 64))
    match seed % 6:
        case 0:
            return data[:at]
        case 1:
            return data[:at] + data[at + long :]
        case 2:
            return data[:at] + data[at : at + long] + data[at:]
        case 3:
            return data[:at] + bytes(long) + data[at + long :]
    many = int(rng.integers(1, 16))
    reach = len(data) if seed % 6 == 4 else min(len(data), 256)  # the header, where it matters most
    changed = np.frombuffer(data, dtype=np.uint8).copy()
    changed[rng.integers(0, reach, many)] = rng.integers(0, 256, many)
    return changed.tobytes()


def outcome(data: bytes, rows: int | None = None) -> npt.NDArray[np.uint8] | str:
    """The image, or why there is none."""
    try:
        header = read_header(data, LIMIT)
        image = decode_image(data, header, "RGB", rows=rows)
    except BadImage as bad:
        return bad.why
    return image if rows is None else image[:rows]


# ---- the long run ----------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What became of the files of one format."""

    images: int = 0
    errors: int = 0
    crashes: list[int] = field(default_factory=list)
    slow: list[int] = field(default_factory=list)
    longest: float = 0.0


def _work(connection: Any, kind: str, first: int, stop: int) -> None:
    data = encoded(kind)
    for seed in range(first, stop):
        found = outcome(mutated(data, seed))
        connection.send(isinstance(found, str))
    connection.close()


def tally(kind: str, inputs: int) -> Tally:
    """Decode mutated files of one format in a process that may die, or be stopped after ``SECONDS`` on one file."""
    made, seed = Tally(), 0
    while seed < inputs:
        mine, theirs = multiprocessing.Pipe(duplex=False)
        worker = multiprocessing.Process(target=_work, args=(theirs, kind, seed, inputs))
        worker.start()
        theirs.close()
        started = True
        for wrong, seconds in _answers(mine, 20.0):
            if wrong is None:
                (made.slow if seconds >= SECONDS else made.crashes).append(seed)
                seed += 1
                started = False
                break
            made.errors, made.images = made.errors + wrong, made.images + (not wrong)
            made.longest = max(made.longest, seconds if seed else 0.0)
            seed += 1
        worker.kill()
        worker.join(10)
        if started and seed < inputs:
            made.crashes.append(seed)
            seed += 1
    return made


def _answers(connection: Any, start: float) -> Iterator[tuple[bool | None, float]]:
    """(was it an error, seconds it took); None if nothing came. The first one may take ``start`` seconds."""
    allowed = start
    while True:
        begun = time.perf_counter()
        if not connection.poll(allowed):
            yield None, time.perf_counter() - begun
            return
        try:
            wrong = connection.recv()
        except EOFError:
            return
        yield wrong, time.perf_counter() - begun
        allowed = SECONDS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000, help="mutated files of each format")
    parser.add_argument("--formats", nargs="*", default=list(FORMATS), choices=list(FORMATS))
    asked = parser.parse_args()
    print(f"{'format':18} {'images':>8} {'errors':>8} {'crashes':>8} {'over 2 s':>8} {'longest':>9}")
    for kind in asked.formats:
        found = tally(kind, asked.inputs)
        print(
            f"{kind:18} {found.images:8} {found.errors:8} {len(found.crashes):8} {len(found.slow):8} "
            f"{found.longest:8.3f}s {found.crashes[:5] or ''} {found.slow[:5] or ''}",
            flush=True,
        )


if __name__ == "__main__":
    main()
