"""Values of rows, small enough for a cell."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from cedar.watch import cells
from tests.watch.html_pages import Page, opened


@pytest.mark.parametrize(
    ("shape", "shown"), [((8, 16), ("64", "32")), ((60, 80), ("80", "60")), ((1, 1), ("64", "64"))]
)
def test_small_images_are_shown_enlarged_and_keep_their_shape(shape, shown):
    (img,) = Page(cells.markup("x", np.zeros((*shape, 3), np.uint8))).all("img")
    assert (img["width"], img["height"]) == shown


ODD = [
    np.full((9, 9), np.nan), np.zeros((0, 9, 3), np.uint8), np.full((80,), np.inf, np.float32), None, float("nan"),
    np.zeros((9, 9), bool), np.zeros((9, 9, 4), np.uint8), np.zeros((9, 9, 1), np.float16), np.zeros((64, 2)),
    [0.5] * 64, [None] * 64, {"a": [1] * 99}, "x" * 999, b"abc", np.zeros((), np.int8), np.array([1, None]),
    np.zeros((2, 5000, 3), np.uint8), np.zeros((3, 3), complex), np.datetime64("2020-01-01"),
]  # fmt: skip


@pytest.mark.parametrize("value", ODD, ids=range(len(ODD)))
def test_any_value_can_be_shown(value):
    assert len(cells.text(value)) < 120
    found = Page(cells.markup("x", value))
    for img in found.all("img"):
        assert opened(img).height <= 128


def test_without_pillow_images_are_told_in_words(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert cells.markup("x", np.zeros((9, 9, 3), np.uint8)) == "uint8 (9, 9, 3) (no thumbnail: pip install pillow)"
