"""decode: convert the bytes of image files to images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

import pyarrow as pa

from cedar.core.columns import Column, ColumnType
from cedar.core.errors import invalid_call
from cedar.operators.image.base import ImageTransform
from cedar.operators.image.decoding import Mode
from cedar.operators.image.layout import ImageType
from cedar.operators.image.spatial import Spatial
from cedar.operators.transform import Transform


@dataclass(frozen=True)
class Decode(ImageTransform):
    """Decode image files: the result is a column of uint8 arrays (height, width, channels) of differing sizes.

    JPEG is decoded by libjpeg-turbo, PNG by libpng, WebP by libwebp; Pillow decodes the first frame of GIF, BMP and
    TIFF. docs/image_files.md has a table of how CMYK, palettes, transparency, 16 bits and animations are treated.

    If a crop follows, rows of a JPEG file below the crop are not decoded; pixels are identical. If a resize to half the
    size or less follows, runs with ``exact=False`` decode at 1/2, 1/4 or 1/8 of the size; pixels differ slightly.

    Args:
        mode: "RGB" drops transparency; "GRAY" gives 1 channel (the luma of JPEG files, otherwise ITU-R 601 luma as in
            Pillow); "UNCHANGED" keeps the file's 1 to 4 channels, except that CMYK and palettes become RGB.
        exif: whether to rotate and mirror the image according to its EXIF orientation.
        strict: whether to fail for any damage to a JPEG file that the decoder reports. By default, as in Pillow and
            torchvision, truncated files fail, but not files with other damage from which the decoder can recover.

    Raises:
        PipelineError: the mode is invalid, the column does not contain bytes, or the extra ``images`` is missing.

    A row fails if it is null, of an unknown format, truncated or damaged, or if its header specifies more pixels than
    ``CEDAR_MAX_PIXELS`` (by default 134 million).

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
                raise invalid_call(f"decode({option}={getattr(self, option)!r}): must be True or False")
        if self.mode not in get_args(Mode):
            raise invalid_call(f"decode(mode={self.mode!r}): must be one of {', '.join(get_args(Mode))}")

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
        from cedar.operators.image.engine import run_one

        return run_one(self, columns, None)
