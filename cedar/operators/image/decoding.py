"""Decode an image file with the fastest library for its format."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from cedar.core.packages import library
from cedar.operators.image.headers import BadImage, Header, open_with_pillow
from cedar.operators.image.layout import Allocator, Image, new_image

Mode = Literal["RGB", "GRAY", "UNCHANGED"]

_LUMA = (19595, 38470, 7471)  # ITU-R 601 weights in 16 bits, as in Pillow's convert("L")
_END = b"\xff\xd9"
_WARNINGS = (  # libjpeg's messages about damage that does not stop decoding
    "Corrupt JPEG data", "Inconsistent progression", "Invalid SOS parameters", "Premature end of JPEG",
    "Unknown Adobe color", "Warning:",
)  # fmt: skip


def decode_image(
    data: bytes, header: Header, mode: Mode, *, strict: bool = False, rows: int | None = None, shrink: int = 1,
    allocate: Allocator = new_image,
) -> Image:  # fmt: skip
    """Decode a file to uint8 (height, width, channels), rotated and mirrored according to ``header.orientation``.

    Args:
        strict: whether to fail for any damage that the JPEG decoder reports, even if it could continue.
        rows: number of rows needed from the top, at full size; the result may have more rows.
        shrink: the factor by which the decoder may reduce a JPEG image: 1, 2, 4 or 8.
        allocate: a function that allocates memory for pixels; only some decoders use it.

    Raises:
        BadImage: the file is damaged.
    """
    turned = header.orientation > 1
    if header.jpeg is not None and header.native:
        image = _decode_jpeg(data, header, mode, strict, None if turned else rows, shrink, allocate)
    else:
        image = _check_size(
            _convert_mode(_decode_natively(data, header) if header.native else _decode_with_pillow(data, mode), mode),
            header,
        )
    return apply_orientation(image, header.orientation) if turned else image


def apply_orientation(image: Image, orientation: int) -> Image:
    """Return the image rotated and mirrored according to the EXIF orientation, 2 .. 8."""
    if orientation >= 5:
        image = image.transpose(1, 0, 2)
    down, right = orientation_flips(orientation)
    return np.ascontiguousarray(image[:: -1 if down else 1, :: -1 if right else 1])


def orientation_flips(orientation: int) -> tuple[bool, bool]:
    """Return whether ``apply_orientation`` flips images top to bottom, and whether it flips them left to right."""
    return orientation in (3, 4, 7, 8), orientation in (2, 3, 6, 7)


# ---- JPEG ------------------------------------------------------------------------------------------------------------


def _decode_jpeg(
    data: bytes, header: Header, mode: Mode, strict: bool, rows: int | None, shrink: int, allocate: Allocator
) -> Image:
    assert header.jpeg is not None
    jpeg = library("simplejpeg", "images", "decode")
    gray = mode == "GRAY" or (mode == "UNCHANGED" and header.jpeg.components == 1)
    complete = data.rfind(_END, header.jpeg.scan) > 0
    stream, height = data, header.height
    if not complete:  # if only the end marker is missing, append it
        stream = data + _END
    elif rows is not None and not strict:
        stream, height = first_rows(data, header, rows)
    height, width = -(-height // shrink), -(-header.width // shrink)
    image = allocate((height, width, 1 if gray else 3))
    min_size = {} if shrink == 1 else {"min_height": height, "min_width": width}
    try:
        jpeg.decode_jpeg(stream, "GRAY" if gray else "RGB", buffer=image, **min_size)
    except Exception as error:  # noqa: BLE001 - ValueError; KeyError for unusual color spaces
        why = str(error)
        if strict or not complete or not why.startswith(_WARNINGS):
            cut = "" if complete else "; the file is cut off"
            raise BadImage(f"the JPEG data is damaged: {why}{cut}") from None
        if _warns_in_header(jpeg, stream):
            return _check_size(_convert_mode(_decode_with_pillow(data, mode), mode), header)
    return image


def _warns_in_header(jpeg: Any, data: bytes) -> bool:
    """Return whether libjpeg warns about the header; simplejpeg then raises before it decodes any pixels.

    For later warnings, simplejpeg raises only after it has decoded the last row, so that the image is complete.
    """
    try:
        jpeg.decode_jpeg_header(data, strict=True)
    except Exception:  # noqa: BLE001 - as above
        return True
    return False


def _check_size(image: Image, header: Header) -> Image:
    if image.shape[:2] != (header.height, header.width):
        raise BadImage(
            f"the header says {header.width} x {header.height} pixels, "
            f"the image has {image.shape[1]} x {image.shape[0]}"
        )
    return image


def first_rows(data: bytes, header: Header, rows: int) -> tuple[bytes, int]:
    """Change a JPEG file so that decoding stops after ``rows`` rows or a few more; return the file and its height.

    The height in the frame header is reduced. Pixels of the remaining rows are identical, since rows are coded from the
    top. One more row of MCUs is kept, because half-resolution colors are interpolated with the row below.
    """
    jpeg = header.jpeg
    assert jpeg is not None
    if not jpeg.sequential:
        return data, header.height
    kept = (-(-rows // jpeg.rows) + 1) * jpeg.rows
    if kept >= header.height:
        return data, header.height
    height_offset = jpeg.frame + 5
    return b"".join((data[:height_offset], kept.to_bytes(2, "big"), data[height_offset + 2 :])), kept


# ---- the other formats -----------------------------------------------------------------------------------------------


@lru_cache
def _codecs() -> Any:
    logging.getLogger("imagecodecs").setLevel(logging.ERROR)  # hide warnings about color profiles
    return library("imagecodecs", "images", "decode")


def _decode_natively(data: bytes, header: Header) -> Image:
    codecs = _codecs()
    try:
        image = codecs.png_decode(data) if header.format == "PNG" else codecs.webp_decode(data)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - imagecodecs' own errors, ValueError, RuntimeError
        raise BadImage(f"the {header.format} data is damaged or cut off: {error}") from None
    pixels: Image = image[..., None] if image.ndim == 2 else image
    if pixels.dtype == np.uint16:
        pixels = (pixels >> 8).astype(np.uint8)  # keep the high byte
    return pixels


def _decode_with_pillow(data: bytes, mode: Mode) -> Image:
    """Decode the first frame with Pillow. CMYK and palettes become RGB; 16-bit values keep their high 8 bits."""
    with open_with_pillow(data) as image:
        try:
            if mode == "GRAY":
                image.draft("L", None)  # decodes only the luma of JPEG files
            image.load()
            if image.mode.startswith("I;16"):
                return (np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8)[..., None]
            if image.mode in ("I", "F"):
                raise BadImage(f"pixels of 32 bits (Pillow's mode {image.mode!r}) have no defined range of colors")
            if image.mode not in ("L", "RGB", "LA", "RGBA"):
                alpha = mode == "UNCHANGED" and image.has_transparency_data
                image = image.convert("L" if image.mode == "1" else "RGBA" if alpha else "RGB")
            pixels: Image = np.array(image)
        except (BadImage, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - Pillow's plugins raise anything on damaged files
            raise BadImage(f"the {image.format} data is damaged or cut off: {error}") from None
    return pixels[..., None] if pixels.ndim == 2 else pixels


def _convert_mode(image: Image, mode: Mode) -> Image:
    """Convert pixels to ``mode``: drop transparency, repeat gray three times, or compute ITU-R 601 luma."""
    if mode == "UNCHANGED":
        return image
    if image.shape[2] in (2, 4):
        image = image[..., :-1]
    if mode == "RGB" and image.shape[2] == 1:
        image = np.repeat(image, 3, axis=2)
    elif mode == "GRAY" and image.shape[2] == 3:
        red, green, blue = (image[..., i].astype(np.uint32) * np.uint32(weight) for i, weight in enumerate(_LUMA))
        image = ((red + green + blue + np.uint32(0x8000)) >> np.uint32(16)).astype(np.uint8)[..., None]
    return np.ascontiguousarray(image)
