"""Combine consecutive pixel operators into one pass over the image; see ``compile_pixels``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from cedar.core import buffers, limits
from cedar.operators.draws import Draws
from cedar.operators.image import pixels_plain, pixels_steps
from cedar.operators.image.kernels import compiled
from cedar.operators.image.layout import Image, Sizes
from cedar.operators.image.normalize import Normalize, ToFloat
from cedar.operators.image.pixel_transform import PixelTransform
from cedar.operators.image.pixels_steps import NONE, WHOLE, Codes, Numbers, Weights, concatenate_steps
from cedar.operators.native import slow_path_lock

Part = tuple[int, int, int, int]  # top, left, height, width
Addresses = npt.NDArray[np.int64]
BYTES, FLOATS = np.dtype(np.uint8), np.dtype(np.float32)


@dataclass(frozen=True)
class PixelProgram:
    """Consecutive pixel operators, run as one pass over each image.

    Results are bit-identical to running the operators one by one, with uint8 images until ``to_float``.
    """

    colors: tuple[PixelTransform, ...]  # operators on uint8 images
    to_float: bool
    norms: tuple[Normalize, ...]
    channels_first: bool = False

    def run(
        self, images: Image | Sequence[Image], draws: Sequence[Draws | None], out: Image | Sequence[Image] | None = None
    ) -> Any:
        """Return the images after all operators; ``images`` is not modified.

        Args:
            images: (rows, height, width, channels), or an array (height, width, channels) per row; any strides.
            draws: for each operator, the draws of the rows; None for operators that are not random.
            out: contiguous arrays to write results to.

        Returns:
            ``out`` if given; otherwise one array if ``images`` is one array, else a list of arrays.
        """
        rows = len(images)
        dtype = np.float32 if self.to_float or self.norms else np.uint8
        if out is None:
            size = sum(math.prod(self.shape(image.shape)) for image in images) * np.dtype(dtype).itemsize
            limits.take(size, f"{rows:,} images")
        if out is None and isinstance(images, np.ndarray):
            out = buffers.empty((rows, *self.shape(images.shape[1:])), dtype)
        elif out is None:
            out = [np.empty(self.shape(image.shape), dtype=dtype) for image in images]
        if self.norms and not self.to_float:
            for image, result in zip(images, out, strict=True):
                _standardize(image, self.norms, result, self.channels_first)
        elif rows:
            self.prepare(sizes_of(images), draws).apply(images, out)
        return out

    __call__ = run

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the result for an image of shape (height, width, channels)."""
        height, width, channels = shape
        for color in self.colors:
            channels = color.output_channels(channels)
        return (channels, height, width) if self.channels_first else (height, width, channels)

    def prepare(self, sizes: Sizes, draws: Sequence[Draws | None]) -> PreparedPass:
        """Evaluate the random draws for images of the given heights and widths (rows, 2), and return the pass."""
        color_draws = draws[: len(self.colors)]
        steps = [color.steps(sizes, color_draw) for color, color_draw in zip(self.colors, color_draws, strict=True)]
        return PreparedPass(self, *concatenate_steps(steps, len(sizes)))


