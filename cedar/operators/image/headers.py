"""Read the format, size and orientation of image files from their headers, without decoding the files."""

from __future__ import annotations

import io
import os
import struct
from dataclasses import dataclass, replace
from typing import Any, Literal

from cedar.core.errors import invalid_call
from cedar.core.packages import library

Format = Literal["JPEG", "PNG", "WebP", "other"]

# Allow only these Pillow plugins, since others may be unsafe: the plugin for EPS, for example, starts Ghostscript.
_STARTS = {b"GIF87a": "GIF", b"GIF89a": "GIF", b"BM": "BMP", b"II*\0": "TIFF", b"MM\0*": "TIFF", b"\xff\xd8": "JPEG"}

MAX_PIXELS = 1 << 27
"""Pixels that one image may have: 134 million, 400 MB in RGB. ``CEDAR_MAX_PIXELS`` sets another limit."""

_EXIF = (b"Exif", b"eXIf", b"EXIF", b"exif", b"tiff:Orientation")  # files with an orientation contain one of these
_FRAMES = frozenset((*range(0xC0, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0)))
_WITHOUT_LENGTH = frozenset((0x01, *range(0xD0, 0xD9)))  # JPEG markers without a length


class BadImage(Exception):
    """Raised if a file does not contain a usable image, with the reason (``why``) and a suggestion (``fix``)."""

    def __init__(self, why: str, fix: str = "repair or leave out the file, or give on_error=cedar.Skip(...)") -> None:
        super().__init__(why)
        self.why, self.fix = why, fix


@dataclass(frozen=True, slots=True)
class Jpeg:
    """The structure of a JPEG file: its frame header and first scan.

    Args:
        frame: offset of the frame header's marker.
        scan: offset of the first scan's marker.
        components: 1 (gray), 3 (color) or 4 (CMYK).
        rows: rows of pixels per MCU (minimum coded unit).
        sequential: whether one scan has all rows in order, so that the first rows can be decoded without the others.
    """

    frame: int
    scan: int
    components: int
    rows: int
    sequential: bool


@dataclass(frozen=True, slots=True)
class Header:
    """The format of an image file, its size in pixels before the orientation is applied, and its orientation."""

    format: Format
    height: int
    width: int
    jpeg: Jpeg | None = None
    native: bool = True  # whether a specialized decoder reads the file instead of Pillow
    orientation: int = 1  # EXIF orientation, 1 .. 8; 5 to 8 swap height and width


def read_header(data: bytes, limit: int, *, exif: bool = False) -> Header:
    """Read the header of a file in memory.

    Args:
        limit: maximum number of pixels.
        exif: whether to read the EXIF orientation; if not, the image stays as stored.

    Raises:
        BadImage: the header is damaged, or specifies more pixels than the limit.
    """
    if data[:2] == b"\xff\xd8":
        header = _jpeg_header(data)
    elif data[:8] == b"\x89PNG\r\n\x1a\n":
        header = _png_header(data)
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        header = _webp_header(data)
    else:
        header = _pillow_header(data)
    if not (header.height and header.width):
        raise BadImage(f"the {header.format} header says {header.width} x {header.height} pixels")
    if header.height * header.width > limit:
        raise BadImage(
            f"the header says {header.width:,} x {header.height:,} pixels, more than the limit of {limit:,}",
            f"if you trust the file, set CEDAR_MAX_PIXELS={header.height * header.width} before the run",
        )
    upright = header.format == "other" and data[:2] in (b"II", b"MM")  # Pillow applies the orientation of TIFF files
    if exif == upright or (exif and not any(mark in data for mark in _EXIF)):
        return header
    turned = _orientation(data)
    return replace(header, orientation={6: 8, 8: 6}.get(turned, turned) if upright else turned)


def max_pixels() -> int:
    """Return the maximum pixels per image: the environment variable ``CEDAR_MAX_PIXELS``, or ``MAX_PIXELS`` if not set.

    Raises:
        PipelineError: the variable is not an integer above 0.
    """
    text = os.environ.get("CEDAR_MAX_PIXELS")
    if text is None:
        return MAX_PIXELS
    if not text.strip().isdecimal() or not int(text):
        raise invalid_call(f"CEDAR_MAX_PIXELS={text!r}: an integer above 0 is expected")
    return int(text)


