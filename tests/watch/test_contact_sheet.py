"""A contact sheet as a page: images and sound are shown, and whatever rows hold is escaped."""

from __future__ import annotations

import numpy as np

import cedar
from cedar.operators import image
from tests.watch.html_pages import Page, opened, page_of
from tests.watch.toy_rows import clips, pictures


def test_images_are_thumbnails_that_can_be_read(tmp_path):
    rows = [{"image": np.full((300, 200, 3), (9, 99, 199), dtype=np.uint8)}]
    p = cedar.from_items(rows).map(image.resize((32, 48)), "image").map(image.to_float(), "image")
    p = p.map(image.normalize((0.5,) * 3, (0.5,) * 3), "image").map(image.channels_first(), "image")
    page = page_of(p.inspect(), tmp_path)
    images = [opened(img) for img in page.all("img")]
    assert [found.size for found in images] == [(85, 128), (48, 32), (48, 32), (48, 32), (48, 32)]
    assert all(found.mode == "RGB" for found in images)
    for found in images[:3]:
        assert found.getpixel((5, 5)) == (9, 99, 199)
    assert page.all("html") == [{"lang": "en"}]
    assert all("an image" in img["alt"] for img in page.all("img"))
    assert "float32 (3, 32, 48)" in page.text


def test_sound_is_a_waveform_and_gray_floats_are_images(tmp_path):
    rows = [{"clip": clip["clip"], "s": np.arange(800.0).reshape(20, 40), "box": np.ones((2, 4))} for clip in clips(1)]
    page = page_of(cedar.from_items(rows).inspect(), tmp_path)
    (svg,) = page.all("svg")
    assert svg["aria-label"].startswith("clip: a waveform, 900 samples")
    assert svg["role"] == "img"
    (img,) = page.all("img")
    assert opened(img).getextrema() == (0, 255)
    assert "float64 (2, 4)" in page.text


def test_whatever_rows_and_errors_hold_is_escaped(tmp_path):
    evil = "<script>alert('&')</script>"
    rows = [{"<i>": evil, "image": np.zeros((9, 9, 3), np.uint8)}, {"<i>": "y", "image": np.zeros((9, 9, 3), np.uint8)}]

    def fails(text):
        if text != "y":
            raise ValueError(text + "\ud800")
        return text

    p = cedar.from_items(rows).rename({"image": '"><script>'}).map(fails, "<i>")
    page = page_of(p.inspect(), tmp_path)
    assert not page.all("script")
    assert "<script>alert('&')</script>" in page.text
    assert page.all("img")
    policy = next(meta["content"] for meta in page.all("meta") if "content" in meta)
    assert policy.startswith("default-src 'none'")
    for _, attrs in page.tags:
        assert not any(name.startswith("on") for name in attrs)
        assert attrs.get("src", "data:").startswith("data:")


def test_a_notebook_shows_the_sheet():
    page = Page(cedar.from_items(pictures(1)).inspect()._repr_html_())
    assert len(page.all("img")) == 1
    assert not page.all("html")
