"""Headers: what they say, the limit of pixels, and formats that no decoder is asked for."""

from __future__ import annotations

import pytest
from PIL import Image

from benchmarks.mutated_images import FORMATS, LIMIT, encoded
from cedar.core.errors import PipelineError
from cedar.operators import image
from cedar.operators.image.headers import BadImage, read_header
from tests.operators.image.image_files import saved, why_not


def test_read_header_says_what_is_stored():
    for kind in FORMATS:
        header = read_header(encoded(kind), LIMIT)
        assert (header.height, header.width) == (48, 72)
    with pytest.raises(BadImage):
        read_header(b"\xff\xd8\xff\xd9", LIMIT)


@pytest.mark.parametrize("format_", ["EPS", "PDF", "PPM", "ICO", "JPEG2000", "TGA", "PCX", "SGI"])
def test_formats_that_are_not_on_the_list_reach_no_plugin(format_: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow's plugin for EPS starts Ghostscript."""
    data = saved(Image.new("RGB", (32, 32), (9, 8, 7)), format_)
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("Pillow was asked"))
    assert "unknown image format" in why_not(data)


def test_a_huge_size_in_the_header_fails_before_decoding():
    jpeg = bytearray(encoded("jpeg"))
    frame = jpeg.find(b"\xff\xc0")
    jpeg[frame + 5 : frame + 9] = (65000).to_bytes(2, "big") * 2
    png = bytearray(encoded("png"))
    png[16:24] = (65000).to_bytes(4, "big") * 2
    bmp = bytearray(encoded("bmp"))
    bmp[18:26] = (65000).to_bytes(4, "little") * 2
    for data in (jpeg, png, bmp):
        assert "pixels" in why_not(bytes(data))
    assert "65,000 x 65,000 pixels, more than the limit" in why_not(bytes(jpeg))


def test_the_limit_is_the_users(monkeypatch):
    monkeypatch.setenv("CEDAR_MAX_PIXELS", str(48 * 72 - 1))
    assert "more than the limit of 3,455" in why_not(encoded("webp"))
    monkeypatch.setenv("CEDAR_MAX_PIXELS", str(48 * 72))
    assert image.decode()(encoded("webp")).shape == (48, 72, 3)
    monkeypatch.setenv("CEDAR_MAX_PIXELS", "many")
    with pytest.raises(PipelineError):
        image.decode()(encoded("webp"))
