"""to_float: uint8 to float32 from 0 to 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cedar.operators.algebra import pointwise
from cedar.operators.draws import Draws
from cedar.operators.image.color import PixelTransform
from cedar.operators.image.pixels_steps import NONE, Steps, one_step


@pointwise
@dataclass(frozen=True)
class ToFloat(PixelTransform):
    """Images of float32 from 0 to 1: torchvision.transforms.v2.ToDtype(torch.float32, scale=True).

    Images (height, width, channels) of uint8, any channels. A value is multiplied by the float32 next to 1/255.

    Raises:
        PipelineError: a column of anything but images of uint8.

    Example:
        >>> ToFloat()(np.array([[[0], [51], [255]]], dtype=np.uint8))[0, :, 0].round(6).tolist()
        [0.0, 0.20000000298023224, 1.0]
    """

    takes: ClassVar[tuple[int, ...]] = ()
    larger: ClassVar[bool] = True

    def made(self, dtype: str) -> str:
        del dtype
        return np.dtype(np.float32).name

    def steps(self, rows: int, draws: Draws | None) -> Steps:
        del draws
        return one_step(rows, NONE)  # the pass ends with it
