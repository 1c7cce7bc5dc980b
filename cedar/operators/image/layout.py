"""What an image column is: its types, and the images of a column one by one.

An image is an ndarray of shape (height, width, channels), uint8 until ``to_float``. Images of one size are a tensor
column (rows, height, width, channels); images of differing sizes are a column of objects.
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
    """Images of differing sizes, as objects: how many channels (None: they differ), and of which dtype."""

    channels: int | None = 3
    dtype: str = "uint8"

    def __str__(self) -> str:
        return f"{self.dtype} image[?, ?, {'?' if self.channels is None else self.channels}]"


@dataclass(frozen=True)
class PlanarType(ObjectType):
    """Images (channels, height, width) of differing sizes, as objects: what ``channels_first`` leaves."""

    def __str__(self) -> str:
        return "image[channels, height, width]"


def checked(transform: Transform, kind: ColumnType, dtypes: tuple[str, ...] = DTYPES) -> tuple[int | None, str | None]:
    """Channels and dtype of a column of images; None if only its rows tell.

    Raises:
        PipelineError: it holds no images of those dtypes.
    """
    wants = f"images, (height, width, channels) of {' or '.join(dtypes)}"
    if isinstance(kind, TensorType):
        if len(kind.shape) != 3 or not 1 <= kind.shape[2] <= 4 or 0 in kind.shape or kind.dtype not in dtypes:
            raise transform.unfit(kind, wants)
        return kind.shape[2], kind.dtype
    if isinstance(kind, ImageType):
        if kind.dtype not in dtypes:
            raise transform.unfit(kind, wants)
        return kind.channels, kind.dtype
    if isinstance(kind, PlanarType):
        raise PipelineError(
            f"{type(transform).__name__} takes {wants}, not {kind}", fix="put channels_first last, behind all others"
        )
    if isinstance(kind, ObjectType):
        return None, None
    raise transform.unfit(kind, wants)


def flaw(image: Any) -> str | None:
    """Why an object is not an image; None if it is one."""
    if image is None:
        return "there is no image"
    if not isinstance(image, np.ndarray) or image.ndim != 3 or not 1 <= image.shape[2] <= 4:
        shape = f" of shape {image.shape}" if isinstance(image, np.ndarray) else ""
        return f"{type(image).__name__}{shape} is not an image (height, width, channels)"
    if image.dtype.name not in DTYPES:
        return f"an image of {image.dtype.name}, not of uint8 or float32"
    return None if image.size else f"an image of no pixels, shape {image.shape}"


def layout(image: Image) -> Layout:
    """Channels and dtype."""
    return image.shape[2], image.dtype.name


def likely(images: Sequence[Any]) -> ImageType | None:
    """What most of the images in a column of objects are; None if there is none."""
    commonest = Counter(layout(image) for image in images if flaw(image) is None).most_common(1)
    return ImageType(*commonest[0][0]) if commonest else None


# ---- where pixels on their way are written ---------------------------------------------------------------------------


Room: TypeAlias = Callable[[tuple[int, ...]], Image]  # a shape to a uint8 image, to be written to


def new_image(shape: tuple[int, ...]) -> Image:
    """Memory of its own."""
    return np.empty(shape, dtype=np.uint8)


class ReusedImage:
    """Memory for one image at a time: the next one takes it over.

    An operating system clears each page that it hands out, which can take as long as decoding what is written there.
    """

    def __init__(self) -> None:
        self._held = np.empty(0, dtype=np.uint8)

    def __call__(self, shape: tuple[int, ...]) -> Image:
        size = math.prod(shape)
        if len(self._held) < size:
            self._held = np.empty(size * 5 // 4, dtype=np.uint8)
        return self._held[:size].reshape(shape)
