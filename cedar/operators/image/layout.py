"""Types of image columns, and checks of single images.

An image is an ndarray of shape (height, width, channels), uint8 until ``to_float``. Images of equal size form a tensor
column (rows, height, width, channels); images of different sizes form an object column.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cedar.core.columns import ColumnType, ObjectType, TensorType
from cedar.core.errors import PipelineError
from cedar.operators.transform import Transform

Image = npt.NDArray[Any]
Layout = tuple[int, str]  # channels, dtype
Sizes = npt.NDArray[np.int64]  # (rows, 2): height, width

DTYPES = ("uint8", "float32")


@dataclass(frozen=True)
class ImageType(ObjectType):
    """The type of an object column of images of different sizes; ``channels`` is None if it differs between images."""

    channels: int | None = 3
    dtype: str = "uint8"

    def __str__(self) -> str:
        return f"{self.dtype} image[?, ?, {'?' if self.channels is None else self.channels}]"


@dataclass(frozen=True)
class PlanarType(ObjectType):
    """The type of an object column of images (channels, height, width), as ``channels_first`` returns them."""

    def __str__(self) -> str:
        return "image[channels, height, width]"


def check_images(
    transform: Transform, kind: ColumnType, dtypes: tuple[str, ...] = DTYPES
) -> tuple[int | None, str | None]:
    """Return the channels and the dtype of a column of images; each is None if rows differ or may differ in it.

    Raises:
        PipelineError: the column does not contain images of these dtypes.
    """
    wants = f"images, (height, width, channels) of {' or '.join(dtypes)}"
    advice = {"uint8": "put to_float() before it", "float32": "put it before to_float(), and use to_float() once"}
    if isinstance(kind, TensorType):
        if len(kind.shape) != 3 or not 1 <= kind.shape[2] <= 4 or 0 in kind.shape:
            raise transform.unfit(kind, wants)
        if kind.dtype not in dtypes:
            raise transform.unfit(kind, wants, advice.get(kind.dtype, "cast the column, or map it first"))
        return kind.shape[2], kind.dtype
    if isinstance(kind, ImageType):
        if kind.dtype not in dtypes:
            raise transform.unfit(kind, wants, advice[kind.dtype])
        return kind.channels, kind.dtype
    if isinstance(kind, PlanarType):
        raise PipelineError(
            f"{type(transform).__name__} takes {wants}, not {kind}",
            fix="put channels_first last, after all other image operators",
        )
    if isinstance(kind, ObjectType):
        return None, None
    raise transform.unfit(kind, wants)


def invalid_reason(image: Any) -> str | None:
    """Return why an object is not an image, or None if it is one."""
    if image is None:
        return "there is no image"
    if not isinstance(image, np.ndarray) or image.ndim != 3 or not 1 <= image.shape[2] <= 4:
        shape = f" of shape {image.shape}" if isinstance(image, np.ndarray) else ""
        if type(image).__module__.partition(".")[0] == "PIL":
            return "a PIL image is not an array (height, width, channels); convert it first: .map(np.asarray, 'image')"
        return f"{type(image).__name__}{shape} is not an image (height, width, channels)"
    if image.dtype.name not in DTYPES:
        return f"an image of {image.dtype.name}, not of uint8 or float32"
    return None if image.size else f"an image without pixels, of shape {image.shape}"


def layout_of(image: Image) -> Layout:
    """Return the channels and dtype of an image."""
    return image.shape[2], image.dtype.name


def most_frequent_type(images: Sequence[Any]) -> ImageType | None:
    """Return the most frequent type of the images in an object column; None if it has no image."""
    commonest = Counter(layout_of(image) for image in images if invalid_reason(image) is None).most_common(1)
    return ImageType(*commonest[0][0]) if commonest else None


# ---- memory for intermediate images ----------------------------------------------------------------------------------


Allocator: TypeAlias = Callable[[tuple[int, ...]], Image]  # shape -> a uint8 image to write to


def new_image(shape: tuple[int, ...]) -> Image:
    """Allocate an uninitialized image."""
    return np.empty(shape, dtype=np.uint8)


class ReusedImage:
    """Provides memory for one image at a time, and reuses it for the next image.

    Newly allocated pages are cleared by the operating system, which can take as long as decoding an image.
    """

    def __init__(self) -> None:
        self._held = np.empty(0, dtype=np.uint8)

    def __call__(self, shape: tuple[int, ...]) -> Image:
        size = math.prod(shape)
        if len(self._held) < size:
            self._held = np.empty(size * 5 // 4, dtype=np.uint8)
        return self._held[:size].reshape(shape)
