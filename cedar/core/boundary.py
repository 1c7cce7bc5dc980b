"""Conversion of pyarrow and polars data to columns, and of columns to polars.

Inside cedar, values of one kind always have the same column type, whatever their source. Every kernel understands its
layout: 64-bit offsets, and no views, dictionaries, run-end encoding or extension types. Arrow's casts between nested
types lose values or are missing, so lists, structs and maps are converted part by part, and only leaves are cast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from cedar.core.columns import from_array, from_numbers, native, numbers
from cedar.core.errors import CedarError, PipelineError, Site

if TYPE_CHECKING:
    import polars as pl

# Ids of the types of lists, fixed-size lists aside.
_LISTS = {make(pa.null()).id for make in (pa.list_, pa.large_list, pa.list_view, pa.large_list_view)}
_FIXED_LIST = pa.list_(pa.null(), 1).id


class NoColumn(TypeError):
    """Raised for an Arrow or polars type that columns do not support. The message names the type and suggests a fix."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(f"{problem}; {fix}")
        self.problem, self.fix = problem, fix


# ---- types -----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def canonical_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that a column of Arrow type ``kind`` has inside a block.

    Raises:
        NoColumn: unions, structs with two fields of the same name, decimals of more than 76 digits.

    Examples:
        >>> canonical_type(pa.map_(pa.string(), pa.int32()))
        LargeListType(large_list<item: struct<key: large_string, value: int32>>)
    """
    if isinstance(kind, pa.BaseExtensionType):
        return pa.bool_() if isinstance(kind, pa.Bool8Type) else canonical_type(kind.storage_type)
    if pt.is_struct(kind):
        names: set[str] = set()
        for field in kind:
            if field.name in names:
                raise NoColumn(f"a struct has two fields {field.name!r}", "rename one of them")
            names.add(field.name)
        return pa.struct([pa.field(f.name, canonical_type(f.type)) for f in kind])
    if pt.is_map(kind):
        entry = pa.struct([("key", canonical_type(kind.key_type)), ("value", canonical_type(kind.item_type))])
        return pa.large_list(entry)
    if kind.id == _FIXED_LIST and kind.list_size:
        return pa.list_(canonical_type(kind.value_type), kind.list_size)
    if kind.id in _LISTS or kind.id == _FIXED_LIST:
        return pa.large_list(canonical_type(kind.value_type))
    if pt.is_dictionary(kind) or pt.is_run_end_encoded(kind):
        return canonical_type(kind.value_type)
    if pt.is_union(kind):
        raise NoColumn("a column cannot be a union", "make it a struct with a field for each of its types")
    return _plain_type(kind)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the canonical type of a type that contains no others."""
    if pt.is_string(kind) or pt.is_string_view(kind):
        return pa.large_string()
    if pt.is_binary(kind) or pt.is_binary_view(kind):
        return pa.large_binary()
    if pt.is_fixed_size_binary(kind) and not pt.is_decimal(kind) and not kind.byte_width:
        return pa.large_binary()
    if pt.is_date64(kind):
        return pa.date32()
    if not pt.is_decimal(kind):
        return kind
    # Neither polars nor Parquet supports a negative scale. The type is as wide as its digits need.
    digits, scale = kind.precision - min(kind.scale, 0), max(kind.scale, 0)
    if digits > 76:
        raise NoColumn(f"{kind} has {digits} digits, more than 76", "cast it to a float")
    return pa.decimal128(digits, scale) if digits <= 38 else pa.decimal256(digits, scale)


def canonical_types(
    fields: Iterable[pa.Field], where: str, error: Callable[..., CedarError] = PipelineError, site: Site | None = None
) -> dict[str, pa.DataType]:
    """Return the names and canonical types of the columns for the fields of a schema.

    Args:
        fields: a schema, or some of its fields.
        where: the source or operator that has the fields, for messages.
        error: the class of error to raise.
        site: the user's line that built this source or operator.

    Raises:
        CedarError: an ``error`` if two fields have the same name, or if no column can have a field's type.

    Examples:
        >>> canonical_types(pa.schema([("x", pa.string())]), "here")
        {'x': DataType(large_string)}
    """
    types: dict[str, pa.DataType] = {}
    for field in fields:
        if field.name in types:
            raise error(f"{where}: there are two columns {field.name!r}", site=site, fix="rename one of them")
        try:
            types[field.name] = canonical_type(field.type)
        except NoColumn as reason:
            problem = f"{where}: column {field.name!r} of {field.type!s:.200}: {reason.problem}"
            raise error(problem, site=site, fix=f"{reason.fix}, or leave the column out") from reason
    return types