class PreparedPass:
    """A pass over images with all random draws evaluated. It can process all images together, or one at a time.

    Args:
        program: the operators to run.
        codes, numbers, weights, lengths: the steps of each row; see ``pixels_steps.concatenate_steps``.
    """

    def __init__(self, program: PixelProgram, codes: Codes, numbers: Numbers, weights: Weights, lengths: Codes) -> None:
        self.program = program
        self._codes, self._numbers, self._weights, self._lengths = codes, numbers, weights, lengths
        self._work = np.empty((4, 0), dtype=np.uint8)
        self._norms = np.ones((len(program.norms), 2, 4), dtype=np.float32)
        for norm, row in zip(program.norms, self._norms, strict=True):
            row[:, : norm.channels or 4] = norm.per_channel(norm.channels or 4)

    @cached_property
    def _changed(self) -> list[bool]:
        """A mask of the rows with any step."""
        changed: list[bool] = (self._codes != NONE).any(axis=1).tolist()
        return changed

    @cached_property
    def _needs_whole_image(self) -> list[bool]:
        """A mask of the rows with a step that needs the whole image."""
        looks: list[bool] = np.any(self._codes >= WHOLE, axis=1).tolist()
        return looks

    def leaves_unchanged(self, row: int, channels: int) -> bool:
        """Return whether the pass leaves a row's image unchanged."""
        program = self.program
        same = not program.to_float and not program.channels_first and program.shape((1, 1, channels))[2] == channels
        return same and not self._changed[row]

    def apply(self, images: Any, out: Any) -> None:
        """Process the images of all rows; write the results to ``out``."""
        for image, result in zip(images, out, strict=True):
            self._check(result, image.shape)
        kernels = compiled("pixels")
        if kernels is None:
            for row, (image, result) in enumerate(zip(images, out, strict=True)):
                self._run_in_numpy(row, image, result)
            return
        images, addresses, layouts = _addresses_of(images)
        _, targets, target_layouts = _addresses_of(out)
        layouts[:, 4] = target_layouts[:, 0] * target_layouts[:, 1] * target_layouts[:, 2]
        parts = np.zeros((len(layouts), 4), dtype=np.int64)
        parts[:, 2:] = layouts[:, :2]
        self._run(kernels, addresses, layouts, parts, slice(None), targets)

    def apply_one(self, row: int, image: Image, out: Image, part: Part) -> None:
        """Process the image of one row; write the result to ``out``.

        Args:
            part: the needed part of the result; pixels of ``out`` outside this part are undefined.
        """
        self._check(out, image.shape)
        kernels = compiled("pixels")
        if kernels is None:
            if not self._needs_whole_image[row]:
                top, left, tall, wide = part
                rows, columns = slice(top, top + tall), slice(left, left + wide)
                image, out = (
                    image[rows, columns],
                    out[(..., rows, columns) if self.program.channels_first else (rows, columns)],
                )
            self._run_in_numpy(row, image, out)
            return
        (image,), addresses, layouts = _addresses_of([image])
        layouts[0, 4] = out.size
        targets = np.array([out.__array_interface__["data"][0]], dtype=np.int64)
        self._run(kernels, addresses, layouts, np.array([part], dtype=np.int64), slice(row, row + 1), targets)

    def _run_in_numpy(self, row: int, image: Image, out: Image) -> None:
        """Run the pass in NumPy instead of the kernels."""
        tables = [table[:length] for table, length in zip(self._weights, self._lengths.tolist(), strict=True)]
        codes, numbers = self._codes[row], self._numbers[row]
        with slow_path_lock:
            pixels_plain.apply(image, out, codes, numbers, tables, self._norms, self.program.channels_first)

    def _check(self, out: Image, size: Sequence[int]) -> None:
        if not 1 <= size[2] <= 4:
            raise ValueError(f"{size[2]} channels: an image (height, width, channels) has 1 to 4")
        shape, dtype = self.program.shape(size), FLOATS if self.program.to_float else BYTES
        if out.shape != shape or out.dtype != dtype or not out.flags.c_contiguous:
            raise ValueError(f"out is not contiguous, of shape {shape} and {dtype}")

    def _run(
        self, kernels: Any, addresses: Addresses, layouts: Addresses, parts: Addresses, rows: slice, targets: Addresses
    ) -> None:
        program = self.program
        writes = pixels_steps.PLANES if program.channels_first else pixels_steps.PIXELS
        if program.to_float:
            writes = pixels_steps.FLOAT_PLANES if program.channels_first else pixels_steps.FLOATS
        if any(self._needs_whole_image[rows]):
            largest = max(height * width for height, width, *_ in layouts.tolist())
            if self._work.shape[1] < largest:  # reuse memory, since allocation is slow
                self._work = np.empty((4, largest * 5 // 4), dtype=np.uint8)
        kernels.apply(
            addresses, layouts, parts, self._codes[rows], self._numbers[rows], self._weights, self._lengths,
            self._norms, writes, targets, self._work,
        )  # fmt: skip


def sizes_of(images: Image | Sequence[Image]) -> Sizes:
    """Return the heights and widths of images, int64 (rows, 2)."""
    if isinstance(images, np.ndarray):
        return np.broadcast_to(np.array(images.shape[1:3], dtype=np.int64), (len(images), 2))
    return np.array([image.shape[:2] for image in images], dtype=np.int64)


def _addresses_of(images: Any) -> tuple[Any, Addresses, Addresses]:
    """Return images with contiguous rows, their addresses, and (height, width, channels, values from row to row, 0).
    Images with other strides are copied, so callers must keep the returned images while they use the addresses.
    """
    if isinstance(images, np.ndarray) and images.dtype != object:
        height, width, channels = images.shape[1:]
        item = images.itemsize
        if images.strides[3] == item and images.strides[2] == channels * item and images.strides[1] >= 0:
            first = images.__array_interface__["data"][0]
            addresses = first + np.arange(len(images), dtype=np.int64) * images.strides[0]
            layout = np.array([height, width, channels, images.strides[1] // item, 0], dtype=np.int64)
            return images, addresses, np.tile(layout, (len(images), 1))
    dense, addresses, layouts = [], [], []
    for image in images:
        stride, across, along = image.strides
        if along != image.itemsize or across != image.itemsize * image.shape[2] or stride < 0:
            image = np.ascontiguousarray(image)
            stride = image.strides[0]
        dense.append(image)
        addresses.append(image.__array_interface__["data"][0])
        layouts.append((*image.shape, stride // image.itemsize, 0))
    return dense, np.array(addresses, dtype=np.int64), np.array(layouts, dtype=np.int64).reshape(len(dense), 5)


def compile_pixels(transforms: Sequence[Any], *, channels_first: bool = False) -> PixelProgram:
    """Combine consecutive pixel operators into a program.

    Args:
        transforms: operators on uint8, then optionally ``to_float``, then any number of ``normalize``.
        channels_first: whether results have the shape (channels, height, width).

    Raises:
        ValueError: the operators are in another order.
    """
    colors: list[PixelTransform] = []
    norms: list[Normalize] = []
    to_float = False
    for transform in transforms:
        if isinstance(transform, Normalize):
            norms.append(transform)
        elif norms or to_float or not isinstance(transform, PixelTransform):
            raise ValueError(f"{type(transform).__name__} does not follow the operators before it in one pass")
        elif isinstance(transform, ToFloat):
            to_float = True
        else:
            colors.append(transform)
    return PixelProgram(tuple(colors), to_float, tuple(norms), channels_first)


def _standardize(image: Image, norms: Sequence[Normalize], out: Image, channels_first: bool) -> None:
    """Normalize an image that is already float32."""
    for norm in norms:
        mean, std = norm.per_channel(image.shape[2])
        with np.errstate(all="ignore"):  # overflow gives infinity, as in the compiled pass
            image = (image - mean) / std
    out[:] = image.transpose(2, 0, 1) if channels_first else image
