"""Columns of every kind that Arrow has, in every layout, and what a plain-Python reader makes of them.

``draw_column`` gives an Arrow array: of a random type, nested or not, of no rows, one or many, all null or none, a
slice of a larger array, in chunks. ``model`` gives its values as cedar promises them, and ``seen`` as a trainer does.
"""

from __future__ import annotations

import datetime as dt
import math
import random
import struct
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

NAMES = [
    "x", "a", "a.b", "", "a b", "Ünï✓", "new\nline", "n" * 300, "*", "^x.*$", "^a", 'quo"ted', "o'clock", "index",
    "key", "item", "values", "0", "__cedar_row", "positions", "segment_ids", "valid", "len", "literal", "predicate",
    "weight", "self", "name", "\t", ".", "..", "a.", "_", "#", "%s", "{x}", "nul\0l",
]  # fmt: skip
_TEXTS = ["", "a", "bee", "Öl", "a text that is longer than any view", "\0", "🙂", " ", "nan", "7"]
_ZONES = ["UTC", "Europe/Berlin", "+02:00", "-09:30", "America/New_York", "Etc/GMT+5"]
_RARE = 0.15  # of columns are of types that few have


class Shape:
    """Where nulls are: none, some, or all of the values."""

    def __init__(self, draw: random.Random) -> None:
        self.nulls = draw.choice([0.0, 0.0, 0.3, 0.3, 1.0])

    def of(self, draw: random.Random, values: list[Any]) -> list[Any]:
        return [None if draw.random() < self.nulls else value for value in values]


# ---- types -----------------------------------------------------------------------------------------------------------


def _ints(low: int, high: int) -> Callable[[random.Random], int]:
    return lambda draw: draw.choice([low, high, 0, 1, draw.randint(low, high), draw.randint(0, 9)])


def _float(draw: random.Random, form: str) -> float:
    value = draw.choice([0.0, -0.0, math.nan, math.inf, -math.inf, 1.5, -2.25, draw.uniform(-9, 9)])
    found: float = struct.unpack(form, struct.pack(form, value))[0]
    return found


def _digits(draw: random.Random, precision: int, scale: int) -> Decimal:
    digits = draw.randint(1, precision)
    return Decimal(draw.choice([0, 1, draw.randint(0, 10**digits - 1)]) * draw.choice([1, -1])).scaleb(-scale)


def _decimal(draw: random.Random) -> tuple[pa.DataType, Callable[[random.Random], Any]]:
    make, most = draw.choice([(pa.decimal32, 9), (pa.decimal64, 18), (pa.decimal128, 38), (pa.decimal256, 76)])
    precision = draw.randint(1, min(most, 70))
    scale = draw.choice([0, precision, draw.randint(0, precision), -draw.randint(1, 4)])
    kind = make(precision, scale)

    return (
        kind,
        lambda each: _digits(each, precision, scale).normalize() if scale < 0 else _digits(each, precision, scale),
    )


def _temporal(draw: random.Random) -> tuple[pa.DataType, Callable[[random.Random], Any]]:
    """As integers of the unit; of nanoseconds, whole microseconds: Python has no others."""
    unit = draw.choice(["s", "ms", "us", "ns"])
    thousand = 1000 if unit == "ns" else 1
    per = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]

    def within(seconds: int) -> Callable[[random.Random], int]:
        top = seconds * per // thousand
        return lambda each: each.choice([0, 1, -1, each.randint(-top, top)]) * thousand

    zone = draw.choice([None, None, *_ZONES])
    day = 86_400 * per // thousand
    times = pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
    return draw.choice(
        [
            (pa.date32(), lambda each: each.randint(-30_000, 30_000)),
            (pa.date64(), lambda each: each.randint(-30_000, 30_000) * 86_400_000),
            (times, lambda each: each.randint(0, day - 1) * thousand),
            (pa.timestamp(unit, zone), within(4_000_000_000)),
            (pa.duration(unit), within(4_000_000_000)),
        ]
    )


def _bytes(draw: random.Random) -> bytes:
    return draw.randbytes(draw.choice([0, 1, 5, 40]))


