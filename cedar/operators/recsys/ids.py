"""Transforms of single ids: hash, remainder, lookup in a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from cedar.core.columns import Column, ColumnType
from cedar.core.errors import invalid_call
from cedar.operators.algebra import per_value
from cedar.operators.recsys.hashing import hash_combine, remainders, twang_mix64
from cedar.operators.recsys.lists import (
    Array,
    Items,
    Lists,
    Mask,
    as_int64,
    check_integer,
    is_ids,
    is_lists,
    lists_from,
)
from cedar.operators.transform import BadValues, Transform

_STRINGS_FIX = "cast the column; for strings, with_columns(x=col('x').hash()), or fit a cedar.preprocessing.Vocabulary"


@per_value
@dataclass(frozen=True)
class SigridHash(Items):
    """Hash ids to integers from 0 to ``max_value`` - 1.

    As torcharrow's ``sigrid_hash``, computes hash_combine(salt, twang_mix64(id)) as int64 with the functions of Folly's
    ``hash/Hash.h``, and takes the non-negative remainder modulo ``max_value``. Different ids may collide. Lists keep
    their order and length; nulls and empty lists stay unchanged. uint64 ids are hashed by their bits.

    Args:
        salt: a 64-bit integer; different salts give different hashes.
        max_value: number of rows of the embedding table, at least 1.

    Raises:
        PipelineError: an argument is out of range, or the column does not contain integers or lists of them.

    Examples:
        >>> SigridHash(salt=0, max_value=100)([1, 2, 3])
        [60, 54, 54]
    """

    salt: int
    max_value: int

    def __post_init__(self) -> None:
        check_integer("SigridHash", "salt", self.salt, -(1 << 63), (1 << 63) - 1)
        check_integer("SigridHash", "max_value", self.max_value, 1, (1 << 63) - 1)

    def item_type(self, kind: Any) -> pa.DataType:
        if not is_ids(kind):
            raise self.unfit(kind, "integers or lists of them", _STRINGS_FIX)
        return pa.int64()

    def transform_values(self, values: Array) -> Array:
        if self.max_value == 1:
            return np.zeros(len(values), dtype=np.int64)
        salt = np.int64(self.salt).view(np.uint64)
        return remainders(hash_combine(salt, twang_mix64(as_int64(values))).view(np.int64), self.max_value)


@per_value
@dataclass(frozen=True)
class PositiveModulus(Items):
    """Replace each x by its non-negative remainder, ((x % m) + m) % m. Nulls and empty lists stay unchanged.

    Examples:
        >>> PositiveModulus(7)([-1, 7, 8])
        [6, 0, 1]
    """

    m: int

    def __post_init__(self) -> None:
        check_integer("PositiveModulus", "m", self.m, 1, (1 << 63) - 1)

    def item_type(self, kind: Any) -> pa.DataType:
        if not is_ids(kind):
            raise self.unfit(kind, "integers or lists of them", _STRINGS_FIX)
        return kind

    def transform_values(self, values: Array) -> Array:
        if self.m > np.iinfo(values.dtype).max:  # only negative values would change, and ``invalid_mask`` rejects those
            return values
        return remainders(values, self.m)

    def invalid_mask(self, values: Array) -> Mask | None:
        return values < 0 if self.m > np.iinfo(values.dtype).max else None

    def why(self, value: Any) -> str:
        return f"PositiveModulus({self.m}) of {value} does not fit into {value.dtype}"


@per_value
@dataclass(frozen=True)
class MapId(Transform):
    """Map ids or strings to integers by a lookup table.

    Lists keep their order and length, and empty lists stay empty.

    Args:
        table: maps keys (all integers or all strings) to int64 values.
        default: the value of keys that are not in the table; with None, rows with such keys fail.
        null: the value of nulls, also inside lists; null lists become empty. With None, nulls stay null.

    Raises:
        PipelineError: the keys are neither all integers nor all strings, or the column has another type.

    Examples:
        >>> MapId({7: 0, 9: 1}, default=-1)([9, 8, 7])
        [1, -1, 0]
    """

    table: Mapping[Any, int] = field(hash=False)
    default: int | None = None
    null: int | None = None

    def __post_init__(self) -> None:
        try:
            key_type = pa.uint64() if any(isinstance(key, int) and key >= 1 << 63 for key in self.table) else None
            keys, values = pa.array(list(self.table), key_type), pa.array(list(self.table.values()), pa.int64())
        except (pa.ArrowException, TypeError, OverflowError) as error:
            raise invalid_call(f"MapId: the table cannot be used: {error}") from error
        if keys.null_count or values.null_count:
            raise invalid_call("MapId: the table has a null key or value", fix="leave it out; give null= for nulls")
        if len(keys) and not is_ids(keys.type) and not pt.is_string(keys.type):
            raise invalid_call(f"MapId: the table has keys of type {keys.type}", fix="use integers or strings")
        keys = keys.cast(pa.large_string()) if pt.is_string(keys.type) else keys
        object.__setattr__(self, "table", dict(self.table))
        object.__setattr__(self, "_arrays", (keys, values))

    def result(self, *types: Any) -> ColumnType:
        (kind,) = types
        inner = kind.value_type if is_lists(kind) else kind
        keys = self._arrays[0].type  # type: ignore[attr-defined]
        empty = pt.is_null(keys) and (is_ids(inner) or inner == pa.large_string())
        if not (is_ids(inner) and is_ids(keys)) and inner not in (keys, pa.null()) and not empty:
            raise self.unfit(kind, f"{keys} or lists of it, the type of the table's keys")
        return pa.large_list(pa.int64()) if is_lists(kind) else pa.int64()

    def columns(self, *columns: Column) -> Column:
        (array,) = columns
        if not is_lists(array.type):
            return self._map_items(array, None)
        lists = Lists.of(array)
        return lists_from(
            self._map_items(lists.items, lists), lists.offsets, lists.missing if self.null is None else None
        )

    def _map_items(self, array: pa.Array, lists: Lists | None) -> pa.Array:
        keys, values = self._arrays  # type: ignore[attr-defined]
        if pt.is_null(array.type) or pt.is_null(keys.type):  # all values are null, or the table is empty
            array, keys = (array.cast(keys.type), keys) if pt.is_null(array.type) else (array, keys.cast(array.type))
        elif is_ids(array.type) and array.type != keys.type:
            id_type = pa.uint64() if array.type == pa.uint64() else pa.int64()
            keys, values = _keys_that_fit(keys, values, id_type)
            array = array.cast(id_type)
        mapped = values.take(pc.index_in(array, value_set=keys))
        if mapped.null_count > array.null_count:
            unknown = pc.and_(mapped.is_null(), array.is_valid()).to_numpy(zero_copy_only=False)
            if self.default is None:
                rows = np.flatnonzero(unknown) if lists is None else lists.rows()[unknown]
                names = array.filter(pa.array(unknown)).to_pylist()
                firsts = dict(zip(rows[::-1].tolist(), names[::-1], strict=True))
                whys = {row: f"MapId: {name!r} is not in the table" for row, name in sorted(firsts.items())}
                raise BadValues(whys, "give default=, or add these keys to the table")
            mapped = pc.if_else(pa.array(unknown), pa.scalar(self.default, pa.int64()), mapped)
        return mapped if self.null is None else pc.if_else(array.is_valid(), mapped, pa.scalar(self.null, pa.int64()))


def _keys_that_fit(keys: pa.Array, values: pa.Array, kind: pa.DataType) -> tuple[pa.Array, pa.Array]:
    """Return the keys within the range of integer type ``kind``, cast to this type, and their values."""
    low, high = (0, (1 << 64) - 1) if kind == pa.uint64() else (-(1 << 63), (1 << 63) - 1)
    fits = pa.array([low <= key <= high for key in keys.to_pylist()], pa.bool_())
    return keys.filter(fits).cast(kind), values.filter(fits)
