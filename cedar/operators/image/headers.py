"""Headers of image files: format and size, read without decoding."""

from __future__ import annotations

import io
import os
import struct
from dataclasses import dataclass, replace
from typing import Any, Literal

from cedar.core.errors import PipelineError, user_site
from cedar.core.libraries import library

Format = Literal["JPEG", "PNG", "WebP", "other"]

# Pillow would try its other plugins, too: that for EPS starts Ghostscript.
_STARTS = {b"GIF87a": "GIF", b"GIF89a": "GIF", b"BM": "BMP", b"II*\0": "TIFF", b"MM\0*": "TIFF", b"\xff\xd8": "JPEG"}

MAX_PIXELS = 1 << 27
"""Pixels that one image may have: 134 million, 400 MB in RGB. ``CEDAR_MAX_PIXELS`` sets another limit."""

_EXIF = (b"Exif", b"eXIf", b"EXIF", b"exif", b"tiff:Orientation")  # what a file that has an orientation has in it
_FRAMES = frozenset((*range(0xC0, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0)))
_BARE = frozenset((0x01, *range(0xD0, 0xD9)))  # markers without a length


class BadImage(Exception):
    """A file that gives no image: what broke, and what to do."""

    def __init__(self, why: str, fix: str = "repair or leave out the file, or give on_error=cedar.Skip(...)") -> None:
        super().__init__(why)
        self.why, self.fix = why, fix


@dataclass(frozen=True, slots=True)
class Jpeg:
    """Where a JPEG file says what: its frame header, and the first scan.

    Args:
        frame: offset of the frame header's marker.
        scan: offset of the first scan's marker.
        components: 1 (gray), 3 (color) or 4 (CMYK).
        rows: of pixels in an MCU, the unit of coding.
        cuttable: rows follow each other in one scan, so that the first ones need nothing of the others.
    """

    frame: int
    scan: int
    components: int
    rows: int
    cuttable: bool


@dataclass(frozen=True, slots=True)
class Header:
    """An image file's format, its size in pixels as its decoder delivers it, and how that is to be turned."""

    format: Format
    height: int
    width: int
    jpeg: Jpeg | None = None
    plain: bool = True  # the format's own decoder takes it; else Pillow does
    orientation: int = 1  # as EXIF numbers them: 1 .. 8, from 5 on height and width change places


def read_header(data: bytes, limit: int, *, exif: bool = False) -> Header:
    """The header of a file in memory.

    Args:
        limit: pixels that it may have.
        exif: the image is needed upright as its EXIF orientation says, else as stored.

    Raises:
        BadImage: no header, or one of too many pixels.
    """
    if data[:2] == b"\xff\xd8":
        header = _jpeg(data)
    elif data[:8] == b"\x89PNG\r\n\x1a\n":
        header = _png(data)
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        header = _webp(data)
    else:
        header = _other(data)
    if not (header.height and header.width):
        raise BadImage(f"the {header.format} header says {header.width} x {header.height} pixels")
    if header.height * header.width > limit:
        raise BadImage(
            f"the header says {header.width:,} x {header.height:,} pixels, more than the limit of {limit:,}",
            f"if you trust the file, set CEDAR_MAX_PIXELS={header.height * header.width} before the run",
        )
    upright = header.format == "other" and data[:2] in (b"II", b"MM")  # Pillow turns a TIFF itself
    if exif == upright or (exif and not any(mark in data for mark in _EXIF)):
        return header
    turned = _orientation(data)
    return replace(header, orientation={6: 8, 8: 6}.get(turned, turned) if upright else turned)


def max_pixels() -> int:
    """The limit: ``CEDAR_MAX_PIXELS``, else ``MAX_PIXELS``.

    Raises:
        PipelineError: the variable holds no integer above 0.
    """
    text = os.environ.get("CEDAR_MAX_PIXELS")
    if text is None:
        return MAX_PIXELS
    if not text.strip().isdecimal() or not int(text):
        raise PipelineError(f"CEDAR_MAX_PIXELS={text!r}: an integer above 0 is expected", site=user_site())
    return int(text)


