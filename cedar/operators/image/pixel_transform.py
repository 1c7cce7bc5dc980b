"""Grayscale, and the base class of pixel operators, which return the steps that a common kernel runs for each row."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from cedar.core.columns import OBJECT, Column, ColumnType, TensorType
from cedar.core.errors import invalid_call
from cedar.operators.algebra import mark, pointwise
from cedar.operators.draws import Draws
from cedar.operators.image.base import ImageTransform
from cedar.operators.image.layout import ImageType, Sizes, check_images
from cedar.operators.image.pixels_steps import GRAY, GRAY_ONE, SPREAD, Steps, one_step
from cedar.operators.image.spatial import check_probability, require_draws


class PixelTransform(ImageTransform):
    """Base class of operators that keep the size of images: color changes, blur, conversion to floats.

    Attributes:
        takes: accepted numbers of channels; empty accepts any number.
        dtypes: accepted dtypes of images.
    """

    takes: ClassVar[tuple[int, ...]] = (1, 3)
    dtypes: ClassVar[tuple[str, ...]] = ("uint8",)

    @abstractmethod
    def steps(self, sizes: Sizes, draws: Draws | None) -> Steps:
        """Return the steps to run on the image of each row.

        Args:
            sizes: int64 (rows, 2): height and width of each image.
            draws: the random draws of the rows; None if the operator is not random.
        """

    def output_channels(self, channels: int) -> int:
        """Return how many channels the result has."""
        return channels

    def result(self, *types: Any) -> ColumnType:
        (kind,) = types
        channels, dtype = check_images(self, kind, self.dtypes)
        if channels is not None and self.takes and channels not in self.takes:
            raise self.unfit(kind, f"images of {' or '.join(map(str, self.takes))} channels")
        if dtype is None:
            return OBJECT
        output_channels = None if channels is None else self.output_channels(channels)
        if isinstance(kind, TensorType) and output_channels is not None:
            return TensorType((*kind.shape[:2], output_channels), self.output_dtype(dtype))
        return ImageType(output_channels, self.output_dtype(dtype))

    def output_dtype(self, dtype: str) -> str:
        """Return the dtype of the result."""
        return dtype

    def describe(self, draws: Draws, *columns: Any) -> list[dict[str, Any]]:
        from cedar.operators.image.sources import Arrays

        return self.steps(Arrays(columns[0]).sizes, draws).describe()

    def columns(self, *columns: Any, **draws: Any) -> Column:
        from cedar.operators.image.engine import run_one

        return run_one(self, columns, draws.get("draws"))


def rows_applied(draws: Draws | None, p: float) -> npt.NDArray[np.bool_] | None:
    """Return a mask of the rows that an operator changes, based on each row's first draw; None for all rows."""
    return None if p >= 1 else require_draws(draws).uniform(1)[:, 0] < p


def set_random(transform: Any, random: bool) -> None:
    """Set whether this instance is random; some operators are not random with p=1."""
    object.__setattr__(transform, "random", random)


def set_pointwise(transform: Any) -> None:
    """Mark this instance as pointwise, for classes of which only some instances are."""
    mark(transform, "pointwise")


def pair(name: str, parameter: str, value: Any) -> tuple[float, float]:
    """Return a pair of numbers; a single number is used twice.

    Raises:
        PipelineError: the value is neither; the error names the user's line.
    """
    both = (value, value) if isinstance(value, int | float | np.number) else value
    if (
        not isinstance(both, Sequence)
        or len(both) != 2
        or not all(isinstance(v, int | float | np.number) for v in both)
    ):
        raise invalid_call(f"{name}({parameter}={value!r}): must be one number or two")
    return float(both[0]), float(both[1])


@pointwise
@dataclass(frozen=True)
class Grayscale(PixelTransform):
    """Convert to gray: torchvision.transforms.v2's Grayscale and RandomGrayscale.

    Gray is 0.2989 red + 0.587 green + 0.114 blue, rounded to float32 after each addition as in torch, and finally
    rounded down. Takes uint8 images (height, width, 1 or 3); images that are already gray keep their values.

    Args:
        num_output_channels: 1 or 3 (three equal channels). By default 1, or the image's own number if ``p`` < 1.
        p: probability that a row is changed. Below 1, images keep their number of channels.

    Raises:
        PipelineError: an argument is invalid, or the column does not contain such images.

    Examples:
        >>> import numpy as np
        >>> image = np.array([[[255, 0, 0], [10, 20, 30]]], dtype=np.uint8)
        >>> Grayscale()(image)[0].tolist(), Grayscale(3)(image)[0].tolist()
        ([[76], [18]], [[76, 76, 76], [18, 18, 18]])
    """

    num_output_channels: Literal[1, 3] | None = None
    p: float = 1.0

    def __post_init__(self) -> None:
        check_probability("grayscale", "p", self.p)
        if self.num_output_channels not in (None, 1, 3) or (self.p < 1 and self.num_output_channels is not None):
            raise invalid_call(
                f"grayscale(num_output_channels={self.num_output_channels!r}, p={self.p!r}): must be 1 or 3, with p=1",
                fix="leave out num_output_channels if p is below 1, as images keep their channels",
            )
        set_random(self, self.p < 1)

    def output_channels(self, channels: int) -> int:
        return channels if self.p < 1 else (self.num_output_channels or 1)

    def steps(self, sizes: Sizes, draws: Draws | None) -> Steps:
        if self.p < 1:
            return one_step(len(sizes), GRAY, applied=rows_applied(draws, self.p))
        if self.output_channels(3) == 1:
            return one_step(len(sizes), GRAY_ONE)
        gray, spread = one_step(len(sizes), GRAY), one_step(len(sizes), SPREAD)
        return gray.followed_by(spread)