def _leaf(draw: random.Random) -> tuple[pa.DataType, Callable[[random.Random], Any]]:
    """A type that holds no others, and what draws a value of it."""
    kind = draw.randrange(11)
    if kind < 3:
        bits, signed = draw.choice([8, 16, 32, 64]), draw.random() < 0.6
        make = getattr(pa, f"{'' if signed else 'u'}int{bits}")
        return make(), _ints(-(2 ** (bits - 1)) if signed else 0, 2 ** (bits - signed) - 1)
    if kind == 3:
        make, form = draw.choice([(pa.float16, "e"), (pa.float32, "f"), (pa.float64, "d")])
        return make(), lambda each: _float(each, form)
    if kind == 4:
        return pa.bool_(), lambda each: each.random() < 0.5
    if kind == 5:
        return draw.choice([pa.string(), pa.large_string(), pa.string_view()]), lambda each: each.choice(_TEXTS)
    if kind == 6:
        return draw.choice([pa.binary(), pa.large_binary(), pa.binary_view()]), _bytes
    if kind == 7:
        width = draw.choice([0, 1, 4, 16])
        return pa.binary(width), lambda each: each.randbytes(width)
    if kind == 8:
        return _decimal(draw)
    if kind == 9:
        return pa.null(), lambda _: None
    return _temporal(draw)


def draw_array(draw: random.Random, rows: int, depth: int) -> pa.Array:
    """An array of ``rows`` rows whose values nest up to ``depth`` deep; not all layouts are of whole arrays."""
    before, after = (draw.randint(0, 3), draw.randint(0, 3)) if draw.random() < 0.5 else (0, 0)
    made = (
        _nested(draw, before + rows + after, depth)
        if depth and draw.random() < 0.7
        else _flat(draw, before + rows + after)
    )
    return made.slice(before, rows)


def _flat(draw: random.Random, rows: int) -> pa.Array:
    if draw.random() < _RARE:
        return _rare(draw, rows)
    kind, value = _leaf(draw)
    return _of(kind, Shape(draw).of(draw, [value(draw) for _ in range(rows)]))


def _of(kind: pa.DataType, values: list[Any]) -> pa.Array:
    if pt.is_temporal(kind):  # as integers: Python's own classes hold less
        width = pa.int64() if kind.bit_width == 64 else pa.int32()
        return pa.array(values, width).view(kind)
    if pt.is_decimal(kind) and kind.scale < 0:
        wide = pa.array(values, pa.decimal256(76, 0))
        return wide.cast(kind)
    return pa.array(values, kind)


def _rare(draw: random.Random, rows: int) -> pa.Array:
    """Extensions, and what neither polars nor Parquet has."""
    shape = Shape(draw)

    def storage(kind: pa.DataType, value: Callable[[], Any]) -> pa.Array:
        return pa.array(shape.of(draw, [value() for _ in range(rows)]), kind)

    match draw.randrange(7):
        case 0:
            return pa.ExtensionArray.from_storage(pa.uuid(), storage(pa.binary(16), lambda: draw.randbytes(16)))
        case 1:
            return pa.ExtensionArray.from_storage(pa.json_(), storage(pa.string(), lambda: draw.choice(["{}", "[1]"])))
        case 2:
            return pa.ExtensionArray.from_storage(pa.bool8(), storage(pa.int8(), lambda: draw.choice([0, 1, 1, 5])))
        case 3:
            whole = storage(pa.list_(pa.float32(), 4), lambda: [1.0, draw.random() // 0.1, 3.0, 4.0])
            return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float32(), [2, 2]), whole)
        case 4:
            kind = pa.opaque(pa.int64(), "kind", "vendor")
            return pa.ExtensionArray.from_storage(kind, storage(pa.int64(), lambda: draw.randint(0, 9)))
        case 5:
            values = shape.of(draw, [pa.MonthDayNano([draw.randint(0, 9), draw.randint(0, 9), 1]) for _ in range(rows)])
            return pa.array(values, pa.month_day_nano_interval())
        case _:
            return storage(pa.struct([]), dict)


