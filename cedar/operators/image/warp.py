"""rotation, affine and perspective: a common kernel maps positions in the result to the source by a matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from cedar.core.columns import ColumnType
from cedar.core.errors import invalid_call
from cedar.operators.algebra import resampling
from cedar.operators.draws import Draws
from cedar.operators.image.layout import Sizes, check_images
from cedar.operators.image.padding import fill_values
from cedar.operators.image.pixel_transform import PixelTransform, pair
from cedar.operators.image.pixels_steps import NONE, WARP, Steps
from cedar.operators.image.spatial import check_fill, check_probability, check_range, require_draws

Fill: TypeAlias = float | tuple[float, ...] | None
WarpInterpolation: TypeAlias = Literal["nearest", "bilinear"]
Numbers = npt.NDArray[np.float64]

_CORNERS = np.array([[0, 0], [1, 0], [1, 1], [0, 1]], dtype=np.int64)  # (x, y) of an image's corners


class Warp(PixelTransform):
    """Base class: computes each pixel from another position in the image, and keeps the image's size."""

    takes: ClassVar[tuple[int, ...]] = ()
    random: ClassVar[bool] = True
    interpolation: Any
    fill: Any

    def result(self, *types: Any) -> ColumnType:
        result_type = super().result(*types)
        check_fill(self, *check_images(self, types[0]))
        return result_type


@resampling
@dataclass(frozen=True)
class Rotation(Warp):
    """Rotate by a random angle, counter-clockwise: torchvision.transforms.v2.RandomRotation.

    Takes uint8 images (height, width, channels) and keeps their size. Positions are computed in float64 from a float32
    matrix; torchvision computes them in float32, so a few pixel values may differ by one.

    Args:
        degrees: range of the angle, which is drawn uniformly: (min, max), or x for -x to x.
        interpolation: "nearest" or "bilinear".
        center: (x, y) in pixels from the top left; by default the center of the image.
        fill: value of pixels from outside the image: one number, or one per channel.

    Raises:
        PipelineError: an argument is invalid, or the column does not contain uint8 images.

    Examples:
        >>> image = np.array([[[1], [2]], [[3], [4]]], dtype=np.uint8)
        >>> Rotation((90, 90))(image, draws=Draws(np.zeros(1, dtype=np.uint64)))[:, :, 0].tolist()
        [[2, 4], [1, 3]]
    """

    degrees: float | Sequence[float]
    interpolation: WarpInterpolation = "nearest"
    center: Sequence[float] | None = None
    fill: Fill = 0

    def __post_init__(self) -> None:
        check_warp("rotation", self)
        object.__setattr__(self, "degrees", _angle_range("rotation", "degrees", self.degrees))

    def steps(self, sizes: Sizes, draws: Draws | None) -> Steps:
        low, high = self.degrees  # type: ignore[misc]
        angles = low + (high - low) * require_draws(draws).uniform(1)[:, 0]
        return warp_steps(matrices(sizes, -angles, center=self.center), self.interpolation, self.fill)


