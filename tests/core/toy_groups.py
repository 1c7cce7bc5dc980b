"""Columns of lists whose rows repeat, and the rows that a dict tells apart."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

_NAN = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000001))[0]  # of other bits than float("nan")


_ITEMS = {
    "int64": (pa.int64(), st.integers(-2, 2)),
    "float": (pa.float64(), st.sampled_from([0.0, -0.0, 1.5, float("nan"), _NAN])),
    "half": (pa.float16(), st.sampled_from([np.float16(0), np.float16(1), np.float16("nan")])),
    "bool": (pa.bool_(), st.booleans()),
    "text": (pa.large_string(), st.sampled_from(["", "a", "aa"])),
    "small": (pa.int8(), st.integers(-1, 1)),
    "nested": (pa.large_list(pa.int32()), st.lists(st.integers(0, 1), max_size=2)),
    "struct": (pa.struct([("id", pa.int64()), ("w", pa.float32())]),
               st.fixed_dictionaries({"id": st.integers(0, 1), "w": st.sampled_from([0.0, 1.0])})),
}  # fmt: skip


def bits(value):
    """What two values have in common that are the same: floats by their bits."""
    if isinstance(value, list):
        return tuple(map(bits, value))
    if isinstance(value, dict):
        return tuple((name, bits(inner)) for name, inner in value.items())
    if isinstance(value, float | np.floating):
        return ("float", struct.pack("<d", value) if isinstance(value, float) else value.tobytes())
    return (type(value).__name__, value)


def bits_of(array):
    """The rows of an array by their bits; pyarrow alone would turn one NaN into another."""
    kind = array.type
    if pa.types.is_floating(kind):
        width = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[kind.bit_width]
        return [None if v is None else ("float", v) for v in array.view(width).to_pylist()]
    if pa.types.is_large_list(kind):
        inner = bits_of(array.values)
        bounds = array.offsets.to_pylist()
        there = array.is_valid().to_pylist()
        return [tuple(inner[bounds[i] : bounds[i + 1]]) if there[i] else None for i in range(len(array))]
    return [bits(v) for v in array.to_pylist()]


@st.composite
def arrays(draw, rows, kinds=tuple(_ITEMS)):
    kind, items = _ITEMS[draw(st.sampled_from(kinds))]
    nulls = draw(st.booleans())
    item = items | st.none() if nulls and draw(st.booleans()) else items
    some = draw(st.lists(st.lists(item, max_size=3), min_size=1, max_size=4))
    pool = [*some, None] if nulls else some
    values = [pool[i % len(pool)] for i in draw(st.lists(st.integers(0, 99), min_size=rows + 1, max_size=rows + 1))]
    return pa.array(values, pa.large_list(kind)).slice(1)  # an offset, as slices of blocks have


@st.composite
def tables(draw, columns=3, kinds=tuple(_ITEMS), most=12):
    rows = draw(st.integers(0, most))
    return {name: draw(arrays(rows, kinds)) for name in "abc"[: draw(st.integers(1, columns))]}


def model(table):
    """(inverse, first rows): a dict of what was seen, row by row."""
    seen, inverse, first = {}, [], []
    for i, row in enumerate(zip(*(bits_of(a) for a in table.values()), strict=True)):
        if row not in seen:
            seen[row] = len(first)
            first.append(i)
        inverse.append(seen[row])
    return inverse, first


def lists(*rows):
    return pa.array(rows, pa.large_list(pa.int64()))
