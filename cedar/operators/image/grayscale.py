"""grayscale: the grey of each pixel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cedar.core.errors import PipelineError, user_site
from cedar.operators.algebra import pointwise
from cedar.operators.draws import Draws
from cedar.operators.image.color import PixelTransform, applied, set_random
from cedar.operators.image.pixels_steps import GREY, GREY_ONE, SPREAD, Steps, one_step
from cedar.operators.image.spatial import check_share


@pointwise
@dataclass(frozen=True)
class Grayscale(PixelTransform):
    """0.2989 red + 0.587 green + 0.114 blue, rounded down: torchvision.transforms.v2's Grayscale and RandomGrayscale.

    Images (height, width, 1 or 3) of uint8; of one channel they stay as they are. The sum is rounded to float32 at each
    addition, as torch does.

    Args:
        num_output_channels: 1 or 3 (all three alike). By default 1; with ``p`` below 1 as many as the image has.
        p: the probability that a row is changed. Below 1 images keep their number of channels.

    Raises:
        PipelineError: other arguments, or a column of anything but such images.

    Example:
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

    def steps(self, rows: int, draws: Draws | None) -> Steps:
        if self.p < 1:
            return one_step(rows, GREY, applied=applied(draws, self.p))
        if self.after(3) == 1:
            return one_step(rows, GREY_ONE)
        grey, spread = one_step(rows, GREY), one_step(rows, SPREAD)
        return grey.then(spread)
