"""Operators against torchvision 0.28 itself, on bytes, with the same parameters; without it, the oracles remain.

Its warps are computed in float32 all the way. So here and there a value is rounded to the other side, and a pixel
between two others is taken from the other one: by ``nearly``, at most one value of fifty differs.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("numba")
torch = pytest.importorskip("torch")
pytest.importorskip("torchvision", reason="needs torchvision: pip install --no-deps torchvision==0.28.*")

from torchvision.transforms import v2  # noqa: E402
from torchvision.transforms.v2 import functional as F  # noqa: E402, N812

from cedar.operators import image  # noqa: E402
from cedar.operators.image.augmenting import OPERATORS  # noqa: E402
from tests.operators.image.toy_draws import MANY, words  # noqa: E402

SHAPES = [(64, 64, 3), (37, 61, 3), (50, 33, 1), (1, 7, 3), (2, 2, 3)]


def picture(shape, seed=0):
    """Smooth, with some noise."""
    rng = np.random.default_rng(seed)
    y, x, c = np.mgrid[: shape[0], : shape[1], : shape[2]]
    waves = 120 + 70 * np.sin(x / 5 + c) + 60 * np.cos(y / 7 - c)
    return np.clip(waves + rng.normal(0, 4, shape), 0, 255).astype(np.uint8)


def theirs(function, values, *args, **options):
    """What torchvision makes of an image of ours."""
    made = function(torch.from_numpy(np.ascontiguousarray(values.transpose(2, 0, 1))), *args, **options)
    return made.numpy().transpose(1, 2, 0)


def nearly(made, wanted, by=1):
    """Alike but for roundings: at most one value of fifty differs, and where pixels are mixed, by one."""
    far = np.abs(made.astype(int) - wanted.astype(int))
    assert made.shape == wanted.shape
    assert (far > 0).mean() <= 0.02
    assert far.max() <= by


@pytest.mark.parametrize("shape", SHAPES)
def test_flips_invert_and_sharpness_to_the_bit(shape):
    values = picture(shape)
    assert np.array_equal(image.vertical_flip(1.0)(values, draws=words(1)), theirs(F.vertical_flip, values))
    assert np.array_equal(image.invert(1.0)(values), theirs(F.invert, values))
    for factor in (0.0, 0.3, 1.0, 1.9, 7.5):
        assert np.array_equal(image.sharpness(factor, 1.0)(values), theirs(F.adjust_sharpness, values, factor))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fill", [0, 77, None])
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("angle", [0, 12.5, 90, -131, 180])
def test_rotation(shape, fill, mode, angle):
    values = picture(shape)
    made = image.rotation((angle, angle), interpolation=mode, fill=fill)(values, draws=words(1))
    ties = angle % 90 == 0 and angle % 180 and (shape[0] + shape[1]) % 2  # each pixel is between others
    if not ties:
        nearly(made, theirs(F.rotate, values, angle, interpolation=mode, fill=fill), 255 if mode == "nearest" else 1)


def test_rotation_around_a_place():
    values = picture((40, 60, 3))
    made = image.rotation((30, 30), "bilinear", center=(10, 20), fill=(1, 2, 3))(values, draws=words(1))
    nearly(made, theirs(F.rotate, values, 30, interpolation="bilinear", center=[10, 20], fill=[1, 2, 3]))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize(
    ("angle", "scale", "shear", "center"),
    [(0, 1.0, (0, 0), None), (33, 0.7, (0, 0), None), (-15, 1.4, (20, -10), None), (5, 1.0, (0, 30), (3, 4))],
)
def test_affine(shape, mode, angle, scale, shear, center):
    values = picture(shape)
    ends = (shear[0], shear[0], shear[1], shear[1])
    affine = image.affine((angle, angle), None, (scale, scale), ends, mode, 9, center)
    made = affine(values, draws=words(1))
    where = None if center is None else list(center)
    wanted = theirs(F.affine, values, angle, [0, 0], scale, list(shear), interpolation=mode, fill=9, center=where)
    nearly(made, wanted, 255 if mode == "nearest" else 1)


def test_affine_shifts_by_whole_pixels():
    values = picture((40, 60, 3))
    for word in range(20):
        affine = image.affine(0, (0.3, 0.2))
        (told,) = affine.describe(words(word), values[None])
        across, down = -told["matrix"][2], -told["matrix"][5]
        assert abs(across) <= 18
        assert abs(down) <= 8
        wanted = theirs(F.affine, values, 0, [int(across), int(down)], 1.0, [0.0, 0.0], fill=0)
        assert np.array_equal(affine(values, draws=words(word)), wanted)


@pytest.mark.parametrize("shape", [(64, 64, 3), (37, 61, 3), (50, 33, 1)])
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_perspective(shape, mode):
    values = picture(shape)
    perspective = image.perspective(0.5, 1.0, mode, fill=40)
    for word in range(8):
        (told,) = perspective.describe(words(word), values[None])
        wanted = theirs(
            F.perspective, values, None, None, coefficients=list(told["matrix"]), interpolation=mode, fill=40
        )
        nearly(perspective(values, draws=words(word)), wanted, 255 if mode == "nearest" else 1)


def test_perspective_is_of_the_corners():
    values = picture((40, 60, 3))
    corners = [[0, 0], [59, 0], [59, 39], [0, 39]]
    for word in range(50):
        (told,) = image.perspective(0.5, 1.0).describe(words(word), values[None])
        back = np.array([*told["matrix"], 1.0]).reshape(3, 3)
        moved = np.linalg.inv(back) @ np.array([[x, y, 1] for x, y in corners], dtype=float).T
        moved = (moved[:2] / moved[2]).T
        np.testing.assert_allclose(moved, np.rint(moved), atol=2e-3)
        coefficients = F._geometry._get_perspective_coeffs(corners, np.rint(moved).astype(int).tolist())
        np.testing.assert_allclose(told["matrix"], coefficients, rtol=2e-4, atol=2e-5)


def test_erasing():
    values = picture((40, 60, 3)).astype(np.float32)
    erasing = image.erasing(1.0, value=(1.5, 2.5, 3.5))
    (told,) = erasing.describe(words(4), values[None])
    place = [told[name] for name in ("top", "left", "height", "width")]
    wanted = theirs(F.erase, values, *place, v=torch.tensor([1.5, 2.5, 3.5])[:, None, None])
    assert np.array_equal(erasing(values, draws=words(4)), wanted)


AUGMENTS = {
    "rand": (image.rand_augment(1, 17), v2.RandAugment(1, 17)),
    "rand bilinear": (image.rand_augment(1, 25, interpolation="bilinear", fill=5), None),
    "trivial": (image.trivial_augment(), v2.TrivialAugmentWide()),
}


@pytest.mark.parametrize("name", AUGMENTS)
def test_augment(name):
    ours, other = AUGMENTS[name]
    other = other or v2.RandAugment(1, 25, interpolation="bilinear", fill=5)
    shape = (48, 40, 3)
    draws = MANY.take(np.arange(150))
    told, seen = ours.describe(draws), set()
    spaces = list(other._AUGMENTATION_SPACE.items())
    assert [label.lower() for label, _ in spaces] == [operator.replace("_", "") for operator in OPERATORS]
    for row, ((operator, share),) in enumerate(each["operators"] for each in told):
        label, (magnitudes, signed) = spaces[OPERATORS.index(operator)]
        amounts, magnitude = magnitudes(31, *shape[:2]), 0.0
        if amounts is not None:
            place = round(abs(share) * 30)
            assert abs(place / 30 - abs(share)) < 1e-9
            magnitude = float(amounts[place]) * (-1 if share < 0 else 1)
            if label[:5] == "Trans":
                magnitude = round(magnitude, 5)  # 16 pixels, not 15.9999
            elif label == "Solarize":
                magnitude = 1 - share  # 0.4, not 0.40000003
        assert share >= 0 or signed
        values = picture(shape, row)
        made = ours(values, draws=draws.take(np.array([row])))
        wanted = theirs(
            other._apply_image_or_video_transform, values, label, magnitude, other.interpolation, other._fill
        )
        nearly(made, wanted, 255 if label[:5] in ("Shear", "Rotat") and other.interpolation == "nearest" else 1)
        seen.add(operator)
    assert seen == set(OPERATORS)


def test_several_operators_are_one_after_the_other():
    values, draws = picture((40, 40, 3)), MANY.take(np.arange(40))
    twice = image.rand_augment(2, 12)
    for row, told in enumerate(twice.describe(draws)):
        step = values
        for operator, share in told["operators"]:
            label, (magnitudes, _) = list(v2.RandAugment._AUGMENTATION_SPACE.items())[OPERATORS.index(operator)]
            amounts = magnitudes(31, 40, 40)
            magnitude = 0.0 if amounts is None else float(amounts[12]) * (-1 if share < 0 else 1)
            other = v2.RandAugment()
            step = theirs(other._apply_image_or_video_transform, step, label, magnitude, "nearest", other._fill)
        made = twice(values, draws=draws.take(np.array([row])))
        assert (made != step).mean() < 0.03  # a column is between others


@pytest.mark.parametrize("dense", [False, True])
def test_mixup_and_cutmix(dense):
    values = np.stack([picture((24, 30, 3), seed) for seed in range(5)]).astype(np.float32) / 255
    ids = np.array([0, 3, 1, 2, 3])
    labels = torch.eye(4)[ids] * 0.9 + 0.025 if dense else torch.from_numpy(ids)
    draws = MANY.take(np.arange(5))
    tensor = torch.from_numpy(np.ascontiguousarray(values.transpose(0, 3, 1, 2)))
    column = labels.numpy() if dense else pa.array(ids)
    for ours, other in ((image.mixup(4, 0.3), v2.MixUp(num_classes=4)), (image.cutmix(4), v2.CutMix(num_classes=4))):
        made, mixed = ours.columns(values, column, draws=draws)
        share = ours.describe(draws, values, column)[0]["share"]
        y, x = np.nonzero((made != values).any(axis=(0, 3)))
        box = (x.min(), y.min(), x.max() + 1, y.max() + 1)
        params = {"labels": labels, "batch_size": 5, "lam": share, "lam_adjusted": share, "box": box}
        wanted = other.transform(tensor, params).numpy().transpose(0, 2, 3, 1)
        assert np.array_equal(made, wanted)
        assert np.array_equal(mixed, other.transform(labels, params).numpy())
