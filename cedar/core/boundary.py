"""The boundary: what pyarrow and polars deliver becomes columns here, and columns go to polars here.

Inside, a column has one type wherever it comes from, and a layout that every kernel understands: 64-bit offsets, no
views, no dictionaries, no runs, no extensions. Arrow's own casts are asked for single values only, since several of
those between nested types lose values or do not exist; lists, structs and maps are taken apart and put together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from cedar.core.arrow import numbers, of_array, of_numbers
from cedar.core.errors import CedarError, PipelineError, Site

if TYPE_CHECKING:
    import polars as pl

_DIGITS = 38  # of a decimal128


class NoColumn(TypeError):
    """A type that no column has; says which and what to do."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(f"{problem}; {fix}")
        self.problem, self.fix = problem, fix


# ---- types -----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def canonical_type(kind: pa.DataType) -> pa.DataType:
    """The type that a column of Arrow type ``kind`` has inside a block.

    Raises:
        NoColumn: unions, structs with two fields of one name, decimals of more digits than 76.

    Examples:
        >>> canonical_type(pa.map_(pa.string(), pa.int32()))
        LargeListType(large_list<item: struct<key: large_string, value: int32>>)
    """
    if isinstance(kind, pa.BaseExtensionType):
        return pa.bool_() if isinstance(kind, pa.Bool8Type) else canonical_type(kind.storage_type)
    if pt.is_struct(kind):
        _distinct(kind)
        return pa.struct([pa.field(f.name, canonical_type(f.type)) for f in kind])
    if pt.is_map(kind):
        entry = pa.struct([("key", canonical_type(kind.key_type)), ("value", canonical_type(kind.item_type))])
        return pa.large_list(entry)
    if pt.is_fixed_size_list(kind) and kind.list_size:
        return pa.list_(canonical_type(kind.value_type), kind.list_size)
    if _is_listed(kind):
        return pa.large_list(canonical_type(kind.value_type))
    if pt.is_dictionary(kind) or pt.is_run_end_encoded(kind):
        return canonical_type(kind.value_type)
    if pt.is_union(kind):
        raise NoColumn("unions are not column", "make it a struct with a field for each of its types")
    return _plain_type(kind)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Of a type that holds no others."""
    if pt.is_string(kind) or pt.is_string_view(kind):
        return pa.large_string()
    if pt.is_binary(kind) or pt.is_binary_view(kind):
        return pa.large_binary()
    if pt.is_fixed_size_binary(kind) and not pt.is_decimal(kind) and not kind.byte_width:
        return pa.large_binary()
    if pt.is_date64(kind):
        return pa.date32()
    return _decimal(kind) if pt.is_decimal(kind) else kind


def _decimal(kind: pa.DataType) -> pa.DataType:
    """As wide as its digits need; neither polars nor Parquet has a negative scale."""
    digits, scale = kind.precision - min(kind.scale, 0), max(kind.scale, 0)
    if digits > 76:
        raise NoColumn(f"{kind} has {digits} digits, more than 76", "cast it to a float")
    return pa.decimal128(digits, scale) if digits <= _DIGITS else pa.decimal256(digits, scale)


def _distinct(kind: pa.DataType) -> None:
    names = [field.name for field in kind]
    twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
    if twice is not None:
        raise NoColumn(f"a struct has two fields {twice!r}", "rename one of them")


def _is_listed(kind: pa.DataType) -> bool:
    return bool(
        pt.is_list(kind)
        or pt.is_large_list(kind)
        or pt.is_fixed_size_list(kind)
        or pt.is_list_view(kind)
        or pt.is_large_list_view(kind)
    )


def canonical_types(
    fields: Iterable[pa.Field], where: str, error: Callable[..., CedarError] = PipelineError, site: Site | None = None
) -> dict[str, pa.DataType]:
    """Names and types of the columns that come of the fields of a schema.

    Args:
        fields: a schema, or some of its fields.
        where: what has them, for messages.
        error: what is raised.
        site: the user's line.

    Raises:
        CedarError: as ``error``: two fields of one name, or a type that no column has; names both.

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
    """``values`` (Arrow, NumPy, polars, torch) as a column, without a copy where the type allows.

    Raises:
        TypeError: something else, or an Arrow type that no column has (``NoColumn``).

    Examples:
        >>> as_column(pa.array([[1], None], pa.list_view(pa.int8()))).type
        LargeListType(large_list<item: int8>)
    """
    if isinstance(values, np.ndarray):
        if values.dtype == object or values.ndim != 1 or values.dtype.kind not in "biufM":
            if values.dtype.kind in "US":
                return as_column(pa.array(values.tolist()))
            return values
        return of_array(values)
    if isinstance(values, pa.ChunkedArray):
        return _joined(values)
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
    """``as_column`` of each, at once: tables may be thousands of columns wide, most of which need nothing done.

    Raises:
        TypeError: as ``as_column``.
    """
    made = {}
    for name, values in columns.items():
        array = values.chunk(0) if isinstance(values, pa.ChunkedArray) and values.num_chunks == 1 else values
        ready = isinstance(array, pa.Array) and len(array) > 0
        ready = ready and array.type.equals(canonical_type(array.type), check_metadata=True)
        made[name] = array if ready else as_column(values)
    return made


