"""The diagrams of the docs are what their script draws, from what cedar does today."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "pictures"
SPEC = importlib.util.spec_from_file_location("pictures", ROOT / "docs" / "site" / "pictures.py")
pictures = importlib.util.module_from_spec(SPEC)


@pytest.fixture(scope="module", autouse=True)
def loaded():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))
        SPEC.loader.exec_module(pictures)


@pytest.mark.parametrize("name", ["hero", "window", "ranks", "resume", "plan", "batch", "loop", "peers"])
def test_a_diagram_shows_what_cedar_does(name):
    redrawn = pictures.drawn(getattr(pictures, name))
    assert (FOLDER / f"{name}.svg").read_text() == redrawn, "run: python docs/site/pictures.py"


@pytest.mark.heavy  # numba compiles kernels
def test_the_gallery_shows_what_operators_do():
    pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'cedar-data[images]'")
    redrawn, kept = pictures.drawn(pictures.images), (FOLDER / "images.svg").read_text()
    labels = [re.sub(r'href="[^"]*"', "", text) for text in (redrawn, kept)]  # a picture's bytes are the encoder's
    assert labels[0] == labels[1], "run: python docs/site/pictures.py images"


def test_the_gallery_has_every_operator_that_leaves_a_picture():
    from cedar.operators import image

    others = {"channels_first", "decode", "iou_crop", "normalize", "sanitize_boxes", "to_float"}
    shown = {call.partition("(")[0] for call in (*pictures.GALLERY, *pictures.MIXED)}
    assert set(image.__all__) - others == shown


def test_pictures_follow_light_and_dark():
    for draw in (*pictures.DIAGRAMS, pictures.images):
        assert "prefers-color-scheme:dark" in (FOLDER / f"{draw.__name__}.svg").read_text()