@resampling
@dataclass(frozen=True)
class Affine(Warp):
    """Rotate, shift, scale and shear by random amounts: torchvision.transforms.v2.RandomAffine.

    Takes uint8 images (height, width, channels), which keep their size. See ``rotation`` for the arithmetic.

    Args:
        degrees: range of the clockwise angle, which is drawn uniformly: (min, max), or x for -x to x.
        translate: (x, y): maximum shifts as fractions of width and height; drawn uniformly, rounded to whole pixels.
        scale: (min, max) of the scaling factor, which is drawn uniformly.
        shear: range of the angle along x, as for ``degrees``, or (x min, x max, y min, y max).
        interpolation: "nearest" or "bilinear".
        fill: value of pixels from outside the image: one number, or one per channel.
        center: (x, y) in pixels from the top left; by default the center of the image.

    Raises:
        PipelineError: an argument is invalid, or the column does not contain uint8 images.

    Examples:
        >>> image = np.arange(1, 5, dtype=np.uint8).reshape(1, 4, 1)
        >>> affine = Affine(0, scale=(2.0, 2.0), center=(0, 0))
        >>> affine(image, draws=Draws(np.zeros(1, dtype=np.uint64)))[0, :, 0].tolist()
        [1, 1, 2, 2]
    """

    degrees: float | Sequence[float]
    translate: Sequence[float] | None = None
    scale: Sequence[float] | None = None
    shear: float | Sequence[float] | None = None
    interpolation: WarpInterpolation = "nearest"
    fill: Fill = 0
    center: Sequence[float] | None = None

    def __post_init__(self) -> None:
        check_warp("affine", self)
        object.__setattr__(self, "degrees", _angle_range("affine", "degrees", self.degrees))
        across, down = pair("affine", "translate", (0, 0) if self.translate is None else self.translate)
        if not (0 <= across <= 1 and 0 <= down <= 1):
            raise invalid_call(f"affine(translate={self.translate!r}): must be two fractions, 0 .. 1")
        object.__setattr__(self, "translate", (across, down))
        object.__setattr__(
            self, "scale", check_range("affine", "scale", (1, 1) if self.scale is None else self.scale, 1e-6)
        )
        shear: Any = 0.0 if self.shear is None else self.shear
        four = isinstance(shear, Sequence) and len(shear) == 4
        along = (shear[:2], shear[2:]) if four else (shear, 0.0)
        object.__setattr__(self, "shear", sum((_angle_range("affine", "shear", part) for part in along), ()))

    def steps(self, sizes: Sizes, draws: Draws | None) -> Steps:
        ranges: list[Any] = [self.degrees, self.scale, self.shear[:2], self.shear[2:]]  # type: ignore[index]
        numbers = require_draws(draws).uniform(6)
        low, high = np.array(ranges, dtype=np.float64).T
        angles, scales, *shears = (low + (high - low) * numbers[:, :4]).T
        shifts = np.rint(np.array(self.translate) * sizes[:, ::-1] * (2 * numbers[:, 4:] - 1))
        tangents = np.tan(np.radians(np.stack(shears, axis=1)))
        matrix_rows = matrices(sizes, angles, shifts=shifts, scales=scales, tangents=tangents, center=self.center)
        return warp_steps(matrix_rows, self.interpolation, self.fill)


