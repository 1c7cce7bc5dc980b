"""The base class of spatial operators, which describe the moves of each image; boxes move in the same way."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from cedar.core.columns import OBJECT, UNKNOWN, Column, ColumnType, TensorType
from cedar.core.errors import PipelineError, invalid_call
from cedar.operators.algebra import mark
from cedar.operators.draws import Draws
from cedar.operators.image.base import ImageTransform
from cedar.operators.image.boxes import Boxes, check_boxes, parse_boxes, type_after_removal
from cedar.operators.image.layout import ImageType, Sizes, check_images, most_frequent_type
from cedar.operators.image.moves import RowMoves
from cedar.operators.transform import Transform


class Spatial(ImageTransform):
    """Base class: reads and writes an image column, and optionally columns of boxes and of one entry per box."""

    arity: ClassVar[int | None] = None
    outputs: ClassVar[int | None] = None
    drops: ClassVar[bool] = False  # whether the operator may drop boxes

    @property
    def averages(self) -> bool:
        """Whether shrinking averages all source pixels that an output pixel covers."""
        return False

    @abstractmethod
    def moves(self, sizes: Sizes, boxes: Sequence[Boxes] | None, draws: Draws | None) -> RowMoves:
        """Return the moves of the images of a block.

        Args:
            sizes: int64 (rows, 2): heights and widths of the images, at least 1.
            boxes: the boxes of each row, float32 (boxes, 4); None without a column of boxes.
            draws: the random draws of the rows; None if the operator is not random.
        """

    def shape(self, shape: tuple[int, int] | None) -> tuple[int, int] | None:
        """Return the height and width of all results, or None if these differ. By default, sizes do not change.

        ``shape`` is the height and width of all images, or None if these differ.
        """
        return shape

    def result(self, *types: Any) -> ColumnType | tuple[ColumnType, ...]:
        kind, *others = types
        channels, dtype = check_images(self, kind)
        check_fill(self, channels, dtype)
        check_boxes(self, others)
        shape = self.shape((kind.shape[0], kind.shape[1]) if isinstance(kind, TensorType) else None)
        if dtype is None:
            result_type: ColumnType = OBJECT if shape is None else UNKNOWN
        elif shape is None:
            result_type = ImageType(channels, dtype)
        elif channels is None:
            raise PipelineError(
                f"{type(self).__name__} makes one array of all images, but their numbers of channels differ",
                fix="use decode(mode='RGB') or decode(mode='GRAY')",
            )
        else:
            result_type = TensorType((*shape, channels), dtype)
        if self.drops:
            others = [type_after_removal(other) for other in others]
        return (result_type, *others) if others else result_type

    def like(self, sample: Callable[[], Column]) -> ColumnType | None:
        return None if self.shape(None) is None else most_frequent_type(sample())

    def describe(self, draws: Draws, *columns: Any) -> list[dict[str, Any]]:
        from cedar.operators.image.sources import Arrays

        boxes = parse_boxes(columns[1])[0] if len(columns) > 1 else None
        return self.moves(Arrays(columns[0]).sizes, boxes, draws).describe()

    def columns(self, *columns: Any, **draws: Any) -> Column | tuple[Column, ...]:
        from cedar.operators.image.engine import run_one

        return run_one(self, columns, draws.get("draws"))


class FixedSize(Spatial):
    """Base class of operators whose results all have the same height and width."""

    size: int | tuple[int, int]

    def set_size(self, name: str) -> None:
        """Set ``size`` to (height, width); ``name`` is the operator's name for the error."""
        try:
            object.__setattr__(self, "size", pair(self.size, "size"))
        except (TypeError, ValueError) as error:
            raise invalid_call(f"{name}: {error}") from None

    def shape(self, shape: tuple[int, int] | None) -> tuple[int, int]:
        del shape
        height, width = self.size  # type: ignore[misc]
        return height, width


def pair(value: int | Sequence[int], parameter: str) -> tuple[int, int]:
    """Return (height, width), which may be given as a single number; raise ValueError for other values."""
    both = (value, value) if isinstance(value, int | np.integer) else tuple_of(value)
    if len(both) != 2 or not all(isinstance(v, int | np.integer) and not isinstance(v, bool) and v > 0 for v in both):
        raise ValueError(f"{parameter} is {value!r}, not one or two integers above 0")
    return int(both[0]), int(both[1])


def tuple_of(value: Any) -> tuple[Any, ...]:
    """Return the items of an iterable; an empty tuple for strings and for values that are not iterable."""
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else ()


def check_fill(transform: Any, channels: int | None, dtype: str | None) -> None:
    """Check that the ``fill`` of a transform matches the images.

    Raises:
        PipelineError: ``fill`` has another number of channels, or values that the dtype cannot represent.
    """
    parameter = "value" if hasattr(transform, "value") else "fill"
    fill = (getattr(transform, parameter, None) or ()) if getattr(transform, "mode", "constant") == "constant" else ()
    name = f"{type(transform).__name__}({parameter}={fill})"
    if len(fill) > 1 and channels not in (None, len(fill)):
        raise PipelineError(
            f"{name} has {len(fill)} values, the images {channels} channel(s)",
            fix="give one value, or convert images to one number of channels first, for example by decode(mode='RGB')",
        )
    if dtype == "uint8" and not all(0 <= value <= 255 for value in fill):
        raise PipelineError(
            f"{name}: uint8 images hold values from 0 to 255", fix="use such a value, or fill after to_float"
        )


def check_probability(name: str, parameter: str, value: float) -> None:
    """Check that a value is a number from 0 to 1.

    Raises:
        PipelineError: the check fails; the error names the user's line.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise invalid_call(f"{name}({parameter}={value!r}): must be a probability from 0 to 1")


def check_range(
    name: str, parameter: str, value: Sequence[float], low: float, high: float = float("inf")
) -> tuple[float, float]:
    """Check that a range (min, max) is within ``low`` to ``high``, and return it.

    Raises:
        PipelineError: the value is not such a range.
    """
    ends = tuple(value) if isinstance(value, Sequence) else ()
    bounds = f"at least {low:g}" if high == float("inf") else f"{low:g} .. {high:g}"
    if len(ends) != 2 or not all(isinstance(v, int | float) for v in ends) or not low <= ends[0] <= ends[1] <= high:
        raise invalid_call(f"{name}({parameter}={value!r}): must be (min, max), {bounds}")
    return float(ends[0]), float(ends[1])


def require_draws(draws: Draws | None) -> Draws:
    """Check that a random operator was called with draws, and return them.

    Raises:
        PipelineError: the operator was called without draws.
    """
    if draws is None:
        raise invalid_call("a random operator must be called with draws=")
    return draws


def mark_spatial(transform: Transform) -> None:
    """Mark this instance as spatial (it only selects and moves pixels); other instances of its class may not be."""
    mark(transform, "spatial")