def _nested(draw: random.Random, rows: int, depth: int) -> pa.Array:
    shape = Shape(draw)
    nulls = [draw.random() < shape.nulls for _ in range(rows)]
    mask = pa.array(nulls, pa.bool_()) if any(nulls) else None
    kind = draw.randrange(9)
    if kind <= 2:
        return _lists(draw, rows, depth, nulls)
    if kind == 3:
        size = draw.choice([0, 1, 2, 3])
        items = draw_array(draw, rows * size, depth - 1)
        if not size:
            return pa.array([None if null else [] for null in nulls], pa.list_(items.type, 0))
        return pa.FixedSizeListArray.from_arrays(items, size, mask=mask)
    if kind in (4, 5):
        names = draw.sample(["b", "a", "a.b", "", "Ü", "key"], draw.randint(1, 3))
        return pa.StructArray.from_arrays([draw_array(draw, rows, depth - 1) for _ in names], names=names, mask=mask)
    if kind == 6:
        lengths = [0 if null else draw.randint(0, 3) for null in nulls]
        keys = pa.array([draw.choice(_TEXTS) for _ in range(sum(lengths))])
        items = draw_array(draw, sum(lengths), depth - 1)
        return pa.MapArray.from_arrays(_offsets(lengths, nulls, pa.int32()), keys, items)
    count = max(rows, draw.randint(1, 5))
    held = draw_array(draw, count, depth - 1)
    if _extended(held.type):  # pyarrow cannot show such values in a dictionary or in runs: it ends the process
        return held[:rows]
    if kind == 7:
        index = draw.choice([pa.int8(), pa.uint8(), pa.int16(), pa.int32(), pa.int64()])
        places = [None if null else draw.randrange(count) for null in nulls]
        return pa.DictionaryArray.from_arrays(pa.array(places, index), held)
    ends = [*sorted(draw.sample(range(1, rows), min(draw.randint(0, 3), rows - 1))), rows] if rows else []
    width = draw.choice([pa.int16(), pa.int32(), pa.int64()])
    return pa.RunEndEncodedArray.from_arrays(pa.array(ends, width), held[: len(ends)])


def _extended(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType) or any(_extended(kind.field(i).type) for i in range(kind.num_fields))


def _lists(draw: random.Random, rows: int, depth: int, nulls: list[bool]) -> pa.Array:
    longest = draw.choice([0, 2, 4, 4])
    lengths = [draw.randint(0, longest) for _ in range(rows)]
    if draw.random() < 0.5:
        lengths = [0 if null else length for length, null in zip(lengths, nulls, strict=True)]
        items = draw_array(draw, sum(lengths), depth - 1)
        make, kind = draw.choice([(pa.ListArray, pa.int32()), (pa.LargeListArray, pa.int64())])
        return make.from_arrays(_offsets(lengths, nulls, kind), items)
    items = draw_array(draw, draw.randint(longest, 9), depth - 1)  # views may share items, and are in any order
    starts = [draw.randint(0, len(items) - length) for length in lengths]
    make, kind = draw.choice([(pa.ListViewArray, pa.int32()), (pa.LargeListViewArray, pa.int64())])
    mask = pa.array(nulls, pa.bool_()) if any(nulls) else None
    return make.from_arrays(pa.array(starts, kind), pa.array(lengths, kind), items, mask=mask)


def _offsets(lengths: list[int], nulls: list[bool], kind: pa.DataType) -> pa.Array:
    ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).tolist()
    return pa.array([None if null else end for end, null in zip(ends, [*nulls, False], strict=True)], kind)


def draw_column(draw: random.Random, rows: int, depth: int) -> Any:
    """``draw_array``, in one piece or in chunks."""
    array = draw_array(draw, rows, depth)
    if draw.random() < 0.6:
        return array
    cuts = sorted(draw.randint(0, rows) for _ in range(draw.randint(0, 3)))
    pieces = [array[start:stop] for start, stop in zip([0, *cuts], [*cuts, rows], strict=True)]
    return pa.chunked_array(pieces, array.type)


# ---- what is promised of them ----------------------------------------------------------------------------------------


def model(column: Any) -> list[Any]:
    """The values of a column as rows have them: maps are lists of entries, extensions what they store."""
    return [_value(value, column.type) for value in column.to_pylist()]