def checked_column(values: Any) -> Any:
    """``as_column`` of what a file holds: damaged offsets must not get in, or later code reads beyond its memory.

    Raises:
        ValueError: the memory of an array is not what its type says.
    """
    values.validate(full=True)
    return as_column(values)


def _joined(values: pa.ChunkedArray) -> pa.Array:
    """The chunks in one, each made canonical first: Arrow cannot join all of the others."""
    target = canonical_type(values.type)
    if not values.num_chunks:
        return pa.nulls(0, target)
    chunks = [_canonical(chunk, target) for chunk in values.chunks]
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)


def _canonical(array: pa.Array, target: pa.DataType) -> pa.Array:
    """The same values, of the type ``target``, which is canonical."""
    kind = array.type
    if not len(array):  # polars gives some whose offsets lie beyond their memory
        return pa.nulls(0, target)
    if kind.equals(target, check_metadata=True):
        return array
    if isinstance(array, pa.ExtensionArray):
        if isinstance(kind, pa.Bool8Type):
            return array.storage.cast(pa.bool_())
        return _canonical(array.storage, target)
    if pt.is_dictionary(kind):
        return _canonical(array.dictionary, target).take(array.indices)
    if pt.is_run_end_encoded(kind):
        return _decoded(array, target)
    if pt.is_struct(kind):
        return _struct(array, target)
    if _is_listed(kind) or pt.is_map(kind):
        return _lists(array, target)
    return array.cast(target)


