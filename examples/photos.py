"""Photographs of any size to batches of one size, decoded with Pillow in a function of our own.

python examples/photos.py folder/of/photos
"""

import io
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

import cedar

SIDE = 96


def decode(data: bytes) -> npt.NDArray[np.uint8]:
    """A JPEG as uint8 of shape (96, 96, 3): the largest square in its middle, made smaller."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    square = image.resize((SIDE, SIDE), box=(left, top, left + side, top + side))
    return np.asarray(square)


def flip(image: npt.NDArray[np.uint8], *, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Left to right, for every second photograph; which ones depends on seed, epoch and photograph alone."""
    return np.ascontiguousarray(image[:, ::-1]) if rng.random() < 0.5 else image


def pipeline(folder: str, batch: int = 2) -> cedar.Pipeline:
    """Batches of `path` and `image`, uint8 of shape (batch, 96, 96, 3)."""
    return (
        cedar.read_files(f"{folder}/*.jpg")
        .map(decode, "bytes", into="image")
        .map(flip, "image", random=True)
        .drop("bytes")
        .shuffle(seed=1)
        .batch(batch, last="keep")
    )


def main(folder: str) -> None:
    with pipeline(folder).loader(format="torch") as loader:
        for batch in loader:
            images: Any = batch["image"].permute(0, 3, 1, 2).float() / 255  # channels first, as models want them
            print(f"batch {tuple(images.shape)}")
            for path, (red, green, blue) in zip(batch["path"], images.mean(dim=(2, 3)).tolist(), strict=True):
                print(f"  {path.rsplit('/', 1)[-1]:<14} red {red:.2f}  green {green:.2f}  blue {blue:.2f}")


if __name__ == "__main__":
    main(sys.argv[1])