def _jpeg_header(data: bytes) -> Header:
    """Read the segments of a JPEG file up to the first scan (ITU-T T.81, B.1 and B.2)."""
    offset, end, frame, restarts = 2, len(data), -1, False
    while offset + 4 <= end:
        if data[offset] != 0xFF:
            raise BadImage(f"the JPEG file has no marker at byte {offset}")
        marker = data[offset + 1]
        if marker == 0xFF:  # a fill byte
            offset += 1
            continue
        if marker in _WITHOUT_LENGTH:
            offset += 2
            continue
        if marker == 0xDA:
            break
        if marker == 0xD9:
            raise BadImage("the JPEG file has no image")
        if marker in _FRAMES and frame < 0:
            frame = offset
        restarts |= marker == 0xDD
        offset += 2 + (data[offset + 2] << 8 | data[offset + 3])
    else:
        raise BadImage("the JPEG file ends in its header")
    if frame < 0 or frame + 10 > offset or frame + 10 + 3 * data[frame + 9] > offset:
        raise BadImage("the JPEG file has no frame header")
    height, width = data[frame + 5] << 8 | data[frame + 6], data[frame + 7] << 8 | data[frame + 8]
    components = data[frame + 9]
    rows = 8 * max((data[frame + 11 + 3 * i] & 15 for i in range(components)), default=0)
    once = offset + 4 < end and data[frame + 1] in (0xC0, 0xC1) and data[offset + 4] == components
    once = once and rows > 0 and not restarts  # after damage, restart markers let a decoder continue further down
    return Header("JPEG", height, width, Jpeg(frame, offset, components, rows, once), components in (1, 3))


def _png_header(data: bytes) -> Header:
    """Read the size of a PNG file from IHDR, the first chunk (W3C PNG, 11.2.1)."""
    if len(data) < 33 or data[12:16] != b"IHDR":
        raise BadImage("the PNG file ends in its header")
    width, height = struct.unpack(">II", data[16:24])
    return Header("PNG", height, width)


def _webp_header(data: bytes) -> Header:
    """Read the size of a WebP file from its first chunk: lossy, lossless or extended (RFC 9649)."""
    kind, body = data[12:16], data[20:30]
    if len(body) == 10 and kind == b"VP8 ":
        width, height = struct.unpack("<HH", body[6:10])
        return Header("WebP", height & 0x3FFF, width & 0x3FFF)
    if len(body) == 10 and kind == b"VP8L":
        bits = int.from_bytes(body[1:5], "little")
        return Header("WebP", (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1)
    if len(body) == 10 and kind == b"VP8X":
        width, height = int.from_bytes(body[4:7], "little") + 1, int.from_bytes(body[7:10], "little") + 1
        return Header("WebP", height, width, native=not body[0] & 2)  # Pillow decodes animations
    raise BadImage("the WebP file ends in its header")


def _pillow_header(data: bytes) -> Header:
    with open_with_pillow(data) as image:
        return Header("other", image.height, image.width, native=False)


def open_with_pillow(data: bytes) -> Any:
    """Open a file with Pillow, using only the plugins for GIF, BMP, TIFF, JPEG, PNG and WebP.

    Raises:
        BadImage: the file is damaged or of another format.
    """
    name = next((name for start, name in _STARTS.items() if data.startswith(start)), None)
    name = name or {b"\x89PNG": "PNG", b"RIFF": "WEBP"}.get(bytes(data[:4]))
    if name is None:
        raise BadImage(
            f"unknown image format; the file starts with {data[:8].hex(' ') or 'nothing'}",
            "give JPEG, PNG, WebP, GIF, BMP or TIFF, or open the file in a map() of your own, if you trust it",
        )
    pillow = library("PIL.Image", "images", "decode")
    try:
        return pillow.open(io.BytesIO(data), formats=[name])
    except MemoryError:
        raise
    except pillow.DecompressionBombError as error:
        raise BadImage(f"the header claims too many pixels: {error}") from None
    except Exception as error:  # noqa: BLE001 - Pillow's plugins raise anything on damaged files
        start = data[:8].hex(" ") or "nothing"
        raise BadImage(
            f"Pillow cannot open this {name} file; it starts with {start} ({type(error).__name__})"
        ) from None


def _orientation(data: bytes) -> int:
    with open_with_pillow(data) as image:
        try:
            turned = image.getexif().get(0x0112, 1)
        except Exception:  # noqa: BLE001 - damaged EXIF data is ignored
            return 1
    return turned if isinstance(turned, int) and 1 <= turned <= 8 else 1
