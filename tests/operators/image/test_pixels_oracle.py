"""The plain arithmetic that other tests of pixel operators compare with: what torchvision 0.28 made of an image."""

from __future__ import annotations

import numpy as np
import pytest

from tests.operators.image.pixels_oracle import (
    autocontrast,
    blur,
    brightness,
    contrast,
    equalize,
    gauss,
    gray,
    hue,
    posterize,
    saturation,
    solarize,
    standard,
    unit,
)

EXPECTED = {
    "brightness": [
        46, 201, 255, 154, 255, 22, 229, 78, 255, 134, 158, 58, 255, 218, 119, 95, 47, 0, 255, 255, 191, 196, 200,
        204, 208, 89, 145, 201, 255, 255, 147, 254, 4, 112, 219, 5,
    ],
    "contrast": [
        0, 153, 255, 96, 255, 0, 187, 4, 255, 72, 101, 0, 255, 174, 53, 24, 0, 0, 255, 228, 142, 147, 152, 157, 162,
        17, 85, 153, 221, 255, 87, 218, 0, 45, 176, 0,
    ],
    "low contrast": [
        100, 134, 167, 123, 157, 95, 140, 107, 152, 119, 124, 103, 158, 137, 116, 111, 101, 90, 157, 147, 131, 132,
        133, 134, 135, 110, 122, 134, 146, 158, 122, 145, 91, 114, 137, 92,
    ],
    "saturation": [
        0, 156, 255, 77, 255, 0, 199, 26, 255, 94, 121, 7, 255, 148, 34, 84, 30, 0, 240, 185, 103, 138, 143, 148,
        182, 46, 110, 124, 188, 252, 85, 208, 0, 58, 181, 0,
    ],
    "low saturation": [
        91, 130, 169, 145, 183, 112, 125, 87, 139, 97, 103, 79, 189, 164, 139, 49, 37, 26, 202, 190, 172, 141, 142,
        143, 112, 82, 96, 164, 178, 192, 126, 153, 90, 103, 130, 76,
    ],
    "hue": [
        149, 33, 255, 16, 221, 131, 204, 56, 93, 42, 113, 60, 153, 227, 85, 32, 68, 0, 169, 222, 137, 143, 140, 146,
        149, 111, 64, 186, 144, 224, 3, 182, 83, 4, 157, 84,
    ],
    "back hue": [
        233, 255, 33, 221, 16, 192, 56, 204, 105, 101, 42, 113, 99, 85, 227, 6, 0, 68, 154, 137, 222, 145, 146, 140,
        64, 138, 149, 216, 224, 144, 182, 3, 177, 157, 4, 141,
    ],
    "gray": [
        123, 123, 123, 164, 164, 164, 105, 105, 105, 99, 99, 99, 169, 169, 169, 40, 40, 40, 192, 192, 192, 142, 142,
        142, 93, 93, 93, 176, 176, 176, 138, 138, 138, 116, 116, 116,
    ],
    "solarize": [
        33, 111, 0, 110, 34, 16, 91, 56, 51, 96, 113, 42, 28, 99, 85, 68, 34, 0, 33, 67, 118, 115, 112, 109, 106,
        64, 104, 111, 71, 31, 105, 73, 3, 80, 98, 4,
    ],
    "posterize": [
        32, 128, 224, 96, 192, 0, 160, 32, 192, 96, 96, 32, 224, 128, 64, 64, 32, 0, 192, 160, 128, 128, 128, 128,
        128, 64, 96, 128, 160, 224, 96, 160, 0, 64, 128, 0,
    ],
    "autocontrast": [
        0, 150, 254, 102, 255, 16, 173, 30, 204, 84, 106, 42, 254, 167, 84, 47, 0, 0, 249, 211, 136, 141, 148, 146,
        152, 41, 104, 147, 205, 224, 94, 202, 2, 63, 167, 4,
    ],
    "blur": [
        110, 140, 98, 123, 134, 89, 148, 126, 111, 150, 125, 125, 131, 122, 93, 132, 127, 88, 145, 142, 98, 148,
        148, 105, 145, 113, 107, 138, 130, 101, 136, 157, 82, 133, 163, 72,
    ],
}  # fmt: skip


def picture():
    i = np.arange(36)
    return ((i * 37 + 11) * (i // 5 + 3) % 256).astype(np.uint8).reshape(3, 4, 3)


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("brightness", brightness(picture(), 1.4)),
        ("contrast", contrast(picture(), 1.7)),
        ("low contrast", contrast(picture(), 0.3)),
        ("saturation", saturation(picture(), 1.6)),
        ("low saturation", saturation(picture(), 0.35)),
        ("hue", hue(picture(), 0.17)),
        ("back hue", hue(picture(), -0.4)),
        ("gray", gray(picture())),
        ("solarize", solarize(picture(), 120)),
        ("posterize", posterize(picture(), 3)),
        ("autocontrast", autocontrast(picture() // 2 + 9)),
        ("blur", blur(picture(), gauss(3, 0.8), gauss(5, 0.8))),
    ],
)
def test_is_what_torchvision_makes(name, made):
    assert made.ravel().tolist() == EXPECTED[name]


def test_equalize_is_torchvisions():
    values = (np.arange(1200) ** 2 // 7) % 97 + 30
    made = equalize(np.moveaxis(values.astype(np.uint8).reshape(3, 20, 20), 0, 2))
    assert made.sum((0, 1), dtype=np.int64).tolist() == [68793, 68733, 68704]
    expected = [[93, 177, 255, 255, 9, 93], [192, 255, 93, 237, 255, 155], [255, 201, 21, 255, 69, 255]]
    assert made[3, 5:11].T.tolist() == expected


def test_floats_are_torchvisions():
    made = standard(unit(picture()), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)).ravel()[:9]
    expected = (
        "-0x1.8d8376p+0 0x1.f0f0f8p-2 0x1.51eb86p+1 -0x1.df9a4p-3 0x1.d5555ap+0 -0x1.868c3cp+0 0x1.619086p-1"
        " -0x1.0e2996p+0 0x1.c048d8p+0"
    )
    assert made.tolist() == [float.fromhex(number) for number in expected.split()]
