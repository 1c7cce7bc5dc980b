"""Random blocks of every kind of column, keys and dead slots."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from cedar.core.block import Block, Skipped
from cedar.core.boundary import as_column
from cedar.core.cursor import Keys
from cedar.store import cache

ARROW: dict[str, tuple[pa.DataType, Any]] = {
    "int": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "small": (pa.uint8(), st.integers(0, 255)),
    "float": (pa.float64(), st.floats()),
    "half": (pa.float32(), st.floats(width=32)),
    "bool": (pa.bool_(), st.booleans()),
    "text": (pa.large_string(), st.text(max_size=4)),
    "bytes": (pa.large_binary(), st.binary(max_size=4)),
    "fixed": (pa.binary(3), st.binary(min_size=3, max_size=3)),
    "date": (pa.timestamp("us"), st.datetimes()),
    "null": (pa.null(), st.none()),
    "list": (pa.large_list(pa.int32()), st.lists(st.none() | st.integers(0, 9), max_size=3)),
    "pair": (pa.list_(pa.float32(), 2), st.lists(st.floats(width=32), min_size=2, max_size=2)),
    "struct": (
        pa.struct([("a", pa.int64()), ("b", pa.large_list(pa.large_string()))]),
        st.fixed_dictionaries({"a": st.none() | st.integers(0, 9), "b": st.lists(st.text(max_size=2), max_size=2)}),
    ),
    "nested": (pa.large_list(pa.large_list(pa.bool_())), st.lists(st.lists(st.booleans(), max_size=2), max_size=2)),
}
DTYPES = ("uint8", "float32", "float64", "bool", "complex128", ">i4", "datetime64[ns]", "float16")
SHAPES = ((3,), (2, 2), (0,), (1, 0, 2))


@st.composite
def columns(draw: Any, n: int) -> Any:
    """A column of ``n`` rows."""
    if draw(st.booleans()):
        dtype, shape = np.dtype(draw(st.sampled_from(DTYPES))), draw(st.sampled_from(SHAPES))
        raw = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 2, (n, *shape), dtype=np.uint8)
        made = raw.astype(dtype)
        return np.repeat(made, 2, axis=0)[::2] if draw(st.booleans()) else made  # contiguous or not
    kind, value = ARROW[draw(st.sampled_from(sorted(ARROW)))]
    values = draw(st.lists(st.none() | value, min_size=n + 2, max_size=n + 2))
    return as_column(pa.array(values, kind)).slice(draw(st.integers(0, 2)), n)


@st.composite
def parts(draw: Any, slots: int) -> Any:
    """A component of keys: one for all rows, or one per row."""
    values = st.integers(-(2**62), 2**62)
    each = st.lists(values, min_size=slots, max_size=slots).map(lambda v: np.array(v, dtype=np.int64))
    return draw(values | each)


@st.composite
def blocks(draw: Any) -> Block:
    """A block with dead slots among its rows."""
    slots = draw(st.integers(0, 6))
    dead_slots = draw(st.sets(st.integers(0, max(0, slots - 1)), max_size=slots))
    dead = {s: Skipped(draw(st.sampled_from([3, 7])), "map(f)", f"é {s}", draw(st.booleans())) for s in dead_slots}
    names = draw(st.lists(st.text(max_size=3), unique=True, max_size=4))
    held = {name: draw(columns(slots - len(dead))) for name in names}
    keys = Keys(np.array(draw(st.lists(st.integers(0, 2**62), min_size=slots, max_size=slots)), dtype=np.int64),
                **{name: draw(parts(slots)) for name in ("file", "sub", "repeat", "branch", "source")})  # fmt: skip
    return Block(held, keys, dead)


def assert_same(a: Block, b: Block) -> None:
    """The same columns in the same order, of the same types, bit for bit, with the same keys and dead slots."""
    assert list(a.columns) == list(b.columns)
    assert a.types == b.types
    for name, column in a.columns.items():
        other = b.columns[name]
        if isinstance(column, pa.Array):
            assert repr(column.to_pylist()) == repr(other.to_pylist())
        elif column.dtype == object:
            assert column.tolist() == other.tolist()
        else:
            assert column.shape == other.shape
            assert column.tobytes() == other.tobytes()
    assert np.array_equal(a.keys.row, b.keys.row)
    for part in ("file", "sub", "repeat", "branch", "source"):
        ours, theirs = getattr(a.keys, part), getattr(b.keys, part)
        assert type(ours) is type(theirs)
        assert np.array_equal(ours, theirs)
    assert dict(a.dead) == dict(b.dead)
    assert len(a) == len(b)


def word(text: str) -> str:
    """16 hex digits that stand for a short text, as digests stand for what entries are made of."""
    return text.encode().hex().ljust(16, "0")


def Key(group: str, split: str, ordinals: tuple[int, ...] = (), columns: Any = None) -> cache.Key:  # noqa: N802
    """The key of an entry, from short texts."""
    return cache.Key(word(group), word(split), ordinals, columns)
