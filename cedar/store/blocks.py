"""Blocks as the body of an entry.

Each block has an Arrow IPC stream of its columns, one of its keys, and two for each group of columns whose rows repeat
(the stored rows and the inverse). The entry's JSON has the positions of these streams and all data unsuited to Arrow.
Anyone who can write to the store can write invalid entries, so readers validate the JSON against the body. An entry
that does not match is treated as damaged, and its blocks are recomputed.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from cedar.core.block import Block, Skipped
from cedar.core.boundary import as_column
from cedar.core.columns import Column, TensorType, numbers, type_of
from cedar.core.cursor import Keys
from cedar.core.groups import GroupColumn, RowSharing
from cedar.core.packages import version_of
from cedar.store.entry import FORMAT, PAGE, Damaged, Entry, read_batch, write_batch

_KEY_PARTS = ("file", "sub", "repeat", "branch", "source")  # of the keys, besides ``row``
_NUMBERS = "biufcmMSU"  # dtype kinds for which any bytes are valid values


def versions() -> dict[str, str]:
    """Return the versions that affect the bytes of an entry and the results of operators."""
    packages = {name: version_of(name) for name in ("cedar", "pyarrow", "numpy", "polars")}
    return {"format": str(FORMAT), "python": version_of("sys"), **packages, **_decoders()}


@functools.cache
def _decoders() -> dict[str, str]:
    """Return the versions of installed image and sound decoders, since results may differ between versions."""
    import importlib.metadata

    found = {}
    for name in ("pillow", "simplejpeg", "imagecodecs", "soxr", "miniaudio", "soundfile"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def storable(blocks: Sequence[Block]) -> str:
    """Return why the blocks cannot be written; empty if they can."""
    for block in blocks:
        if not block.aligned:
            return "its batches have no row keys"
        for name, column in block.columns.items():
            if isinstance(column, np.ndarray) and (column.dtype.hasobject or column.dtype.kind == "V"):
                return f"column {name!r} holds Python objects"
    return ""


def relabeled(blocks: list[Block], source: int, lap: int) -> list[Block]:
    """Return the blocks with the source and repetition in the row keys set to ``source`` and ``lap``."""
    return [Block(b.columns, replace(b.keys, repeat=lap, source=source), b.dead, b.aligned) for b in blocks]


# ---- writing ---------------------------------------------------------------------------------------------------------


def write_body(blocks: Sequence[Block], sink: Any, ordinals: Sequence[int]) -> dict[str, Any]:
    """Write the Arrow parts to ``sink``, and return their description.

    Args:
        blocks: blocks that are ``storable``.
        sink: a pyarrow output stream at its beginning.
        ordinals: the cached operators. An entry stores indices into this list, so that other pipelines can use it.
    """
    places = {ordinal: place for place, ordinal in enumerate(ordinals)}
    described = []
    for block in blocks:
        arrays, tensors = _as_arrays(block)
        parts = {name: getattr(block.keys, name) for name in _KEY_PARTS}
        constant = {name: part for name, part in parts.items() if isinstance(part, int)}
        keys = {name: pa.array(part) for name, part in parts.items() if name not in constant}
        dead = [
            [slot, places.get(w.operator, -1), w.label, w.error, w.refill, w.lost] for slot, w in block.dead.items()
        ]
        described.append({
            "rows": len(block), "slots": block.slots, "names": list(block.columns), "tensors": tensors,
            "constant": constant, "dead": dead, "columns": _write(sink, arrays),
            "keys": _write(sink, {"row": pa.array(block.keys.row), **keys}), "groups": _write_groups(sink, block),
        })  # fmt: skip
    return {"blocks": described}


def _write(sink: Any, arrays: dict[str, pa.Array]) -> list[int] | None:
    if not arrays:
        return None
    return write_batch(sink, pa.RecordBatch.from_arrays(list(arrays.values()), list(arrays)))


def _as_arrays(block: Block) -> tuple[dict[str, pa.Array], dict[str, Any]]:
    """Return one Arrow array per column (nulls for a GroupColumn), and the shapes and dtypes of ndarrays."""
    arrays: dict[str, pa.Array] = {}
    tensors: dict[str, Any] = {}
    for number, (name, column) in enumerate(block.columns.items()):
        if not isinstance(column, np.ndarray):
            arrays[str(number)] = column if isinstance(column, pa.Array) else pa.nulls(len(column))
            continue
        kind = type_of(column)
        assert isinstance(kind, TensorType)
        tensors[name] = [list(kind.shape), column.dtype.str]
        width = column.dtype.itemsize * int(np.prod(kind.shape, dtype=np.int64))
        if not width or not len(column):
            arrays[str(number)] = pa.nulls(len(column))
            continue
        buffers = [None, pa.py_buffer(np.ascontiguousarray(column).reshape(-1).view(np.uint8))]
        arrays[str(number)] = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(column), buffers)
    return arrays, tensors


def _write_groups(sink: Any, block: Block) -> list[dict[str, Any]]:
    sharing: dict[int, dict[str, GroupColumn]] = {}
    for name, column in block.columns.items():
        if isinstance(column, GroupColumn):
            sharing.setdefault(id(column.sharing), {})[name] = column.narrow()
    described = []
    for group in sharing.values():
        one = next(iter(group.values())).sharing
        described.append({
            "names": list(group), "fresh": [column.fresh for column in group.values()], "together": one.together,
            "held": one.stored_rows, "values": _write(sink, {str(i): c.values for i, c in enumerate(group.values())}),
            "inverse": _write(sink, {"inverse": pa.array(one.inverse)}),
        })  # fmt: skip
    return described


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_blocks(entry: Entry, ordinals: Sequence[int]) -> list[Block]:
    """Return the blocks of an entry without a copy: their arrays are views of its body.

    Args:
        entry: the entry; if its bytes are writable, so are the ndarrays.
        ordinals: the cached operators, in the same order as when the entry was written.

    Raises:
        Damaged: the contents do not match the description.
    """
    try:
        return [_block(entry.body, one, ordinals) for one in _typed(entry.about["blocks"], list)]
    except Exception as error:
        raise Damaged(f"it cannot be decoded: {type(error).__name__}: {' '.join(str(error).split())[:200]}") from error


def _block(body: memoryview, one: Any, ordinals: Sequence[int]) -> Block:
    names = [_typed(name, str) for name in _typed(_typed(one, dict)["names"], list)]
    slots, rows, tensors = _count(one["slots"]), _count(one["rows"]), _typed(one["tensors"], dict)
    keys = _keys(_read(body, one["keys"]), _typed(one["constant"], dict), slots)
    arrays = list(_read(body, one["columns"]).values())
    _require(len(arrays) == len(names) == len(set(names)) and tensors.keys() <= set(names), "other columns than names")
    _require(all(len(array) == rows for array in arrays), "columns of other lengths")
    columns: dict[str, Column] = {}
    for name, array in zip(names, arrays, strict=True):
        if name in tensors:
            columns[name] = _tensor(array, body, *_pair(tensors[name]))
        else:
            columns[name] = as_column(array)
            _require(isinstance(columns[name], pa.Array) and columns[name].type == array.type, f"type {array.type}")
    groups: dict[str, GroupColumn] = {}
    for group in _typed(one["groups"], list):
        groups |= _read_group(body, group, rows)
    _require(groups.keys() <= columns.keys(), "groups of other names")
    dead = _skipped_slots(_typed(one["dead"], list), slots, ordinals)
    _require(rows + len(dead) == slots or not columns, "rows and skipped rows are not all")
    return Block(columns | groups, keys, dead)


def _read(body: memoryview, place: Any) -> dict[str, pa.Array]:
    """Return the arrays of one Arrow stream by name."""
    if place is None:
        return {}
    start, end = _pair(place)
    _require(0 <= _typed(start, int) <= _typed(end, int) <= len(body) and start % PAGE == 0, "a part is outside")
    batch = read_batch(pa.py_buffer(body).slice(start, end - start))
    _require(len(set(batch.schema.names)) == len(batch.schema.names), "two parts have one name")
    return dict(zip(batch.schema.names, batch.columns, strict=True))


def _keys(parts: dict[str, Any], constant: dict[str, Any], slots: int) -> Keys:
    every = {"row", *_KEY_PARTS}
    _require({*parts, *constant} == every and not parts.keys() & constant.keys(), "keys of other parts")
    for name, part in parts.items():
        _require(part.type == pa.int64() and len(part) == slots and not part.null_count, f"keys {name!r}")
    for name, value in constant.items():
        _require(type(value) is int and -(2**63) <= value < 2**63, f"key {name!r}")
    return Keys(**{name: part.to_numpy() for name, part in parts.items()}, **constant)


def _skipped_slots(given: list[Any], slots: int, ordinals: Sequence[int]) -> dict[int, Skipped]:
    dead = {}
    for each in given:
        slot, place, label, error, refill, lost = _typed(each, list)
        _require(_count(slot) < slots and slot not in dead and -1 <= _typed(place, int) < len(ordinals), "skipped rows")
        operator = ordinals[place] if place >= 0 else place
        rows = tuple(_typed(number, int) for number in _typed(lost, list))
        _require(len(rows) in (0, 2), "skipped files")
        dead[slot] = Skipped(operator, _typed(label, str), _typed(error, str), _typed(refill, bool), rows)
    return dead


def _tensor(array: pa.Array, body: memoryview, shape: Any, dtype: Any) -> Any:
    kind = np.dtype(_typed(dtype, str))
    shape = [_count(side) for side in _typed(shape, list)]
    _require(kind.kind in _NUMBERS and not kind.hasobject and kind.fields is None, f"an array of {kind}")
    width = kind.itemsize
    for side in shape:
        width *= side
    if pa.types.is_null(array.type):
        _require(not width or not len(array), "an array without its values")
        return np.zeros((len(array), *shape), dtype=kind)
    _require(pa.types.is_fixed_size_binary(array.type) and array.type.byte_width == width, "an array of another width")
    start = array.buffers()[1].address - pa.py_buffer(body).address + array.offset * width
    flat = np.frombuffer(body, np.uint8, len(array) * width, start)  # writable if ``body`` is
    return flat.view(kind).reshape(len(array), *shape)


def _read_group(body: memoryview, one: Any, rows: int) -> dict[str, GroupColumn]:
    """Return the columns of a group by name. They share one inverse, as when they were written."""
    inverse, values = _read(body, one["inverse"])["inverse"], list(_read(body, one["values"]).values())
    names, fresh, stored, together = one["names"], one["fresh"], one["held"], one["together"]
    valid = (
        inverse.type == pa.int32()
        and not inverse.null_count
        and len(inverse) == rows
        and type(stored) is type(together) is int
        and all(type(name) is str for name in names)
        and all(type(each) is bool for each in fresh)
        and all(len(each) == stored and as_column(each).type == each.type for each in values)
    )
    places = numbers(inverse)
    if not valid or (rows and not 0 <= places.min() <= places.max() < stored) or not 0 <= together <= len(values):
        raise ValueError("a group with invalid rows")
    sharing = RowSharing(places, stored, together, rows)
    columns = zip(names, values, fresh, strict=True)
    return {name: GroupColumn(array, sharing, is_fresh) for name, array, is_fresh in columns}


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


def _pair(value: Any) -> tuple[Any, Any]:
    first, second = _typed(value, list)
    return first, second
