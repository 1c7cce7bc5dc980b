"""What the operators on pixels share: they say which steps each row takes, and one kernel takes them; and grayscale."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from cedar.core.columns import OBJECT, Column, ColumnType, TensorType
from cedar.core.errors import PipelineError, user_site
from cedar.operators.algebra import mark, pointwise
from cedar.operators.draws import Draws
from cedar.operators.image.base import ImageTransform
from cedar.operators.image.layout import ImageType, Sizes, checked
from cedar.operators.image.pixels_steps import GRAY, GRAY_ONE, SPREAD, Steps, one_step
from cedar.operators.image.spatial import check_share, drawn


class PixelTransform(ImageTransform):
    """Changes pixels and leaves the size of images: colors, blur, conversion to floats.

    Attributes:
        takes: the numbers of channels that it takes; none: any.
        dtypes: of the images that it takes.
    """

    takes: ClassVar[tuple[int, ...]] = (1, 3)
    dtypes: ClassVar[tuple[str, ...]] = ("uint8",)

    @abstractmethod
    def steps(self, sizes: Sizes, draws: Draws | None) -> Steps:
        """The steps of each of the rows.

        Args:
            sizes: int64 (rows, 2): heights and widths of their images.
            draws: of the rows, where it is random.
        """

    def after(self, channels: int) -> int:
        """The number of channels that it leaves."""
        return channels

    def result(self, *types: Any) -> ColumnType:
        (kind,) = types
        channels, dtype = checked(self, kind, self.dtypes)
        if channels is not None and self.takes and channels not in self.takes:
            raise self.unfit(kind, f"images of {' or '.join(map(str, self.takes))} channels")
        if dtype is None:
            return OBJECT
        made = None if channels is None else self.after(channels)
        if isinstance(kind, TensorType) and made is not None:
            return TensorType((*kind.shape[:2], made), self.made(dtype))
        return ImageType(made, self.made(dtype))

    def made(self, dtype: str) -> str:
        """The dtype of the result."""
        return dtype

    def describe(self, draws: Draws, *columns: Any) -> list[dict[str, Any]]:
        from cedar.operators.image.sources import Arrays

        return self.steps(Arrays(columns[0]).sizes, draws).describe()

    def columns(self, *columns: Any, **draws: Any) -> Column:
        from cedar.operators.image.engine import alone

        return alone(self, columns, draws.get("draws"))


def applied(draws: Draws | None, p: float) -> npt.NDArray[np.bool_] | None:
    """Which rows an operator is applied to, by their first draw; None: to all."""
    return None if p >= 1 else drawn(draws).uniform(1)[:, 0] < p


def set_random(transform: Any, random: bool) -> None:
    """Say of one transform whether it draws: with p=1 some do not."""
    object.__setattr__(transform, "random", random)


def set_pointwise(transform: Any) -> None:
    """Mark one transform as pointwise, where others of its class are not."""
    mark(transform, "pointwise")


def pair(name: str, parameter: str, value: Any) -> tuple[float, float]:
    """Two numbers, from two or from one for both.

    Raises:
        PipelineError: at the user's line.
    """
    both = (value, value) if isinstance(value, int | float | np.number) else value
    if (
        not isinstance(both, Sequence)
        or len(both) != 2
        or not all(isinstance(v, int | float | np.number) for v in both)
    ):
        raise PipelineError(f"{name}({parameter}={value!r}): one number or two", site=user_site())
    return float(both[0]), float(both[1])


@pointwise
@dataclass(frozen=True)
class Grayscale(PixelTransform):
    """0.2989 red + 0.587 green + 0.114 blue, rounded down: torchvision.transforms.v2's Grayscale and RandomGrayscale.

    Images (height, width, 1 or 3) of uint8; of one channel they stay unchanged. The sum is rounded to float32 at each
    addition, as torch does.

    Args:
        num_output_channels: 1 or 3 (all three alike). By default 1; with ``p`` below 1 as many as the image has.
        p: the probability that a row is changed. Below 1 images keep their number of channels.

    Raises:
        PipelineError: other arguments, or a column of anything but such images.

    Examples:
        >>> import numpy as np
        >>> image = np.array([[[255, 0, 0], [10, 20, 30]]], dtype=np.uint8)
        >>> Grayscale()(image)[0].tolist(), Grayscale(3)(image)[0].tolist()
        ([[76], [18]], [[76, 76, 76], [18, 18, 18]])
    """

    num_output_channels: Literal[1, 3] | None = None
    p: float = 1.0

    def __post_init__(self) -> None:
        check_share("grayscale", "p", self.p)
        if self.num_output_channels not in (None, 1, 3) or (self.p < 1 and self.num_output_channels is not None):
            raise PipelineError(
                f"grayscale(num_output_channels={self.num_output_channels!r}, p={self.p!r}): 1 or 3 channels with p=1",
                site=user_site(),
                fix="leave num_output_channels out where p is below 1: images keep their channels",
            )
        set_random(self, self.p < 1)

    def after(self, channels: int) -> int:
        return channels if self.p < 1 else (self.num_output_channels or 1)

    def steps(self, sizes: Sizes, draws: Draws | None) -> Steps:
        if self.p < 1:
            return one_step(len(sizes), GRAY, applied=applied(draws, self.p))
        if self.after(3) == 1:
            return one_step(len(sizes), GRAY_ONE)
        gray, spread = one_step(len(sizes), GRAY), one_step(len(sizes), SPREAD)
        return gray.then(spread)
