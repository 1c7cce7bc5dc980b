"""Reads cache entries. Anyone who can write to the store can write invalid entries, so an entry's description is
validated against its body. An entry that does not match is treated as damaged, and its blocks are recomputed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from cedar.cache.entries import CONSTANT
from cedar.cache.group_columns import read_groups
from cedar.core.block import Block, Skipped
from cedar.core.boundary import as_column
from cedar.core.cursor import Keys
from cedar.store.arrow import PAGE, read_batch
from cedar.store.entry import Damaged, Entry

_NUMBERS = "biufcmMSU"  # dtype kinds for which any bytes are valid values


def read_blocks(entry: Entry, ordinals: Sequence[int]) -> list[Block]:
    """Return the blocks of an entry without a copy: their arrays are views of its body.

    Args:
        entry: the entry; if its bytes are writable, so are the ndarrays.
        ordinals: the cached operators, in the same order as when the entry was written.

    Raises:
        Damaged: the contents do not match the description.
    """
    buffer = pa.py_buffer(entry.body)
    try:
        return [_block(buffer, entry.body, one, ordinals) for one in _typed(entry.about["blocks"], list)]
    except Exception as error:
        raise Damaged(f"it cannot be decoded: {type(error).__name__}: {' '.join(str(error).split())[:200]}") from error


def _block(buffer: pa.Buffer, view: memoryview, one: Any, ordinals: Sequence[int]) -> Block:
    _typed(one, dict)
    arrays, names = _read(buffer, len(view), one["columns"]), [_typed(name, str) for name in _typed(one["names"], list)]
    slots, rows, tensors = _count(one["slots"]), _count(one["rows"]), _typed(one["tensors"], dict)
    keys = _keys(_named(_read(buffer, len(view), one["keys"])), _typed(one["constant"], dict), slots)
    arrays = [] if arrays is None else arrays.columns
    _require(len(arrays) == len(names) == len(set(names)) and tensors.keys() <= set(names), "other columns than names")
    _require(all(len(array) == rows for array in arrays), "columns of other lengths")
    columns = {
        name: _tensor(array, buffer.address, view, *_pair(tensors[name])) if name in tensors else _column(array)
        for name, array in zip(names, arrays, strict=True)
    }
    groups = read_groups(_typed(one["groups"], list), lambda place: _named(_read(buffer, len(view), place)), rows)
    _require(groups.keys() <= columns.keys(), "groups of other names")
    dead = _skipped_slots(_typed(one["dead"], list), slots, ordinals)
    _require(rows + len(dead) == slots or not columns, "rows and skipped rows are not all")
    return Block(columns | groups, keys, dead)


def _read(buffer: pa.Buffer, size: int, place: Any) -> pa.RecordBatch | None:
    if place is None:
        return None
    start, end = _pair(place)
    _require(0 <= _typed(start, int) <= _typed(end, int) <= size and start % PAGE == 0, "a part is outside")
    return read_batch(buffer.slice(start, end - start))


def _named(batch: pa.RecordBatch | None) -> dict[str, Any]:
    if batch is None:
        return {}
    _require(len(set(batch.schema.names)) == len(batch.schema.names), "two parts have one name")
    return dict(zip(batch.schema.names, batch.columns, strict=True))


def _column(array: pa.Array) -> Any:
    made = as_column(array)
    _require(isinstance(made, pa.Array) and made.type == array.type, f"a column of type {array.type}")
    return made


def _keys(parts: dict[str, Any], constant: dict[str, Any], slots: int) -> Keys:
    _require({*parts, *constant} == {"row", *CONSTANT} and not parts.keys() & constant.keys(), "keys of other parts")
    for name, part in parts.items():
        _require(part.type == pa.int64() and len(part) == slots and not part.null_count, f"keys {name!r}")
    for name, value in constant.items():
        _require(type(value) is int and -(2**63) <= value < 2**63, f"key {name!r}")
    return Keys(**{name: part.to_numpy() for name, part in parts.items()}, **constant)


def _skipped_slots(given: list[Any], slots: int, ordinals: Sequence[int]) -> dict[int, Skipped]:
    dead = {}
    for slot, place, label, error, refill, lost in map(_list, given):
        _require(_count(slot) < slots and slot not in dead and -1 <= _typed(place, int) < len(ordinals), "skipped rows")
        operator = ordinals[place] if place >= 0 else place
        rows = tuple(_typed(number, int) for number in _list(lost))
        _require(len(rows) in (0, 2), "skipped files")
        dead[slot] = Skipped(operator, _typed(label, str), _typed(error, str), _typed(refill, bool), rows)
    return dead


def _tensor(array: pa.Array, base: int, view: memoryview, shape: Any, dtype: Any) -> Any:
    kind = np.dtype(_typed(dtype, str))
    shape = [_count(side) for side in _list(shape)]
    _require(kind.kind in _NUMBERS and not kind.hasobject and kind.fields is None, f"an array of {kind}")
    width = kind.itemsize
    for side in shape:
        width *= side
    if pa.types.is_null(array.type):
        _require(not width or not len(array), "an array without its values")
        return np.zeros((len(array), *shape), dtype=kind)
    _require(pa.types.is_fixed_size_binary(array.type) and array.type.byte_width == width, "an array of another width")
    start = array.buffers()[1].address - base + array.offset * width  # the array is writable if ``view`` is
    flat = np.frombuffer(view, np.uint8, len(array) * width, start)
    return flat.view(kind).reshape(len(array), *shape)


# ---- checks of an entry's description --------------------------------------------------------------------------------


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise ValueError(problem)


def _typed(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{kind.__name__} expected, not {type(value).__name__}")
    return value


def _count(value: Any) -> int:
    _require(_typed(value, int) >= 0, "a negative count")
    return int(value)


def _list(value: Any) -> list[Any]:
    items: list[Any] = _typed(value, list)
    return items


def _pair(value: Any) -> tuple[Any, Any]:
    _require(len(_list(value)) == 2, "a pair expected")
    return value[0], value[1]
