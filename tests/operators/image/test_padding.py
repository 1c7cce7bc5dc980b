"""pad, expand and crops that add pixels: what these are, and how often expand does."""

from __future__ import annotations

import numpy as np
import pytest

import cedar
from cedar.core.errors import PipelineError
from cedar.operators import image
from cedar.operators.draws import Draws

FILLED = {
    "pad": lambda fill: image.pad(1, fill=fill),
    "expand": lambda fill: image.expand(fill=fill, p=1.0),
    "center_crop": lambda fill: image.center_crop(8, fill=fill),
    "crop": lambda fill: image.crop(-1, -1, 8, 8, fill=fill),
}


@pytest.mark.parametrize("plan", ["auto", "off"])
@pytest.mark.parametrize("name", FILLED)
def test_an_image_of_other_channels_fails_alone(name, plan):
    images = [np.zeros((4, 5 + i % 2, 3), np.uint8) for i in range(9)] + [np.zeros((4, 6, 1), np.uint8)]
    pipeline = cedar.from_items([{"image": one, "i": i} for i, one in enumerate(images)])
    made = pipeline.map(FILLED[name]((1, 2, 3)), "image", on_error=cedar.Skip(max_count=1))
    with made.batch(4, last="keep").loader(plan=plan) as loader:
        assert [i for batch in loader for i in batch["i"].tolist()] == list(range(9))
    with pytest.raises(cedar.RowError, match="has 3 values, the images 1 channel") as caught:
        list(pipeline.map(FILLED[name]((1, 2, 3)), "image").loader(plan=plan))
    assert caught.value.row.row == 9


@pytest.mark.parametrize("name", FILLED)
@pytest.mark.parametrize("fill", [300, -1, float("nan"), (0, 0, 256)])
def test_bytes_hold_no_such_value(name, fill):
    rows = [{"image": np.zeros((4, 5, 3), np.uint8)}] * 3
    with pytest.raises(PipelineError, match="uint8 images hold values from 0 to 255"):
        list(cedar.from_items(rows).map(FILLED[name](fill), "image").loader())


def test_floats_hold_it():
    made = image.pad(1, fill=-1.5)(np.zeros((1, 1, 1), np.float32))
    assert made[:, :, 0].tolist() == [[-1.5] * 3, [-1.5, 0.0, -1.5], [-1.5] * 3]


def test_expand_happens_as_often_as_it_says():
    rows = 20_000
    draws = Draws(np.random.default_rng(2).integers(0, 1 << 63, rows).astype(np.uint64))
    sizes = np.broadcast_to(np.array([100, 200]), (rows, 2))
    pad = image.expand(p=0.4).moves(sizes, None, draws).pad
    grown = pad.any(axis=1)
    assert abs(grown.mean() - 0.4) < 0.02
    canvas = sizes[grown] + pad[grown, :2] + pad[grown, 2:]
    factor = canvas / sizes[grown]
    assert (np.abs(factor[:, 0] - factor[:, 1]) <= 0.01).all()
    assert abs(factor.mean() - 2.5) < 0.05
    assert (factor >= 1).all()
    assert (factor <= 4).all()
    assert (pad >= 0).all()
