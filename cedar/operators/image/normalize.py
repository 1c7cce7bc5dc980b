"""normalize, to_float and channels_first: prepare images for a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from cedar.core.columns import Column, ColumnType, TensorType
from cedar.core.errors import invalid_call
from cedar.operators.algebra import pointwise
from cedar.operators.draws import Draws
from cedar.operators.image.base import ImageTransform
from cedar.operators.image.layout import PlanarType, Sizes, check_images
from cedar.operators.image.pixel_transform import PixelTransform
from cedar.operators.image.pixels_steps import NONE, Steps, one_step


@pointwise
@dataclass(frozen=True)
class Normalize(PixelTransform):
    """Standardize each channel to (value - mean) / std in float32: torchvision.transforms.v2.Normalize.

    Takes float32 images (height, width, channels), so use it after ``to_float``.

    Args:
        mean: one number per channel, or one for all channels.
        std: one nonzero number per channel, or one for all channels.

    Raises:
        PipelineError: a std is 0, the lengths do not match, or the column does not contain float32 images.

    Examples:
        >>> image = np.array([[[0.0], [0.5], [1.0]]], dtype=np.float32)
        >>> Normalize(mean=0.5, std=0.25)(image)[0, :, 0].tolist()
        [-2.0, 0.0, 2.0]
    """

    mean: float | Sequence[float]
    std: float | Sequence[float]
    takes: ClassVar[tuple[int, ...]] = ()
    dtypes: ClassVar[tuple[str, ...]] = ("float32",)

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            given = getattr(self, name)
            values = (given,) if isinstance(given, int | float | np.number) else tuple(given)
            if not values or not all(isinstance(v, int | float | np.number) and np.isfinite(v) for v in values):
                raise invalid_call(f"normalize({name}={given!r}): must be one number, or one per channel")
            object.__setattr__(self, name, tuple(float(v) for v in values))
        if not all(np.float32(v) for v in self._values("std")):
            raise invalid_call(f"normalize(std={self.std!r}): std must not be 0")
        lengths = {len(self._values("mean")), len(self._values("std"))} - {1}
        if len(lengths) > 1:
            raise invalid_call(f"normalize: {len(self._values('mean'))} means and {len(self._values('std'))} stds")

    def _values(self, name: str) -> tuple[float, ...]:
        values: tuple[float, ...] = getattr(self, name)
        return values

    @property
    def channels(self) -> int | None:
        """The number of channels that images must have; None if any number is accepted."""
        lengths = {len(self._values("mean")), len(self._values("std"))} - {1}
        return max(lengths) if lengths else None

    def per_channel(self, channels: int) -> npt.NDArray[np.float32]:
        """Return the means and standard deviations of all channels, float32 (2, channels)."""
        wide = [values * channels if len(values) == 1 else values for values in map(self._values, ("mean", "std"))]
        return np.array(wide, dtype=np.float32)

    def result(self, *types: Any) -> ColumnType:
        result_type = super().result(*types)
        is_tensor = isinstance(result_type, TensorType)
        channels = result_type.shape[2] if is_tensor else getattr(result_type, "channels", None)
        if channels is not None and self.channels not in (None, channels):
            raise self.unfit(types[0], f"images of {self.channels} channels, to match mean and std")
        return result_type

    def steps(self, sizes: Sizes, draws: Draws | None) -> Steps:
        del draws
        return one_step(len(sizes), NONE)  # the pass ends with it


@pointwise
@dataclass(frozen=True)
class ToFloat(PixelTransform):
    """Convert uint8 images to float32 from 0 to 1: torchvision.transforms.v2.ToDtype(torch.float32, scale=True).

    Takes images (height, width, channels) with any number of channels. Values are multiplied by float32(1/255).

    Raises:
        PipelineError: the column does not contain uint8 images.

    Examples:
        >>> ToFloat()(np.array([[[0], [51], [255]]], dtype=np.uint8))[0, :, 0].round(6).tolist()
        [0.0, 0.20000000298023224, 1.0]
    """

    takes: ClassVar[tuple[int, ...]] = ()
    larger: ClassVar[bool] = True

    def output_dtype(self, dtype: str) -> str:
        del dtype
        return np.dtype(np.float32).name

    def steps(self, sizes: Sizes, draws: Draws | None) -> Steps:
        del draws
        return one_step(len(sizes), NONE)  # the pass ends with it


@dataclass(frozen=True)
class ChannelsFirst(ImageTransform):
    """Transpose images to (channels, height, width), as torch models expect. Use this as the last image operator, since
    other image operators expect (height, width, channels).

    The result is a view and no data is copied; torch calls this memory format ``channels_last``.

    Raises:
        PipelineError: the column does not contain images.

    Examples:
        >>> import numpy as np
        >>> ChannelsFirst()(np.zeros((2, 4, 3), dtype=np.uint8)).shape
        (3, 2, 4)
    """

    def result(self, *types: Any) -> ColumnType:
        (kind,) = types
        check_images(self, kind)
        if isinstance(kind, TensorType):
            height, width, channels = kind.shape
            return TensorType((channels, height, width), kind.dtype)
        return PlanarType()

    def columns(self, *columns: Any, **draws: Any) -> Column:
        from cedar.operators.image.engine import run_one

        return run_one(self, columns, None)
