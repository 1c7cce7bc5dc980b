"""Convert columns of boxes, and of lists with one entry per box (such as labels), to one array per row and back.

A box has four coordinates in pixels: (left, top, right, bottom). A column of boxes is an object column of arrays of
shape (boxes, 4), or an Arrow column of lists of lists of four numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cedar.core.columns import OBJECT, Column, ColumnType, ObjectType, TensorType, from_numbers, numbers, objects
from cedar.operators.image.layout import ImageType, PlanarType
from cedar.operators.transform import Transform

Boxes: TypeAlias = npt.NDArray[np.float32]
Mask: TypeAlias = npt.NDArray[np.bool_]

MASKS_FIX = (
    'give masks their own map, of the same name= as the images: .map(image.horizontal_flip(), "mask", name="flip")'
)


def check_boxes(transform: Transform, kinds: Sequence[ColumnType], *, moves: bool = True) -> None:
    """Check the types of columns: the first must have boxes, the others lists with one entry per box.

    Args:
        moves: whether the transform moves boxes; if so, entries such as masks or polygons would stay where they are.

    Raises:
        PipelineError: a column has another type; the error names the first such column.
    """
    for i, kind in enumerate(kinds):
        if isinstance(kind, ImageType | PlanarType) or (isinstance(kind, TensorType) and not i and len(kind.shape) > 2):
            raise transform.unfit(kind, "boxes or entries per box after the images", MASKS_FIX)
        if i and moves and _dimensions(kind) > 2:
            raise transform.unfit(kind, "entries that do not move with their boxes, such as labels", MASKS_FIX)
        if isinstance(kind, ObjectType) or (i and isinstance(kind, TensorType) and kind.shape):
            continue
        if i == 0 and not _is_boxes(kind):
            wants = "boxes: lists of four floats per box, or arrays of shape (boxes, 4)"
            integers = "int" in str(kind) and _dimensions(kind) == 2
            raise transform.unfit(kind, wants, *([_floats_fix(kind)] if integers else []))
        if i and not (isinstance(kind, pa.DataType) and pa.types.is_large_list(kind)):
            raise transform.unfit(kind, "lists with one entry per box")


def _dimensions(kind: Any) -> int:
    """Return the dimensions of a row's value, if the type of its column determines them."""
    if isinstance(kind, TensorType):
        return len(kind.shape)
    lists = isinstance(kind, pa.DataType) and (pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
    return 1 + _dimensions(kind.value_type) if lists else 0


def _floats_fix(kind: ColumnType) -> str:
    if isinstance(kind, TensorType):
        return 'convert them to floats: .map(lambda boxes: boxes.astype("float32"), "boxes")'
    return 'convert them to floats: .map(lambda boxes: boxes, "boxes", dtype=list[list[float]])'


def find_unmoved(column: Column) -> dict[int, str]:
    """Return the rows of an object column whose entries per box are arrays: these would not move with their boxes."""
    bad = {}
    for row, value in enumerate(column if isinstance(column, np.ndarray) and column.dtype == object else ()):
        entry = value[0] if isinstance(value, np.ndarray | list | tuple) and len(value) else None
        if isinstance(entry, np.ndarray) and entry.ndim > 1:
            bad[row] = f"an array of shape {entry.shape} for each box, which does not move with the box"
    return bad


def _is_boxes(kind: Any) -> bool:
    if isinstance(kind, TensorType):
        return len(kind.shape) == 2 and kind.shape[1] == 4 and kind.dtype in ("float32", "float64")
    if not isinstance(kind, pa.DataType) or not pa.types.is_large_list(kind):
        return False
    four = kind.value_type
    if pa.types.is_fixed_size_list(four):
        return four.list_size == 4 and _is_number(four.value_type)
    return pa.types.is_large_list(four) and _is_number(four.value_type)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_float32(kind) or pa.types.is_float64(kind))


def type_after_removal(kind: ColumnType) -> ColumnType:
    """Return the type of a column of boxes or of entries per box after some boxes are removed."""
    return OBJECT if isinstance(kind, TensorType) else kind