def _value(value: Any, kind: pa.DataType) -> Any:
    if isinstance(kind, pa.BaseExtensionType):
        if isinstance(value, uuid.UUID):
            return value.bytes
        return value if isinstance(kind, pa.Bool8Type) else _value(value, kind.storage_type)
    if value is None:
        return None
    if pt.is_dictionary(kind) or pt.is_run_end_encoded(kind):
        return _value(value, kind.value_type)
    if pt.is_struct(kind):
        return {field.name: _value(value[field.name], field.type) for field in kind}
    if pt.is_map(kind):
        return [{"key": _value(k, kind.key_type), "value": _value(v, kind.item_type)} for k, v in value]
    if isinstance(value, list):
        return [_value(item, kind.value_type) for item in value]
    return value


class Refused(Exception):
    """What is promised is an error: the values have no place in this format."""


def expected(values: Sequence[Any], kind: pa.DataType, format: str) -> list[Any]:
    """What a batch of ``values`` of the canonical type ``kind`` holds in a format, as plain values.

    Raises:
        Refused: the format has no place for them.
    """
    if format == "arrow":
        return list(values)
    nulls = any(value is None for value in values)
    if pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        if nulls:
            raise Refused(f"null lists in {format}")
        inside = expected([item for value in values for item in value], kind.value_type, format)
        ends = np.cumsum([0, *map(len, values)])
        return [inside[start:stop] for start, stop in pairwise(ends)]
    if pt.is_struct(kind):
        fields = {f.name: expected([None if v is None else v[f.name] for v in values], f.type, format) for f in kind}
        return [{name: field[row] for name, field in fields.items()} for row in range(len(values))]
    if pt.is_floating(kind) or pt.is_null(kind):
        return [math.nan if value is None else value for value in values]
    if (pt.is_integer(kind) or pt.is_boolean(kind)) and nulls:
        raise Refused(f"null {kind} in {format}")
    if format == "torch":
        if pt.is_decimal(kind) or pt.is_interval(kind):
            raise Refused(f"{kind} in torch")
        if pt.is_temporal(kind) and nulls:
            raise Refused("null times in torch")
    return list(values)


def seen(batch: Any, kind: pa.DataType, rows: int) -> list[Any]:
    """A column of a batch, in any format, as the plain values that ``expected`` gives."""
    if isinstance(batch, pa.Array | pa.ChunkedArray):
        batch.validate(full=True)
        return model(batch)
    if pt.is_struct(kind):
        fields = {f.name: seen(batch[f.name], f.type, rows) for f in kind}
        assert set(batch) == set(fields)
        return [{name: field[row] for name, field in fields.items()} for row in range(rows)]
    if pt.is_large_list(kind) or (pt.is_fixed_size_list(kind) and hasattr(batch, "offsets")):
        offsets = [int(end) for end in batch.offsets]
        inside = seen(batch.values, kind.value_type, offsets[-1])
        assert len(offsets) == rows + 1
        return [inside[start:stop] for start, stop in pairwise(offsets)]
    if pt.is_fixed_size_list(kind):
        assert batch.shape[:2] == (rows, kind.list_size), batch.shape
        inside = seen(batch.reshape(rows * kind.list_size, *batch.shape[2:]), kind.value_type, rows * kind.list_size)
        return [inside[row * kind.list_size : (row + 1) * kind.list_size] for row in range(rows)]
    assert len(batch) == rows, (len(batch), rows)
    if hasattr(batch, "numpy"):
        batch = batch.numpy()
    if pt.is_temporal(kind) and not pt.is_interval(kind) and isinstance(batch, np.ndarray):
        missing = np.isnat(batch) if batch.dtype.kind in "mM" else np.zeros(rows, dtype=bool)
        width = np.int64 if kind.bit_width == 64 else np.int32
        plain: list[Any] = pa.array(batch.astype(np.int64).astype(width), mask=missing).view(kind).to_pylist()
        return plain
    return batch.tolist() if isinstance(batch, np.ndarray) else list(batch)


def same(one: Any, other: Any) -> bool:
    """Equal values of one type; NaN equals NaN, and 0.0 differs from -0.0."""
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or (
            one == other and math.copysign(1, one) == math.copysign(1, other)
        )
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dt.datetime) and (one.tzinfo is None) != (other.tzinfo is None):
        return False
    return bool(one == other)
