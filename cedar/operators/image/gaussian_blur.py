"""gaussian_blur: blur images by a random amount."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from cedar.core.errors import invalid_call
from cedar.operators.algebra import resampling
from cedar.operators.draws import Draws
from cedar.operators.image.layout import Sizes
from cedar.operators.image.pixel_transform import PixelTransform, pair, set_random
from cedar.operators.image.pixels_steps import BLUR, NONE, Steps, Weights
from cedar.operators.image.spatial import check_probability, require_draws
from cedar.operators.image.spatial import pair as whole_pair

_MIN_WEIGHT = 2.0**-25  # smaller weights are left out, since adding them to 1 in float32 has no effect


@resampling
@dataclass(frozen=True)
class GaussianBlur(PixelTransform):
    """Blur with a Gaussian kernel: torchvision.transforms.v2.GaussianBlur.

    Takes uint8 images (height, width, channels) with any number of channels. Weights exp(-x^2 / (2 sigma^2)) are
    normalized in float64 and rounded to float32; weights below 2^-25 are left out. Sums use float32 fused multiply-add,
    along columns first and then along rows. Results are rounded once to uint8, halves to even. Images are mirrored at
    their borders, without repeating the border pixel, as often as the kernel requires.

    torchvision computes one sum over both directions, so a few values that are almost halfway between two integers are
    rounded differently.

    Args:
        kernel_size: odd size for both sides, or (width, height).
        sigma: standard deviation above 0: one number, or (min, max) to draw it uniformly.
        p: probability that a row is blurred, as in RandomApply([GaussianBlur(...)], p).

    Raises:
        PipelineError: an argument is invalid, or the column does not contain uint8 images.

    Examples:
        >>> image = np.array([[[0], [0], [255], [0], [0]]], dtype=np.uint8)
        >>> GaussianBlur(3, sigma=1.0)(image)[0, :, 0].tolist()
        [0, 70, 115, 70, 0]
    """

    kernel_size: int | tuple[int, int]
    sigma: float | Sequence[float] = (0.1, 2.0)
    p: float = 1.0
    takes: ClassVar[tuple[int, ...]] = ()

    def __post_init__(self) -> None:
        check_probability("gaussian_blur", "p", self.p)
        try:
            sides = whole_pair(self.kernel_size, "kernel_size")
        except (TypeError, ValueError):
            sides = (0, 0)
        if not all(side % 2 for side in sides):
            raise invalid_call(
                f"gaussian_blur(kernel_size={self.kernel_size!r}): must be one or two odd numbers above 0"
            )
        low, high = pair("gaussian_blur", "sigma", self.sigma)
        if not 0 < low <= high < np.inf:
            raise invalid_call(f"gaussian_blur(sigma={self.sigma!r}): must be above 0, and in the order (min, max)")
        object.__setattr__(self, "kernel_size", sides)
        object.__setattr__(self, "sigma", (low, high))
        set_random(self, self.p < 1 or low < high)

    def steps(self, sizes: Sizes, draws: Draws | None) -> Steps:
        sides: Any = self.kernel_size
        applied, sigmas = self._draw_sigmas(len(sizes), draws)
        codes, numbers = np.where(applied, BLUR, NONE).astype(np.int64)[:, None], np.zeros((len(sizes), 1, 2))
        blurred = np.flatnonzero(applied)
        different, sigma_indices = np.unique(sigmas[blurred], return_inverse=True)
        tables: list[Weights] = []
        for i, side in enumerate(sides):
            if i == 0 or side != sides[0]:
                first = len(tables)
                tables += weights(side, different)
            numbers[blurred, 0, i] = first + sigma_indices
        return Steps(codes, numbers, tables)

    def _draw_sigmas(self, rows: int, draws: Draws | None) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float64]]:
        """Return a mask of the rows to blur, and the sigma of each row."""
        low, high = pair("gaussian_blur", "sigma", self.sigma)
        if self.p == 1 and low == high:
            return np.ones(rows, dtype=bool), np.full(rows, low)
        uniform = require_draws(draws).uniform(2)
        return uniform[:, 0] < self.p, low + (high - low) * uniform[:, 1]

    def describe(self, draws: Draws, *columns: Any) -> list[dict[str, Any]]:
        del columns
        applied, sigmas = self._draw_sigmas(len(draws), draws)
        rows = zip(applied.tolist(), sigmas.tolist(), strict=True)
        return [{"applied": True, "sigma": sigma} if on else {"applied": False} for on, sigma in rows]


def weights(size: int, sigmas: Sequence[float] | npt.NDArray[np.float64]) -> list[Weights]:
    """Return the weights of a Gaussian kernel for each sigma: float32, odd in number, without negligible weights.

    Examples:
        >>> [found.round(3).tolist() for found in weights(3, [1.0, 0.1])]
        [[0.27399998903274536, 0.4519999921321869, 0.27399998903274536], [1.0]]
    """
    x = np.arange(size) - (size - 1) / 2
    with np.errstate(over="ignore", under="ignore"):
        gaussians = np.exp(-((x / np.asarray(sigmas, dtype=np.float64)[:, None]) ** 2) / 2)
    gaussians /= gaussians.sum(axis=1, keepdims=True)
    middle = size // 2
    reaches = (gaussians[:, middle:] >= _MIN_WEIGHT).sum(axis=1) - 1
    kept = zip(gaussians.astype(np.float32), reaches.tolist(), strict=True)
    return [row[middle - reach : middle + reach + 1] for row, reach in kept]
