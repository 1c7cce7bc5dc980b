"""decode: bytes of image files to images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

import pyarrow as pa

from cedar.core.columns import Column, ColumnType
from cedar.core.errors import PipelineError, user_site
from cedar.operators.image.base import ImageTransform
from cedar.operators.image.decoding import Mode
from cedar.operators.image.layout import ImageType
from cedar.operators.image.spatial import Spatial
from cedar.operators.transform import Transform


@dataclass(frozen=True)
class Decode(ImageTransform):
    """Image files to images: a column of uint8 arrays of shape (height, width, channels), whose sizes differ.

    JPEG (by libjpeg-turbo), PNG (by libpng) and WebP (by libwebp); GIF, BMP, TIFF and what else Pillow reads: their
    first frame. docs/image_files.md has a table of what CMYK, palettes, transparency, 16 bits and animations become.

    Where a crop follows, what is below it in a JPEG file is not decoded; the pixels are the same. Where a part
    shrinks by 2 or more, a run with ``exact=False`` decodes at 1/2, 1/4 or 1/8 of the sides; pixels differ a little.

    Args:
        mode: "RGB" (transparency is dropped); "GRAY" (1 channel; of a JPEG file its luma, else ITU-R 601 luma as
            Pillow's); "UNCHANGED" (1 to 4 channels, as in the file; CMYK and palettes become RGB).
        exif: turn the image upright as its EXIF orientation says.
        strict: fail on any damage in a JPEG file that the decoder reports. By default, as in Pillow and torchvision,
            a file that is cut off fails, but one that the decoder can continue with gives what it makes of it.

    Raises:
        PipelineError: another mode, a column of anything but bytes, or the extra ``images`` is not installed.

    Fails on rows without bytes, of no known format, cut off or damaged, or with more pixels in the header than
    ``CEDAR_MAX_PIXELS`` (134 million).

    Examples:
        >>> import io
        >>> from PIL import Image
        >>> file = io.BytesIO()
        >>> Image.new("RGB", (3, 2), (255, 0, 9)).save(file, "PNG")
        >>> decode = Decode()
        >>> decode(file.getvalue())[1].tolist()
        [[255, 0, 9], [255, 0, 9], [255, 0, 9]]
    """

    larger: ClassVar[bool] = True
    mode: Mode = "RGB"
    exif: bool = False
    strict: bool = False

    def __post_init__(self) -> None:
        for option in ("exif", "strict"):
            if getattr(self, option) not in (True, False):
                raise PipelineError(f"decode({option}={getattr(self, option)!r}): True or False", site=user_site())
        if self.mode not in get_args(Mode):
            raise PipelineError(
                f"decode(mode={self.mode!r}): it is one of {', '.join(get_args(Mode))}", site=user_site()
            )

    @property
    def channels(self) -> int | None:
        return {"RGB": 3, "GRAY": 1}.get(self.mode)

    def result(self, *types: Any) -> ColumnType:
        (kind,) = types
        if not isinstance(kind, pa.DataType) or not (
            pa.types.is_large_binary(kind) or pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind)
        ):
            raise self.unfit(kind, "bytes of image files")
        return ImageType(self.channels)

    def tolerance(self, above: Sequence[Transform]) -> str:
        for transform in above:
            if not isinstance(transform, Spatial):
                return ""
            if transform.averages:
                return f"JPEG files at 1/2, 1/4 or 1/8, where {type(transform).__name__} shrinks them no less"
        return ""

    def columns(self, *columns: Any, **draws: Any) -> Column:
        from cedar.operators.image.engine import alone

        return alone(self, columns, None)
