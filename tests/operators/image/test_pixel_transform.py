"""Pixel operators in pipelines: types, errors, chains, draws."""

import numpy as np
import pytest

pytest.importorskip("numba")

import cedar
from cedar.core.columns import TensorType
from cedar.operators.draws import Draws
from cedar.operators.image.color_jitter import ColorJitter
from cedar.operators.image.distort import PhotometricDistort
from cedar.operators.image.gaussian_blur import GaussianBlur
from cedar.operators.image.layout import ImageType
from cedar.operators.image.normalize import Normalize, ToFloat
from cedar.operators.image.pixel_transform import Grayscale
from cedar.operators.image.pixels import compile_pixels
from cedar.operators.image.solarize import Autocontrast, Equalize, Posterize, Solarize

ALL = [
    ColorJitter(0.8, 0.8, 0.8, 0.2, p=0.8), Grayscale(p=0.2), GaussianBlur(5, p=0.5), Solarize(128), Posterize(4),
    Autocontrast(), Equalize(), PhotometricDistort(), ToFloat(), Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)),
]  # fmt: skip


def images(n=6):
    return np.random.default_rng(1).integers(0, 256, (n, 9, 7, 3), dtype=np.uint8)


def pipeline(*transforms, of=None):
    rows = [{"i": i, "image": image} for i, image in enumerate(images() if of is None else of)]
    p = cedar.from_items(rows)
    for transform in transforms:
        p = p.map(transform, "image")
    return p


def test_a_pipeline_is_its_transforms_one_by_one():
    found = np.concatenate([batch["image"] for batch in pipeline(*ALL).batch(2).loader()])
    off = np.concatenate([batch["image"] for batch in pipeline(*ALL).batch(3).loader(plan="off")])
    assert found.dtype == np.float32
    assert found.shape == (6, 9, 7, 3)
    assert found.tobytes() == off.tobytes()
    assert len({image.tobytes() for image in found}) > 3


def test_images_of_differing_sizes():
    of = [np.full((3 + i, 5, 3), 10 * i, dtype=np.uint8) for i in range(4)]
    found = list(pipeline(Solarize(15, p=1.0), ToFloat(), of=of))
    assert [row["image"].shape for row in found] == [(3 + i, 5, 3) for i in range(4)]
    assert found[2]["image"][0, 0, 0] == np.float32(235) * np.float32(1 / 255)


@pytest.mark.parametrize(
    ("transform", "given", "made"),
    [
        (ColorJitter(0.1), TensorType((4, 5, 3), "uint8"), TensorType((4, 5, 3), "uint8")),
        (Grayscale(), TensorType((4, 5, 3), "uint8"), TensorType((4, 5, 1), "uint8")),
        (Grayscale(3), TensorType((4, 5, 1), "uint8"), TensorType((4, 5, 3), "uint8")),
        (Grayscale(p=0.1), TensorType((4, 5, 1), "uint8"), TensorType((4, 5, 1), "uint8")),
        (Grayscale(), ImageType(3), ImageType(1)),
        (GaussianBlur(3), TensorType((4, 5, 4), "uint8"), TensorType((4, 5, 4), "uint8")),
        (ToFloat(), TensorType((4, 5, 3), "uint8"), TensorType((4, 5, 3), "float32")),
        (ToFloat(), ImageType(3), ImageType(3, "float32")),
        (Normalize(0.5, 0.5), TensorType((4, 5, 2), "float32"), TensorType((4, 5, 2), "float32")),
        (Normalize((0.5,) * 3, 0.5), ImageType(3, "float32"), ImageType(3, "float32")),
    ],
)
def test_types(transform, given, made):
    assert transform.result(given) == made


@pytest.mark.parametrize(
    ("transform", "given"),
    [
        (ColorJitter(0.1), TensorType((4, 5, 4), "uint8")),
        (ColorJitter(0.1), TensorType((4, 5, 3), "float32")),
        (PhotometricDistort(), ImageType(2)),
        (Autocontrast(), TensorType((4, 5, 2), "uint8")),
        (Grayscale(), TensorType((4, 5), "uint8")),
        (ToFloat(), TensorType((4, 5, 3), "float32")),
        (Normalize(0.5, 0.5), TensorType((4, 5, 3), "uint8")),
        (Normalize((0.5, 0.5), 0.5), TensorType((4, 5, 3), "float32")),
    ],
)
def test_types_that_do_not_fit_are_refused(transform, given):
    with pytest.raises(cedar.PipelineError, match=type(transform).__name__):
        transform.result(given)


@pytest.mark.parametrize("transform", [*ALL, Grayscale(), Grayscale(3)])
def test_one_row_alone(transform):
    image = images()[0].astype(np.float32) / 255 if isinstance(transform, Normalize) else images()[0]
    draws = Draws(np.array([3], dtype=np.uint64)) if transform.random else None
    made = transform(image, draws=draws)
    assert made.shape[:2] == image.shape[:2]
    assert np.array_equal(made, compile_pixels([transform]).run(image[None], [draws])[0])


def test_a_random_one_without_draws_says_so():
    with pytest.raises(cedar.PipelineError, match="draws="):
        Solarize(3)(images()[0])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Grayscale(2), "grayscale"),
        (lambda: Grayscale(3, p=0.5), "grayscale"),
        (lambda: Grayscale(p=2.0), "grayscale"),
        (lambda: Solarize(256), "solarize"),
        (lambda: Solarize(3, p=-1), "solarize"),
        (lambda: Posterize(9), "posterize"),
        (lambda: Posterize(2.5), "posterize"),
        (lambda: Autocontrast(p=2), "autocontrast"),
        (lambda: Equalize(p=2), "equalize"),
        (lambda: GaussianBlur(4), "gaussian_blur"),
        (lambda: GaussianBlur((3, 0)), "gaussian_blur"),
        (lambda: GaussianBlur("3"), "gaussian_blur"),
        (lambda: GaussianBlur(3, sigma=0), "gaussian_blur"),
        (lambda: GaussianBlur(3, sigma=(2.0, 1.0)), "gaussian_blur"),
        (lambda: GaussianBlur(3, p=3), "gaussian_blur"),
        (lambda: Normalize(0.5, 0), "std must not be 0"),
        (lambda: Normalize((0.5, 0.5), (1, 1, 1)), "2 means and 3"),
        (lambda: Normalize("x", 1), "normalize"),
        (lambda: Normalize(float("nan"), 1), "normalize"),
        (lambda: Normalize((), 1), "normalize"),
    ],
)
def test_wrong_arguments_are_refused(make, says):
    with pytest.raises(cedar.PipelineError, match=says):
        make()