def _decoded(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Runs one value at a time; by the numbers of the runs, since Arrow decodes only some types."""
    ends = array.run_ends.to_numpy()
    places = np.arange(array.offset, array.offset + len(array))
    return _canonical(array.values, target).take(of_numbers(np.searchsorted(ends, places, side="right")))


def _struct(array: pa.Array, target: pa.DataType) -> pa.Array:
    valid = _valid(array)
    if not target.num_fields:
        return pa.Array.from_buffers(target, len(array), [valid], children=[])
    fields = [_canonical(array.field(i), field.type) for i, field in enumerate(target)]
    return pa.Array.from_buffers(target, len(array), [valid], children=fields)


def _lists(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Lists of any kind as large lists, or fixed ones as fixed ones."""
    kind, rows = array.type, len(array)
    if pt.is_fixed_size_list(target):
        size = target.list_size
        items = _canonical(array.values.slice(array.offset * size, rows * size), target.value_type)
        return pa.Array.from_buffers(target, rows, [_valid(array)], children=[items])
    if pt.is_fixed_size_list(kind):  # of nothing
        items, offsets = _canonical(array.values[:0], target.value_type), np.zeros(rows + 1, dtype=np.int64)
    elif pt.is_list_view(kind) or pt.is_large_list_view(kind):
        places, offsets = _viewed(array)
        items = _canonical(array.values, target.value_type).take(of_numbers(places))
    else:
        offsets = numbers(array.offsets).astype(np.int64) if rows else np.zeros(1, dtype=np.int64)
        entries = array.values  # of a map, as a struct of key and value
        if pt.is_map(kind):
            entries = pa.StructArray.from_arrays([array.keys, array.items], names=["key", "value"])
        start, stop = int(offsets[0]), int(offsets[-1])
        items, offsets = _canonical(entries.slice(start, stop - start), target.value_type), offsets - start
    buffers = [_valid(array), pa.py_buffer(np.ascontiguousarray(offsets))]
    return pa.Array.from_buffers(target, rows, buffers, children=[items])


def _viewed(array: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where the items of views lie, one view after the other, and where each of these then begins and ends."""
    sizes = np.where(np.asarray(array.is_valid()), numbers(array.sizes), 0).astype(np.int64)
    offsets = np.zeros(len(array) + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    begin = numbers(array.offsets).astype(np.int64)
    return np.arange(offsets[-1]) + np.repeat(begin - offsets[:-1], sizes), offsets


def _valid(array: pa.Array) -> pa.Buffer | None:
    """Which rows are not null, as the bits of an array that begins at its first row."""
    if not array.null_count:
        return None
    if not array.offset:
        return array.buffers()[0]
    return pa.array(array.is_valid().to_numpy(zero_copy_only=False)).buffers()[1]


# ---- polars ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def polars_type(kind: Any) -> pl.DataType | None:
    """The type that a column of type ``kind`` has in polars; None if it has none."""
    if not isinstance(kind, pa.DataType) or _is_unknown_to_polars(kind):
        return None
    import polars as pl

    try:
        return pl.Series("", pa.nulls(0, kind)).dtype  # of a list, pyarrow would import pandas where it is
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, pa.ArrowException, TypeError, ValueError):
        return None


def _is_unknown_to_polars(kind: pa.DataType) -> bool:
    """Some types polars does not refuse: it panics, with a trace on stderr."""
    if pt.is_decimal256(kind) or pt.is_interval(kind):
        return True
    fields = [kind.field(i) for i in range(kind.num_fields)]
    return any("\0" in field.name or _is_unknown_to_polars(field.type) for field in fields)


def to_series(name: str, column: pa.Array) -> pl.Series:
    """An Arrow column as polars has it, sharing memory where polars understands the layout.

    Raises:
        NoColumn: polars has no such type.
    """
    import polars as pl

    if polars_type(column.type) is None:
        raise NoColumn(f"polars has no type for {column.type}", "cast it first, or map a function over it")
    return pl.Series(name, _whole(column) if _has_fixed_lists(column.type) and _is_cut(column) else column)


def to_frame(columns: Mapping[str, pa.Array]) -> pl.DataFrame:
    """Arrow columns of equal length as a frame of polars.

    Raises:
        NoColumn: polars has no type for one.
    """
    import polars as pl

    series = [to_series(name, column) for name, column in columns.items()]
    return pl.DataFrame(dict(zip(columns, series, strict=True)) if "" in columns else series)  # a list names "" again


def from_series(series: pl.Series) -> Any:
    """A series of polars as a column.

    Raises:
        NoColumn: Arrow has no such type, or polars cannot hand it over.
    """
    import polars as pl

    kind = series.dtype
    if kind == pl.Object:
        made = np.empty(len(series), dtype=object)
        made[:] = series.to_list()
        return made
    _handed_over(kind)
    if "\0" in series.name:  # which C cannot pass on
        series = series.rename("")
    array = series.to_arrow(compat_level=pl.CompatLevel.oldest())
    if len(array) != len(series):
        raise NoColumn(f"polars gave {len(array)} of {len(series)} values of {series.dtype}", "report this")
    return as_column(array)


def column_named(name: str) -> pl.Expr:
    """The column of exactly that name: "*" and "^...$" are patterns to ``polars.col``."""
    import polars as pl
    import polars.selectors as cs

    pattern = name == "*" or (name.startswith("^") and name.endswith("$"))
    return cs.by_name(name).as_expr() if pattern else pl.col(name)


def columns_named(names: Iterable[str]) -> Any:
    """A selector of exactly these columns."""
    import polars.selectors as cs

    return cs.by_name(*names)


def polars_errors() -> tuple[type[BaseException], ...]:
    """What polars raises: to Python its panics are not exceptions."""
    import polars as pl

    return (pl.exceptions.PolarsError, pl.exceptions.PanicException)


def first_line(error: BaseException) -> str:
    """What an exception says, without what polars adds below."""
    return str(error).strip().partition("\n")[0]


def table_of(frame: pl.DataFrame, where: str, site: Site | None) -> pa.Table:
    """A frame of polars as a table, whose columns are not converted yet.

    Raises:
        PipelineError: a column of objects, or of a type that Arrow has not; names it.
    """
    import polars as pl

    for name, kind in frame.schema.items():
        try:
            if kind == pl.Object:
                raise NoColumn("Arrow holds no Python objects", "use cedar.from_items(frame.to_dicts())")
            _handed_over(kind)
        except NoColumn as reason:
            problem = f"{where}: column {name!r} of {kind}: {reason.problem}"
            raise PipelineError(problem, site=site, fix=f"{reason.fix}, or leave the column out") from reason
    return pa.table([series.rename("").to_arrow() for series in frame.get_columns()], names=frame.columns)


def type_of_series(kind: pl.DataType) -> pa.DataType:
    """The type of the column that a series of the polars type ``kind`` becomes; it is none of objects.

    Raises:
        NoColumn: Arrow has no such type.
    """
    import polars as pl

    _handed_over(kind)
    return canonical_type(pl.Series("", [], dtype=kind).to_arrow(compat_level=pl.CompatLevel.oldest()).type)


@lru_cache(maxsize=1024)
def _handed_over(kind: Any) -> None:
    """Integers of 128 bits go over as decimals of 38 digits, or not at all: fewer than they have."""
    import polars as pl

    wide = [pl.Int128, getattr(pl, "UInt128", pl.Int128)]
    inner = [kind]
    while inner:
        each = inner.pop()
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


def _is_cut(array: pa.Array) -> bool:
    """Holds fixed-size lists with nulls that are a part of others: polars takes the bits of the whole for theirs."""
    kind = array.type
    if pt.is_fixed_size_list(kind):
        cut = array.offset or len(array.values) != len(array) * kind.list_size
        return bool(cut and array.buffers()[0] is not None) or _is_cut(array.values)
    if pt.is_large_list(kind):
        return _is_cut(array.values)
    return pt.is_struct(kind) and any(_is_cut(array.field(i)) for i in range(kind.num_fields))


def _whole(array: pa.Array) -> pa.Array:
    """The same values in memory that begins with the first and ends with the last."""
    return pa.concat_arrays([array[:0], array])
