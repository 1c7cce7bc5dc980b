"""channels_first: (height, width, channels) to (channels, height, width)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cedar.core.columns import Column, ColumnType, TensorType
from cedar.operators.image.base import ImageTransform
from cedar.operators.image.layout import PlanarType, checked


@dataclass(frozen=True)
class ChannelsFirst(ImageTransform):
    """Images of shape (channels, height, width), as torch models want them: the last operator,
    since the others want (height, width, channels).

    Nothing is copied: the result is a view with other strides, which torch knows as ``channels_last``.

    Raises:
        PipelineError: a column of anything but images.

    Example:
        >>> import numpy as np
        >>> ChannelsFirst()(np.zeros((2, 4, 3), dtype=np.uint8)).shape
        (3, 2, 4)
    """

    def result(self, *types: Any) -> ColumnType:
        (kind,) = types
        checked(self, kind)
        if isinstance(kind, TensorType):
            height, width, channels = kind.shape
            return TensorType((channels, height, width), kind.dtype)
        return PlanarType()

    def columns(self, *columns: Any, **draws: Any) -> Column:
        from cedar.operators.image.engine import alone

        return alone(self, columns, None)
