"""The names of torchvision are answered with those of cedar."""

import pytest

from cedar.operators import image


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("RandomErasing", "image.erasing"), ("RandAugment", "image.rand_augment"), ("ToTensor", "image.to_float"),
        ("random_rotation", "image.rotation"), ("MixUp", "image.mixup"), ("Compose", "map(a).map(b)"), ("foo", "foo"),
    ],
)  # fmt: skip
def test_it_is_answered(name: str, answer: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(image, name)
    assert answer in str(caught.value)