@resampling
@dataclass(frozen=True)
class Perspective(Warp):
    """Move the corners of an image inward by random amounts: torchvision.transforms.v2.RandomPerspective.

    Takes uint8 images (height, width, channels), which keep their size. See ``rotation`` for the arithmetic. An image
    with a side of one pixel stays unchanged.

    Args:
        distortion_scale: maximum shift of a corner as a fraction of half a side, 0 .. 1.
        p: probability that a row is changed.
        interpolation: "nearest" or "bilinear".
        fill: value of pixels from outside the image: one number, or one per channel.

    Raises:
        PipelineError: an argument is invalid, or the column does not contain uint8 images.

    Examples:
        >>> image = np.full((20, 20, 1), 9, dtype=np.uint8)
        >>> made = Perspective(0.6, p=1.0)(image, draws=Draws(np.array([5], dtype=np.uint64)))
        >>> int(made[10, 10, 0]), int(made[0, 0, 0])
        (9, 0)
    """

    distortion_scale: float = 0.5
    p: float = 0.5
    interpolation: WarpInterpolation = "bilinear"
    fill: Fill = 0

    def __post_init__(self) -> None:
        check_warp("perspective", self)
        check_probability("perspective", "distortion_scale", self.distortion_scale)
        check_probability("perspective", "p", self.p)

    def steps(self, sizes: Sizes, draws: Draws | None) -> Steps:
        numbers = require_draws(draws).uniform(9)
        sides = sizes[:, None, ::-1]
        inwards = (self.distortion_scale * (sides // 2)).astype(np.int64) + 1
        start = (sides - 1) * _CORNERS
        end = start + (1 - 2 * _CORNERS) * np.floor(numbers[:, 1:].reshape(-1, 4, 2) * inwards).astype(np.int64)
        applied = (numbers[:, 0] < self.p) & (sizes > 1).all(axis=1)
        matrix_rows = np.zeros((len(sizes), 8))
        matrix_rows[applied] = _perspectives(end[applied], start[applied])
        return warp_steps(matrix_rows, self.interpolation, self.fill, applied)


# ---- matrices ------------------------------------------------------------------------------------------------------


def matrices(
    sizes: Sizes,
    angles: npt.ArrayLike = 0.0,
    *,
    shifts: npt.ArrayLike = 0.0,
    scales: npt.ArrayLike = 1.0,
    tangents: npt.ArrayLike = 0.0,
    center: npt.ArrayLike | None = None,
) -> Numbers:
    """Return for each row the matrix that maps positions in the result to the source, float64 (rows, 8); see ``WARP``.

    Args:
        sizes: heights and widths of the images.
        angles: rotation in degrees, clockwise.
        shifts: translation along x and y in pixels.
        scales: scaling factors.
        tangents: tangents of the shear angles along x and y; the shear precedes the rotation.
        center: (x, y) of the point that stays in place; by default the center of the image.
    """
    rows = len(sizes)
    angle = np.radians(np.broadcast_to(np.asarray(angles, dtype=np.float64), rows))
    slant, lean = np.broadcast_to(np.asarray(tangents, dtype=np.float64), (rows, 2)).T
    scale = np.broadcast_to(np.asarray(scales, dtype=np.float64), rows)
    cos, sin = np.cos(angle), np.sin(angle)
    # The image is transformed by rotation @ [[1, -slant], [-lean, 1 + slant * lean]] * scale; ``back`` is the inverse.
    right, down = cos + sin * lean, sin - cos * lean
    back = np.stack([cos - down * slant, sin + right * slant, -down, right], axis=1) / scale[:, None]
    middle = np.broadcast_to(sizes[:, ::-1] / 2 if center is None else np.asarray(center, dtype=np.float64), (rows, 2))
    (x, y), (to_x, to_y) = middle.T, (middle + np.asarray(shifts, dtype=np.float64)).T
    result = np.zeros((rows, 8))
    result[:, [0, 1, 3, 4]] = back
    result[:, 2] = x - back[:, 0] * to_x - back[:, 1] * to_y
    result[:, 5] = y - back[:, 2] * to_x - back[:, 3] * to_y
    return result


def _perspectives(start: Sizes, end: Sizes) -> Numbers:
    """Return each row's perspective, float64 (rows, 8), that maps four points, int64 (rows, 4, 2), to four others."""
    x, y = start.astype(np.float64).transpose(2, 0, 1)
    equations = np.zeros((len(start), 4, 2, 8))
    for axis in (0, 1):
        target = end[:, :, axis].astype(np.float64)
        equations[:, :, axis, 3 * axis : 3 * axis + 3] = np.stack([x, y, np.ones_like(x)], axis=2)
        equations[:, :, axis, 6:] = np.stack([-x * target, -y * target], axis=2)
    inverse: npt.NDArray[Any] = np.linalg.pinv(equations.reshape(-1, 8, 8))  # pinv, as corners may be collinear
    return np.asarray((inverse @ end.astype(np.float64).reshape(-1, 8, 1))[:, :, 0], dtype=np.float64)


def warp_steps(
    matrix_rows: Numbers, interpolation: WarpInterpolation, fill: Any, applied: npt.NDArray[np.bool_] | None = None
) -> Steps:
    """Return a WARP step with its matrix for each row, or only for rows where ``applied`` is True."""
    rows = np.arange(len(matrix_rows)) if applied is None else np.flatnonzero(applied)
    codes, numbers = np.full((len(matrix_rows), 1), NONE, dtype=np.int64), np.zeros((len(matrix_rows), 1, 2))
    codes[rows] = WARP
    numbers[rows, 0, 0] = np.arange(len(rows))
    numbers[rows, 0, 1] = 0 if interpolation == "nearest" else 1 if fill is None else 2
    tables = np.empty((len(rows), 12), dtype=np.float32)
    tables[:, :8], tables[:, 8:] = matrix_rows[rows], ((fill or (0,)) * 4)[:4]
    return Steps(codes, numbers, list(tables))


# ---- arguments -----------------------------------------------------------------------------------------------------


def check_warp(name: str, transform: Any) -> None:
    """Check the arguments that are common to all warps.

    Raises:
        PipelineError: an argument is invalid; the error names the user's line.
    """
    choices = get_args(WarpInterpolation)
    if transform.interpolation not in choices:
        raise invalid_call(f"{name}(interpolation={transform.interpolation!r}): must be one of {', '.join(choices)}")
    if transform.fill is not None:
        object.__setattr__(transform, "fill", fill_values(name, transform.fill))
    center: Any = getattr(transform, "center", None)
    if center is not None:
        object.__setattr__(transform, "center", pair(name, "center", center))


def _angle_range(name: str, parameter: str, value: Any) -> tuple[float, float]:
    """Return the range of an angle in degrees: (-value, value) for a single number, otherwise the given pair."""
    low, high = pair(name, parameter, value)
    if isinstance(value, int | float | np.number):
        low = -high
    if not -np.inf < low <= high < np.inf:
        raise invalid_call(f"{name}({parameter}={value!r}): must be a number of at least 0, or (min, max)")
    return low, high
