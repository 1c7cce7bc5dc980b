"""The names of torchvision are answered with those of cedar."""

import pytest

from cedar.operators import image


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("RandomErasing", "image.erasing"), ("RandAugment", "image.rand_augment"), ("ToTensor", "image.to_float"),
        ("random_rotation", "image.rotation"), ("MixUp", "image.mixup"), ("Compose", "map(a).map(b)"), ("foo", "foo"),
        ("RandomCrop", "image.random_crop()"), ("RandomGrayscale", "image.grayscale(p=0.1)"),
        ("RandomResize", "resize() for a fixed size"), ("flip", "image.horizontal_flip()"),
        ("blur", "image.gaussian_blur()"), ("color", "image.color_jitter()"), ("jitter", "image.color_jitter()"),
    ],
)  # fmt: skip
def test_it_is_answered(name: str, answer: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(image, name)
    assert answer in str(caught.value)


def test_each_name_is_an_operator() -> None:
    assert all(isinstance(getattr(image, name), type) for name in image.__all__)
