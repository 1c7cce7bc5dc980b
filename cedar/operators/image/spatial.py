"""What the spatial operators share: they say how each image moves, and boxes next to it move along."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from cedar.core.columns import OBJECT, UNKNOWN, Column, ColumnType, TensorType
from cedar.core.errors import PipelineError, user_site
from cedar.operators.algebra import mark
from cedar.operators.draws import Draws
from cedar.operators.image.base import ImageTransform
from cedar.operators.image.boxes import Boxes, box_rows, check_boxes, thinned
from cedar.operators.image.layout import ImageType, Sizes, checked, likely
from cedar.operators.image.moves import RowMoves
from cedar.operators.transform import Transform


class Spatial(ImageTransform):
    """Reads a column of images, and if it likes one of boxes that follow them, and others; writes as many."""

    arity: ClassVar[int | None] = None
    outputs: ClassVar[int | None] = None
    drops: ClassVar[bool] = False  # some boxes go

    @property
    def averages(self) -> bool:
        """Where it makes images smaller, each pixel is a mean of all that it stands for."""
        return False

    @abstractmethod
    def moves(self, sizes: Sizes, boxes: Sequence[Boxes] | None, draws: Draws | None) -> RowMoves:
        """How the images of a block move.

        Args:
            sizes: int64 (rows, 2): their heights and widths, at least 1.
            boxes: of each row, float32 (boxes, 4), if there is such a column.
            draws: of the rows, where it is random.
        """

    def shape(self, shape: tuple[int, int] | None) -> tuple[int, int] | None:
        """Height and width of every result for images of one size (None: they differ); None if results differ.

        By default the size stays.
        """
        return shape

    def result(self, *types: Any) -> ColumnType | tuple[ColumnType, ...]:
        kind, *beside = types
        channels, dtype = checked(self, kind)
        check_fill(self, channels, dtype)
        check_boxes(self, beside)
        shape = self.shape((kind.shape[0], kind.shape[1]) if isinstance(kind, TensorType) else None)
        if dtype is None:
            made: ColumnType = OBJECT if shape is None else UNKNOWN
        elif shape is None:
            made = ImageType(channels, dtype)
        elif channels is None:
            raise PipelineError(
                f"{type(self).__name__} makes one array of all images, and those have differing numbers of channels",
                fix="decode(mode='RGB'), or 'GRAY'",
            )
        else:
            made = TensorType((*shape, channels), dtype)
        if self.drops:
            beside = [thinned(other) for other in beside]
        return (made, *beside) if beside else made

    def like(self, sample: Callable[[], Column]) -> ColumnType | None:
        return None if self.shape(None) is None else likely(sample())

    def describe(self, draws: Draws, *columns: Any) -> list[dict[str, Any]]:
        from cedar.operators.image.sources import Arrays

        boxes = box_rows(columns[1])[0] if len(columns) > 1 else None
        return self.moves(Arrays(columns[0]).sizes, boxes, draws).describe()

    def columns(self, *columns: Any, **draws: Any) -> Column | tuple[Column, ...]:
        from cedar.operators.image.engine import alone

        return alone(self, columns, draws.get("draws"))


def pair(value: int | Sequence[int], parameter: str) -> tuple[int, int]:
    """Height and width, from both or from one number for both; ValueError for anything else."""
    both = (value, value) if isinstance(value, int | np.integer) else tuple_of(value)
    if len(both) != 2 or not all(isinstance(v, int | np.integer) and not isinstance(v, bool) and v > 0 for v in both):
        raise ValueError(f"{parameter} is {value!r}, not one or two integers above 0")
    return int(both[0]), int(both[1])


def tuple_of(value: Any) -> tuple[Any, ...]:
    """What an iterable holds; nothing for what is none, or a text."""
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else ()


def check_fill(transform: Any, channels: int | None, dtype: str | None) -> None:
    """Refuse images that the ``fill`` of a transform does not suit.

    Raises:
        PipelineError: it has a value for each of other channels, or values that the images cannot hold.
    """
    parameter = "value" if hasattr(transform, "value") else "fill"
    fill = (getattr(transform, parameter, None) or ()) if getattr(transform, "mode", "constant") == "constant" else ()
    name = f"{type(transform).__name__}({parameter}={fill})"
    if len(fill) > 1 and channels not in (None, len(fill)):
        raise PipelineError(
            f"{name} has {len(fill)} values, the images {channels} channel(s)",
            fix="give one value, or bring images to one number of channels first, say by decode(mode='RGB')",
        )
    if dtype == "uint8" and not all(0 <= value <= 255 for value in fill):
        raise PipelineError(f"{name}: images of uint8 hold 0 to 255", fix="fill behind to_float, or with such a value")


def check_share(name: str, parameter: str, value: float) -> None:
    """Refuse a probability outside 0 .. 1.

    Raises:
        PipelineError: at the user's line.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise PipelineError(f"{name}({parameter}={value!r}): a probability is between 0 and 1", site=user_site())


def check_range(
    name: str, parameter: str, value: Sequence[float], low: float, high: float = float("inf")
) -> tuple[float, float]:
    """The two ends of a range of numbers from ``low`` on, up to ``high``.

    Raises:
        PipelineError: they are no such range.
    """
    ends = tuple(value) if isinstance(value, Sequence) else ()
    bounds = f"from {low:g} on" if high == float("inf") else f"{low:g} .. {high:g}"
    if len(ends) != 2 or not all(isinstance(v, int | float) for v in ends) or not low <= ends[0] <= ends[1] <= high:
        raise PipelineError(
            f"{name}({parameter}={value!r}): two numbers, the smaller first, {bounds}", site=user_site()
        )
    return float(ends[0]), float(ends[1])


def drawn(draws: Draws | None) -> Draws:
    """The draws of a random operator.

    Raises:
        PipelineError: it was called without.
    """
    if draws is None:
        raise PipelineError("a random operator is called with draws=", site=user_site())
    return draws


def mark_spatial(transform: Transform) -> None:
    """Mark one instance as index-only, where others of its class are not."""
    mark(transform, "spatial")
