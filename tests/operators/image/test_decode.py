"""decode: what each kind of file becomes, and what damaged ones become."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from benchmarks.mutated_images import FORMATS, encoded, mutated, outcome, picture
from cedar.operators import image
from tests.operators.image.image_files import saved, why_not


def pillow_rgb(data):
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


# ---- what files become -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind != "png-16bit"])
def test_rgb_is_what_pillow_makes(kind):
    data = encoded(kind)
    made = image.decode()(data)
    assert made.dtype == np.uint8
    assert made.shape == (48, 72, 3)
    # libjpeg-turbo is built into both; two builds may round differently
    assert np.abs(made.astype(int) - pillow_rgb(data)).max() <= (1 if kind.startswith("jpeg") else 0)


def test_gray_is_the_luma_of_jpeg_files_and_pillows_of_others():
    png = encoded("png")
    assert np.array_equal(image.decode(mode="GRAY")(png)[..., 0], np.asarray(Image.open(io.BytesIO(png)).convert("L")))
    jpeg = encoded("jpeg")
    draft = Image.open(io.BytesIO(jpeg))
    draft.draft("L", None)  # asks libjpeg for its luma
    assert np.abs(image.decode(mode="GRAY")(jpeg)[..., 0].astype(int) - np.asarray(draft)).max() <= 1


def test_16_bits_keep_their_high_byte():
    values = (np.arange(48 * 72).reshape(48, 72) * 19 % 65536).astype(np.uint16)
    data = saved(Image.fromarray(values), "PNG")
    made = image.decode(mode="GRAY")(data)
    assert np.array_equal(made[..., 0], (values >> 8).astype(np.uint8))
    assert np.array_equal(image.decode()(data), np.repeat(made, 3, axis=2))
    tiff = saved(Image.fromarray(values), "TIFF")
    assert np.array_equal(image.decode(mode="GRAY")(tiff), made)


def test_16_bits_of_color():
    row = np.array([[1, 256, 513], [65535, 255, 40000]], dtype=">u2")
    body = b"\0" + row.tobytes()

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", 2, 1, 16, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(body)) + chunk(b"IEND", b"")
    assert image.decode()(data).tolist() == [[[0, 1, 2], [255, 0, 156]]]


def test_unchanged_keeps_channels():
    for kind, channels in (
        ("jpeg", 3),
        ("jpeg-gray", 1),
        ("jpeg-cmyk", 3),
        ("png", 3),
        ("png-alpha", 4),
        ("png-16bit", 1),
    ):
        assert image.decode(mode="UNCHANGED")(encoded(kind)).shape == (48, 72, channels)


def test_alpha_is_dropped_not_blended():
    rgba = Image.new("RGBA", (3, 2), (10, 200, 30, 0))
    for data in (saved(rgba, "PNG"), saved(rgba, "WEBP", lossless=True, exact=True)):
        assert (image.decode()(data) == (10, 200, 30)).all()


def test_palettes_and_single_bits_become_colors():
    palette = Image.new("P", (3, 2), 1)
    palette.putpalette([0, 0, 0, 9, 8, 7])
    assert (image.decode()(saved(palette, "PNG")) == (9, 8, 7)).all()
    assert (image.decode()(saved(palette, "GIF")) == (9, 8, 7)).all()
    bits = Image.new("1", (3, 2), 1)
    assert (image.decode()(saved(bits, "PNG")) == 255).all()


def test_animations_give_their_first_frame():
    frames = [Image.new("RGB", (4, 4), color) for color in ("red", "blue")]
    for format_, options in (("GIF", {}), ("WEBP", {"lossless": True}), ("PNG", {}), ("TIFF", {})):
        data = saved(frames[0], format_, save_all=True, append_images=frames[1:], **options)
        assert (image.decode()(data) == (255, 0, 0)).all(), format_


@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_a_single_pixel(format_):
    options = {"lossless": True} if format_ == "WEBP" else {}
    made = image.decode()(saved(Image.new("RGB", (1, 1), (255, 255, 255)), format_, **options))
    assert made.shape == (1, 1, 3)
    assert (made > 250).all()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_turns_the_image_if_asked(orientation, format_):
    exif = Image.Exif()
    exif[0x0112] = orientation
    pixels = picture(10, 14)
    data = saved(Image.fromarray(pixels), format_, exif=exif.tobytes())
    from PIL import ImageOps

    stored = image.decode()(data)
    assert stored.shape == (10, 14, 3)
    assert format_ in ("JPEG", "WEBP") or np.array_equal(stored, pixels)
    turned = image.decode(exif=True)(data)
    expected = np.asarray(
        ImageOps.exif_transpose(Image.open(io.BytesIO(saved_with(stored, orientation)))).convert("RGB")
    )
    assert np.array_equal(turned, expected)


def test_an_orientation_in_xmp_counts_as_in_pillow():
    xmp = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    data = saved(Image.fromarray(picture(10, 14)), "JPEG", xmp=xmp)
    assert image.decode()(data).shape == (10, 14, 3)
    assert image.decode(exif=True)(data).shape == (14, 10, 3)


def saved_with(pixels, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved(Image.fromarray(pixels), "PNG", exif=exif.tobytes())


# ---- limits and damage -----------------------------------------------------------------------------------------------


FIRST_FRAME = {"webp-animated": 0.3, "gif": 0.5}  # behind this share of the file the first frame is whole


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("kind", "share"),
    [(kind, share) for kind in FORMATS for share in (0.0, 0.02, 0.3, 0.7, 0.95) if share <= FIRST_FRAME.get(kind, 1.0)],
)
def test_a_file_that_is_cut_off_fails(kind, share):
    data = encoded(kind)
    assert why_not(data[: int(len(data) * share)])


def test_what_is_no_image_is_named():
    assert "null" in why_not(None)
    assert "the file starts with 3c 68 74 6d 6c" in why_not(b"<html>not found</html>")
    assert "the file starts with nothing" in why_not(b"")


def test_a_jpeg_file_without_its_end_marker_alone_is_whole():
    data = encoded("jpeg")
    assert data.endswith(b"\xff\xd9")
    whole = image.decode()(data)
    assert np.array_equal(image.decode()(data[:-2]), whole)
    assert np.array_equal(image.decode()(data + b"behind the end"), whole)
    assert "cut off" in why_not(data[:-40])


def test_damage_that_libjpeg_passes_over_fails_if_strict():
    data = encoded("jpeg")
    odd = data[:-2] + bytes(10) + data[-2:]  # "extraneous bytes before marker 0xd9"
    assert np.array_equal(image.decode()(odd), image.decode()(data))
    assert "extraneous bytes" in why_not(odd, strict=True)
    header = data[:11] + b"\x07" + data[12:]  # a version of JFIF that does not exist
    assert np.array_equal(image.decode()(header), image.decode()(data))
    assert why_not(header, strict=True)


def test_a_fatal_error_never_shows_memory():
    """Where rows cannot be decoded, no image comes out, rather than one of uninitialized rows."""
    data = encoded("jpeg")
    table = data.find(b"\xff\xc4")
    wrong = data[:11] + b"\x07" + data[12 : table + 4] + b"\x0f" + data[table + 5 :]  # a warning, then no table 0
    assert "damaged" in why_not(wrong)


@pytest.mark.parametrize("kind", list(FORMATS))
def test_mutated_files_give_an_image_or_an_error_and_the_same_again(kind):
    data = encoded(kind)
    for seed in range(60):
        found = outcome(mutated(data, seed))
        again = outcome(mutated(data, seed))
        assert type(found) is type(again)
        assert found == again if isinstance(found, str) else np.array_equal(found, again)


def test_an_odd_color_profile_is_no_news(caplog):
    file = io.BytesIO()
    Image.new("RGB", (3, 2)).save(file, "PNG", icc_profile=b"\x00\x00\x00\x80" + b"junk" * 40)
    assert image.decode()(file.getvalue()).shape == (2, 3, 3)
    assert caplog.text == ""