# ---- values ----------------------------------------------------------------------------------------------------------


def as_column(values: Any) -> Any:
    """Convert ``values`` (Arrow, NumPy, polars, torch) to a column, without a copy if the type allows.

    Raises:
        TypeError: values of another kind, or of an Arrow type that columns do not support (``NoColumn``).

    Examples:
        >>> as_column(pa.array([[1], None], pa.list_view(pa.int8()))).type
        LargeListType(large_list<item: int8>)
    """
    if isinstance(values, np.ndarray):
        values = native(values)
        if values.dtype == object or values.ndim != 1 or values.dtype.kind not in "biufM":
            if values.dtype.kind in "US":
                return as_column(pa.array(values.tolist()))
            return values
        return from_array(values)
    if isinstance(values, pa.ChunkedArray):
        target = canonical_type(values.type)
        if not values.num_chunks:
            return pa.nulls(0, target)
        chunks = [_canonical(chunk, target) for chunk in values.chunks]  # Arrow cannot join chunks of some other types
        return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
    if isinstance(values, pa.Array):
        return _canonical(values, canonical_type(values.type))
    if hasattr(values, "get_chunks"):
        return from_series(values)
    if hasattr(values, "to_arrow"):
        return as_column(values.to_arrow())
    if hasattr(values, "detach"):  # a torch tensor
        return as_column(values.detach().cpu().numpy())
    raise TypeError(
        f"a column must be an Arrow array, an ndarray, a polars series or a tensor, not {type(values).__name__}"
    )


