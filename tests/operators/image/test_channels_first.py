"""channels_first, and what does not come behind it."""

import io

import numpy as np
import pytest

import cedar
from cedar.core.errors import PipelineError
from cedar.operators import image

PIL = pytest.importorskip("PIL.Image")

BEHIND = {
    "to_float": image.to_float(),
    "solarize": image.solarize(threshold=100, p=1.0),
    "grayscale": image.grayscale(p=0.5),
    "horizontal_flip": image.horizontal_flip(p=1.0),
    "center_crop": image.center_crop(4),
    "resize": image.resize((4, 4)),
    "channels_first": image.channels_first(),
}


def files(count=4):
    for i in range(count):
        file = io.BytesIO()
        PIL.new("RGB", (20 + i, 10)).save(file, "PNG")
        yield {"file": file.getvalue()}


@pytest.mark.parametrize("plan", ["auto", "off"])
@pytest.mark.parametrize("name", BEHIND)
def test_images_of_differing_sizes_are_refused_behind_it(name, plan):
    with pytest.raises(PipelineError, match="put channels_first last"):
        pipeline = cedar.from_items(list(files())).map(image.decode(), "file", into="image")
        pipeline = pipeline.map(image.channels_first(), "image").map(BEHIND[name], "image")
        list(pipeline.loader(plan=plan))


@pytest.mark.parametrize("name", BEHIND)
def test_arrays_of_differing_sizes_are_refused_behind_it(name):
    arrays = [{"image": np.zeros((5 + i, 6, 3), np.uint8)} for i in range(3)]
    with pytest.raises(PipelineError, match="put channels_first last"):
        list(cedar.from_items(arrays).map(image.channels_first(), "image").map(BEHIND[name], "image").loader())


def test_what_it_leaves_can_be_batched():
    pipeline = cedar.from_items(list(files())).map(image.decode(), "file", into="image")
    (batch,) = pipeline.map(image.channels_first(), "image").batch(4).loader()
    assert [made.shape for made in batch["image"]] == [(3, 10, 20 + i) for i in range(4)]


def test_a_pass_takes_no_images_of_more_than_four_channels():
    from cedar.operators.image.pixels import compile_pixels

    with pytest.raises(ValueError, match="30 channels"):
        compile_pixels([image.to_float()]).run([np.zeros((3, 20, 30), np.uint8)], [None])


@pytest.mark.parametrize("shape", [(0, 30, 3), (30, 0, 3)])
@pytest.mark.parametrize("transform", [image.random_resized_crop(16), image.resize((16, 16)), image.to_float()])
def test_images_of_no_pixels_are_refused(shape, transform):
    rows = [{"image": np.zeros(shape, np.uint8)}] * 4
    with pytest.raises(PipelineError, match="images"):
        list(cedar.from_items(rows).map(transform, "image").loader())