def _jpeg(data: bytes) -> Header:
    """ITU-T T.81, B.1 and B.2: segments up to the first scan."""
    at, end, frame, restarts = 2, len(data), -1, False
    while at + 4 <= end:
        if data[at] != 0xFF:
            raise BadImage(f"a JPEG file without a marker at byte {at}")
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        if marker in _BARE:
            at += 2
            continue
        if marker == 0xDA:
            break
        if marker == 0xD9:
            raise BadImage("a JPEG file that holds no image")
        if marker in _FRAMES and frame < 0:
            frame = at
        restarts |= marker == 0xDD
        at += 2 + (data[at + 2] << 8 | data[at + 3])
    else:
        raise BadImage("the JPEG file ends in its header")
    if frame < 0 or frame + 10 > at or frame + 10 + 3 * data[frame + 9] > at:
        raise BadImage("a JPEG file without a frame header")
    height, width = data[frame + 5] << 8 | data[frame + 6], data[frame + 7] << 8 | data[frame + 8]
    components = data[frame + 9]
    rows = 8 * max((data[frame + 11 + 3 * i] & 15 for i in range(components)), default=0)
    once = at + 4 < end and data[frame + 1] in (0xC0, 0xC1) and data[at + 4] == components
    once = once and rows > 0 and not restarts  # a decoder that lost its place looks for it in the next restarts
    return Header("JPEG", height, width, Jpeg(frame, at, components, rows, once), components in (1, 3))


def _png(data: bytes) -> Header:
    """W3C PNG, 11.2.1: IHDR comes first."""
    if len(data) < 33 or data[12:16] != b"IHDR":
        raise BadImage("the PNG file ends in its header")
    width, height = struct.unpack(">II", data[16:24])
    return Header("PNG", height, width)


def _webp(data: bytes) -> Header:
    """RFC 9649: a lossy, a lossless or an extended first chunk."""
    kind, body = data[12:16], data[20:30]
    if len(body) == 10 and kind == b"VP8 ":
        width, height = struct.unpack("<HH", body[6:10])
        return Header("WebP", height & 0x3FFF, width & 0x3FFF)
    if len(body) == 10 and kind == b"VP8L":
        bits = int.from_bytes(body[1:5], "little")
        return Header("WebP", (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1)
    if len(body) == 10 and kind == b"VP8X":
        width, height = int.from_bytes(body[4:7], "little") + 1, int.from_bytes(body[7:10], "little") + 1
        return Header("WebP", height, width, plain=not body[0] & 2)  # an animation is Pillow's
    raise BadImage("the WebP file ends in its header")


def _other(data: bytes) -> Header:
    with opened(data) as image:
        return Header("other", image.height, image.width, plain=False)


def opened(data: bytes) -> Any:
    """The file, opened by Pillow's plugin for its format: GIF, BMP, TIFF, JPEG, PNG or WebP, and no other.

    Raises:
        BadImage: it is of another format, or damaged.
    """
    name = next((name for start, name in _STARTS.items() if data.startswith(start)), None)
    name = name or {b"\x89PNG": "PNG", b"RIFF": "WEBP"}.get(bytes(data[:4]))
    if name is None:
        raise BadImage(
            f"no image of a format that is read; it starts with {data[:8].hex(' ') or 'nothing'}",
            "give JPEG, PNG, WebP, GIF, BMP or TIFF, or open the file in a map() of your own, if you trust it",
        )
    pillow = library("PIL.Image", "images", "decode")
    try:
        return pillow.open(io.BytesIO(data), formats=[name])
    except MemoryError:
        raise
    except pillow.DecompressionBombError as error:
        raise BadImage(f"the header says too many pixels: {error}") from None
    except Exception as error:  # noqa: BLE001 - Pillow's plugins raise anything on damaged files
        start = data[:8].hex(" ") or "nothing"
        raise BadImage(
            f"no {name} image that Pillow can open; it starts with {start} ({type(error).__name__})"
        ) from None


def _orientation(data: bytes) -> int:
    with opened(data) as image:
        try:
            turned = image.getexif().get(0x0112, 1)
        except Exception:  # noqa: BLE001 - damaged EXIF data turns nothing
            return 1
    return turned if isinstance(turned, int) and 1 <= turned <= 8 else 1
