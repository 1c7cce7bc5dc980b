"""Sources of the images of a block: image files in memory, or arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from cedar.core.columns import OBJECT, Column, ColumnType, TensorType, objects, type_of
from cedar.operators.image.decode import Decode
from cedar.operators.image.decoding import decode_image, orientation_flips
from cedar.operators.image.headers import BadImage, Header, max_pixels, read_header
from cedar.operators.image.layout import Allocator, Image, ImageType, ReusedImage, Sizes, invalid_reason, new_image
from cedar.operators.image.moves import Steps
from cedar.operators.image.pixels import PreparedPass
from cedar.operators.image.resizing import resized


class Source(Protocol):
    """The images of a block, one per row.

    Attributes:
        kind: the type of the images.
        sizes: int64 (rows, 2): heights and widths of the images; 1 for rows without a valid image.
        bad: the errors of rows without a valid image.
        fails_late: whether ``image`` may raise BadImage for other rows.
    """

    kind: ColumnType
    sizes: Sizes
    bad: dict[int, BadImage]
    fails_late: bool

    def image(self, row: int, steps: Steps) -> tuple[Image, Steps | ScaledMoves]:
        """Return the image of a row, at least the part that the steps need, and the steps that remain to be applied.

        Raises:
            BadImage: the image cannot be decoded.
        """

    def reuse(self) -> None:
        """Allow the source to reuse an image's memory when the next image is requested."""

    def column(self) -> Column:
        """Return all images as a column; values of failed rows are arbitrary."""


class Files:
    """Image files in memory. Each file is decoded when its image is requested."""

    fails_late = True

    def __init__(self, column: Any, decode: Decode, exact: bool) -> None:
        self.decode, self.exact = decode, exact
        self.kind: ColumnType = ImageType(decode.channels)
        self.bad: dict[int, BadImage] = {}
        self.files: list[bytes] = column.to_pylist()
        self.headers: list[Header | None] = [None] * len(self.files)
        self._allocate: Allocator = new_image
        self.sizes = np.ones((len(self.files), 2), dtype=np.int64)
        limit = max_pixels()
        for row, data in enumerate(self.files):
            try:
                if data is None:
                    raise BadImage("there are no bytes (null)")
                header = read_header(data, limit, exif=decode.exif)
            except BadImage as bad:
                self.bad[row] = bad
                continue
            self.headers[row] = header
            turned = header.orientation >= 5
            self.sizes[row] = (header.width, header.height) if turned else (header.height, header.width)

    def image(self, row: int, steps: Steps) -> tuple[Image, Steps | ScaledMoves]:
        header, decode = self.headers[row], self.decode
        assert header is not None
        needed = steps.rows_needed(header.height) if header.orientation == 1 else None
        height, width = self.sizes[row].tolist()
        by = 1 if self.exact or header.jpeg is None else shrink_factor(steps, height, width)
        image = decode_image(
            self.files[row], header, decode.mode, strict=decode.strict, rows=needed, shrink=by, allocate=self._allocate
        )
        if by == 1 or image.shape[1] == width:  # Pillow, the fallback, did not reduce the image
            return image, steps
        down, right = orientation_flips(header.orientation)
        start = (image.shape[0] - height / by if down else 0.0, image.shape[1] - width / by if right else 0.0)
        return image, ScaledMoves(steps, by, (height, width), start)

    def reuse(self) -> None:
        self._allocate = ReusedImage()

    def column(self) -> Column:
        raise AssertionError("files are decoded before they become a column")


class PixelSource:
    """The images of another source after a pass of pixel operators, which runs when an image is requested."""

    def __init__(self, source: Source, pixel_pass: PreparedPass, kind: ColumnType) -> None:
        self._source, self._pass = source, pixel_pass
        self.kind, self.sizes, self.bad, self.fails_late = kind, source.sizes, source.bad, source.fails_late
        self._allocate: Allocator = new_image

    def image(self, row: int, steps: Steps) -> tuple[Image, Steps | ScaledMoves]:
        image, _ = self._source.image(row, Steps((), row))
        if not self._pass.leaves_unchanged(row, image.shape[2]):
            painted = self._allocate(self._pass.program.shape(image.shape))
            self._pass.apply_one(row, image, painted, steps.part_needed(*image.shape[:2]))
            image = painted
        return image, steps

    def reuse(self) -> None:
        self._source.reuse()
        self._allocate = ReusedImage()

    def column(self) -> Column:
        raise AssertionError("images are made before they become a column")