def parse_boxes(column: Column) -> tuple[list[Boxes], dict[int, str]]:
    """Return the boxes of each row, float32 (boxes, 4), and the reasons of rows whose boxes are invalid."""
    values = column.to_pylist() if isinstance(column, pa.Array) else column
    rows, bad = [], {}
    for i, value in enumerate(values):
        boxes, why = _parse_row(value)
        rows.append(boxes)
        if why:
            bad[i] = why
    return rows, bad


def _parse_row(value: Any) -> tuple[Boxes, str]:
    none = np.zeros((0, 4), dtype=np.float32)
    if value is None:
        return none, "boxes are null; use an empty list for an image without boxes"
    try:
        array = np.asarray(value, dtype=np.float32)
    except (TypeError, ValueError) as error:
        return none, f"boxes that are not numbers: {error}"
    if array.size == 0:
        return none, ""
    if array.ndim != 2 or array.shape[1] != 4:
        return none, f"boxes of shape {array.shape}, not (boxes, 4)"
    return array, "" if np.isfinite(array).all() else "a box is not finite"


def boxes_to_column(rows: Sequence[Boxes], like: ColumnType) -> Column:
    """Convert boxes to a column of the type ``like``."""
    if isinstance(like, TensorType):
        return np.stack(rows).astype(like.dtype) if len(rows) else np.zeros((0, *like.shape), dtype=like.dtype)
    if not isinstance(like, pa.DataType):
        return objects(rows)
    offsets = from_numbers(_offsets([len(r) for r in rows]))
    flat = np.concatenate([np.zeros((0, 4), dtype=np.float32), *rows]).reshape(-1)
    four = like.value_type
    entries = from_numbers(flat, pa.float32()).cast(four.value_type, safe=False)
    if pa.types.is_fixed_size_list(four):
        inner = pa.FixedSizeListArray.from_arrays(entries, 4)
    else:
        inner = pa.LargeListArray.from_arrays(from_numbers(np.arange(0, len(flat) + 1, 4)), entries)
    return pa.LargeListArray.from_arrays(offsets, inner).cast(like)


def _offsets(counts: Sequence[int]) -> npt.NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)


def keep_entries(column: Column, kept: Sequence[Mask | None]) -> tuple[Column, dict[int, str]]:
    """Remove the entries of dropped boxes from a column; also return the rows with other numbers of entries than boxes.

    Args:
        kept: for each row, a mask of the boxes to keep; None keeps all boxes.
    """
    lists = _keep_list_entries(column, kept)
    if lists is not None:
        return lists, {}
    values = column.to_pylist() if isinstance(column, pa.Array) else column
    rows, bad = [], {}
    for i, (value, mask) in enumerate(zip(values, kept, strict=True)):
        if mask is None:
            rows.append(value)
        elif value is None or np.ndim(value) == 0 or len(value) != len(mask):
            rows.append(value)
            entries = "no" if value is None else "one" if np.ndim(value) == 0 else len(value)
            bad[i] = f"{entries} entries for {len(mask)} boxes"
        else:
            kept_here = value[mask] if isinstance(value, np.ndarray) else list(compress(value, mask))
            rows.append(kept_here)
    return (pa.array(rows, column.type) if isinstance(column, pa.Array) else objects(rows)), bad


def _keep_list_entries(column: Column, kept: Sequence[Mask | None]) -> pa.Array | None:
    """Remove entries from a column of Arrow lists; return None for other types, or if a row's length does not match."""
    if not (isinstance(column, pa.Array) and pa.types.is_large_list(column.type)) or column.null_count:
        return None
    ends = numbers(column.offsets) if len(column) else np.zeros(1, dtype=np.int64)
    counts = np.diff(ends)
    if any(mask is not None and len(mask) != count for mask, count in zip(kept, counts.tolist(), strict=True)):
        return None
    masks = [np.ones(count, bool) if mask is None else mask for mask, count in zip(kept, counts.tolist(), strict=True)]
    mask_of_all = np.concatenate([np.zeros(0, bool), *masks])
    offsets = np.concatenate([[0], np.cumsum(mask_of_all, dtype=np.int64)])[ends - ends[0]]
    values = column.values.slice(int(ends[0]), len(mask_of_all)).take(from_numbers(np.flatnonzero(mask_of_all)))
    return pa.LargeListArray.from_arrays(from_numbers(offsets), values, type=column.type)