def as_columns(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Apply ``as_column`` to every column. Tables can have thousands of columns, most of which need no conversion.

    Raises:
        TypeError: as ``as_column``.
    """
    result = {}
    for name, values in columns.items():
        array = values.chunk(0) if isinstance(values, pa.ChunkedArray) and values.num_chunks == 1 else values
        ready = isinstance(array, pa.Array) and len(array) > 0
        ready = ready and array.type.equals(canonical_type(array.type), check_metadata=True)
        result[name] = array if ready else as_column(values)
    return result


def checked_column(values: Any) -> Any:
    """Validate and convert a column from a file. Damaged offsets could make later code read beyond the column's memory.

    Raises:
        ValueError: the memory of an array does not match its type.
    """
    values.validate(full=True)
    return as_column(values)


def _canonical(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert an array to ``target``, a canonical type."""
    kind = array.type
    if not len(array):  # polars exports empty arrays whose offsets are outside their memory
        return pa.nulls(0, target)
    if kind.equals(target, check_metadata=True):
        return array
    if isinstance(array, pa.ExtensionArray):
        if isinstance(kind, pa.Bool8Type):
            return array.storage.cast(pa.bool_())
        return _canonical(array.storage, target)
    if pt.is_dictionary(kind):
        return _canonical(array.dictionary, target).take(array.indices)
    if pt.is_run_end_encoded(kind):  # look up the run of each row, since Arrow decodes only some types
        places = np.arange(array.offset, array.offset + len(array))
        runs = np.searchsorted(array.run_ends.to_numpy(), places, side="right")
        return _canonical(array.values, target).take(from_numbers(runs))
    if pt.is_struct(kind):
        fields = [_canonical(array.field(i), field.type) for i, field in enumerate(target)]
        return pa.Array.from_buffers(target, len(array), [validity_bits(array)], children=fields)
    if kind.id in _LISTS or kind.id == _FIXED_LIST or pt.is_map(kind):
        return _convert_lists(array, target)
    return array.cast(target)


def _convert_lists(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert lists of any kind to large lists, or to fixed-size lists if ``target`` is one."""
    kind, rows = array.type, len(array)
    if pt.is_fixed_size_list(target):
        size = target.list_size
        items = _canonical(array.values.slice(array.offset * size, rows * size), target.value_type)
        return pa.Array.from_buffers(target, rows, [validity_bits(array)], children=[items])
    if pt.is_fixed_size_list(kind):  # a fixed size of 0
        items, offsets = _canonical(array.values[:0], target.value_type), np.zeros(rows + 1, dtype=np.int64)
    elif pt.is_list_view(kind) or pt.is_large_list_view(kind):
        sizes = np.where(np.asarray(array.is_valid()), numbers(array.sizes), 0).astype(np.int64)
        offsets = np.zeros(rows + 1, dtype=np.int64)
        np.cumsum(sizes, out=offsets[1:])
        begin = numbers(array.offsets).astype(np.int64)
        places = np.arange(offsets[-1]) + np.repeat(begin - offsets[:-1], sizes)  # of the items, list after list
        items = _canonical(array.values, target.value_type).take(from_numbers(places))
    else:
        offsets = numbers(array.offsets).astype(np.int64) if rows else np.zeros(1, dtype=np.int64)
        entries = array.values  # for a map: a struct of key and value
        if pt.is_map(kind):
            entries = pa.StructArray.from_arrays([array.keys, array.items], names=["key", "value"])
        start, stop = int(offsets[0]), int(offsets[-1])
        items, offsets = _canonical(entries.slice(start, stop - start), target.value_type), offsets - start
    buffers = [validity_bits(array), pa.py_buffer(np.ascontiguousarray(offsets))]
    return pa.Array.from_buffers(target, rows, buffers, children=[items])


def validity_bits(array: pa.Array) -> pa.Buffer | None:
    """Return the validity bits of an array, starting at its first row; None if it has no nulls."""
    if not array.null_count:
        return None
    if not array.offset:
        return array.buffers()[0]
    return pa.array(array.is_valid().to_numpy(zero_copy_only=False)).buffers()[1]


# ---- polars ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def polars_type(kind: Any) -> pl.DataType | None:
    """Return the polars type of a column of type ``kind``, or None if polars has no such type."""
    if not isinstance(kind, pa.DataType) or _is_unknown_to_polars(kind):
        return None
    import polars as pl

    try:
        return pl.Series("", pa.nulls(0, kind)).dtype  # pa.array would import pandas for lists
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, pa.ArrowException, TypeError, ValueError):
        return None


def _is_unknown_to_polars(kind: pa.DataType) -> bool:
    """Whether polars panics on the type and prints a trace, instead of raising an ordinary error."""
    if pt.is_decimal256(kind) or pt.is_interval(kind):
        return True
    fields = [kind.field(i) for i in range(kind.num_fields)]
    return any("\0" in field.name or _is_unknown_to_polars(field.type) for field in fields)


def to_frame(columns: Mapping[str, pa.Array], error: Callable[..., PipelineError] = PipelineError) -> pl.DataFrame:
    """Convert Arrow columns of equal length to a polars frame, which shares memory if polars supports the layout.

    Raises:
        PipelineError: an ``error`` if polars does not have the type of a column.
    """
    import polars as pl

    for name, column in columns.items():
        if polars_type(column.type) is None:
            fix = f"convert it first, such as map(str, {name!r}), or drop({name!r})"
            raise error(f"column {name!r} of {column.type}: polars has no such type", fix=fix)
    arrays = [  # a copy of a slice holds only its own values
        pa.concat_arrays([column[:0], column]) if _has_fixed_lists(column.type) and _is_sliced(column) else column
        for column in columns.values()
    ]
    if any("\0" in name for name in columns):  # they cannot be passed as part of a batch
        return pl.DataFrame([pl.Series(name, array) for name, array in zip(columns, arrays, strict=True)])
    return pl.DataFrame(
        pa.RecordBatch.from_arrays(arrays, names=list(columns))
    )  # column by column takes ten times as long


def from_frame(frame: pl.DataFrame) -> dict[str, Any]:
    """Convert a polars frame to columns, by name; as ``from_series`` for each, which takes eight times as long.

    Raises:
        NoColumn: Arrow does not have the type of a column, or polars cannot export it.
    """
    import polars as pl

    names, kinds = frame.columns, frame.dtypes
    if not frame.height or pl.Object in kinds or any("\0" in name for name in names):
        return {series.name: from_series(series) for series in frame}
    for kind in kinds:
        _handed_over(kind)
    table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    if len(table) != frame.height:
        raise NoColumn(f"polars gave {len(table)} of {frame.height} rows", "report this")
    return as_columns(dict(zip(names, table.columns, strict=True)))


def from_series(series: pl.Series) -> Any:
    """Convert a polars series to a column.

    Raises:
        NoColumn: Arrow does not have the type, or polars cannot export it.
    """
    import polars as pl

    kind = series.dtype
    if kind == pl.Object:
        result = np.empty(len(series), dtype=object)
        result[:] = series.to_list()
        return result
    _handed_over(kind)
    if "\0" in series.name:  # C strings, which the export uses for names, cannot contain NUL
        series = series.rename("")
    array = series.to_arrow(compat_level=pl.CompatLevel.oldest())
    if len(array) != len(series):
        raise NoColumn(f"polars gave {len(array)} of {len(series)} values of {series.dtype}", "report this")
    return as_column(array)


def column_named(name: str) -> pl.Expr:
    """Return an expression for the column of exactly that name: ``polars.col`` takes "*" and "^...$" as patterns."""
    import polars as pl
    import polars.selectors as cs

    pattern = name == "*" or (name.startswith("^") and name.endswith("$"))
    return cs.by_name(name).as_expr() if pattern else pl.col(name)


def columns_named(names: Iterable[str]) -> Any:
    """Return a polars selector of exactly these columns."""
    import polars.selectors as cs

    return cs.by_name(*names)


def polars_errors() -> tuple[type[BaseException], ...]:
    """Return the exception classes of polars. A panic is not a subclass of Exception."""
    import polars as pl

    return (pl.exceptions.PolarsError, pl.exceptions.PanicException)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, without the plan that polars appends."""
    return str(error).strip().partition("\n")[0]


def table_of(frame: pl.DataFrame, where: str, site: Site | None) -> pa.Table:
    """Convert a polars frame to an Arrow table, whose columns are not canonical yet.

    Raises:
        PipelineError: a column holds Python objects, or has a type that Arrow lacks; the message names it.
    """
    for name, kind in frame.schema.items():
        try:
            _handed_over(kind)
        except NoColumn as reason:
            problem = f"{where}: column {name!r} of {kind}: {reason.problem}"
            raise PipelineError(problem, site=site, fix=f"{reason.fix}, or leave the column out") from reason
    return pa.table([series.rename("").to_arrow() for series in frame.get_columns()], names=frame.columns)


def type_of_series(kind: pl.DataType) -> pa.DataType:
    """Return the type of the column for a series of polars type ``kind``.

    Raises:
        NoColumn: Arrow does not have the type.
    """
    import polars as pl

    _handed_over(kind)
    return canonical_type(pl.Series("", [], dtype=kind).to_arrow(compat_level=pl.CompatLevel.oldest()).type)


@lru_cache(maxsize=1024)
def _handed_over(kind: Any) -> None:
    """Raise NoColumn for Python objects, and for 128-bit integers, which polars exports as decimals of 38 digits."""
    import polars as pl

    wide = [pl.Int128, getattr(pl, "UInt128", pl.Int128)]
    inner = [kind]
    while inner:
        each = inner.pop()
        if each == pl.Object:
            raise NoColumn("Arrow holds no Python objects", "use cedar.from_items(frame.to_dicts())")
        if any(each == one for one in wide):
            raise NoColumn(f"{each} has no type in Arrow", "cast it: .cast(polars.Int64), or .cast(polars.Float64)")
        if isinstance(each, pl.List | pl.Array):
            inner.append(each.inner)
        elif isinstance(each, pl.Struct):
            inner += [field.dtype for field in each.fields]


@lru_cache(maxsize=1024)
def _has_fixed_lists(kind: pa.DataType) -> bool:
    inside = [kind.field(i).type for i in range(kind.num_fields)]
    return bool(pt.is_fixed_size_list(kind)) or any(map(_has_fixed_lists, inside))


def _is_sliced(array: pa.Array) -> bool:
    """Whether an array has sliced fixed-size lists with nulls: polars would read the parent's validity bits."""
    kind = array.type
    if pt.is_fixed_size_list(kind):
        cut = array.offset or len(array.values) != len(array) * kind.list_size
        return bool(cut and array.buffers()[0] is not None) or _is_sliced(array.values)
    if pt.is_large_list(kind):
        return _is_sliced(array.values)
    return pt.is_struct(kind) and any(_is_sliced(array.field(i)) for i in range(kind.num_fields))