class Arrays:
    """Images that have already been decoded to arrays.

    Args:
        images: a tensor column, or a sequence of images with None for rows without an image.
        kind: the type of the images, if known.
    """

    fails_late = False

    def __init__(self, images: Any, kind: ColumnType | None = None) -> None:
        self.images = images
        self.bad: dict[int, BadImage] = {}
        if isinstance(images, np.ndarray) and images.dtype != object:
            self.kind = kind or type_of(images)
            self.sizes = np.broadcast_to(np.array(images.shape[1:3], dtype=np.int64), (len(images), 2))
            return
        self.sizes = np.ones((len(images), 2), dtype=np.int64)
        for row, image in enumerate(images):
            why = invalid_reason(image) if kind is None else None
            if why:
                self.bad[row] = BadImage(why, "give each row an ndarray of shape (height, width, channels)")
            elif image is not None:
                self.sizes[row] = image.shape[:2]
        self.kind = OBJECT if kind is None else kind

    @property
    def tensor(self) -> bool:
        """Whether all images are in one array."""
        return isinstance(self.kind, TensorType)

    def image(self, row: int, steps: Steps) -> tuple[Image, Steps | ScaledMoves]:
        return self.images[row], steps

    def reuse(self) -> None:
        """Do nothing, since images are not decoded here."""

    def column(self) -> Column:
        return self.images if self.tensor else objects([_without_base(image) for image in self.images])


def _without_base(image: Image | None) -> Image | None:
    """Copy an image if it is a view of a larger array, so that the array can be freed."""
    if image is None or (image.flags.c_contiguous and (image.base is None or image.base.size <= image.size)):
        return image
    return image.copy()


# ---- decoding at reduced size ----------------------------------------------------------------------------------------

# JPEG decoders can decode each block of 8 x 8 pixels to 4 x 4, 2 x 2 or 1 x 1 pixels in a fraction of the time. The
# results differ slightly from resampling the full image, so cedar does this only with ``exact=False``.


FACTORS = (8, 4, 2)


def shrink_factor(steps: Steps, height: int, width: int) -> int:
    """Return the factor (8, 4, 2 or 1) by which decoding may reduce an image, so that resampling need not enlarge it.

    Without antialiasing, it is 1: an output pixel then depends on four exact pixels, which a reduced image lacks.
    """
    resampling = steps.resampling(height, width)
    if resampling is None:
        return 1
    index, (_, _, tall, wide), _ = resampling
    move = steps.moves[index]
    size = move.row(steps.row).size
    assert size is not None
    if not move.filter.antialias or move.filter.interpolation == "nearest":
        return 1
    return next((factor for factor in FACTORS if factor * size[0] <= tall and factor * size[1] <= wide), 1)


@dataclass(frozen=True)
class ScaledMoves:
    """The moves of one row, for an image that was decoded at ``1 / by`` of its size.

    Args:
        size: height and width of the full image.
        start: (y, x) of the full image's corner in the decoded image; not 0 if a flipped side is not a multiple of by.
    """

    steps: Steps
    by: int
    size: tuple[int, int]
    start: tuple[float, float] = (0.0, 0.0)

    def apply(self, image: Image, out: Image | None = None, allocate: Allocator = new_image) -> Image:
        """Return the moved image; see ``Steps.apply``."""
        resampling = self.steps.resampling(*self.size)
        assert resampling is not None
        index, (top, left, tall, wide), mirrored = resampling
        move = self.steps.moves[index]
        size = move.row(self.steps.row).size
        assert size is not None
        # Cut before resampling, so that pixels outside the part do not contribute to its border.
        y, tall_at = self._cut(top, tall, 0, image.shape[0])
        x, wide_at = self._cut(left, wide, 1, image.shape[1])
        box = (y[0], x[0], y[1], x[1])
        flips = self.steps.flips_after(index)
        part = image[tall_at, wide_at]
        if flips is not None:
            return resized(part, size, move.filter, box=box, out=out, flip=flips != mirrored)
        return self.steps.moves_after(index).apply(
            resized(part, size, move.filter, box=box, flip=mirrored), out, allocate
        )

    def _cut(self, begin: int, length: int, axis: int, extent: int) -> tuple[tuple[float, float], slice]:
        """Return the slice of decoded pixels that a part overlaps on an axis, and the part's ends within the slice."""
        first = begin / self.by + self.start[axis]
        last = min(first + length / self.by, float(extent))
        low = math.floor(first)
        return (first - low, last - first), slice(low, math.ceil(last))
