"""Columns of arrays in files: what Arrow calls lists of a fixed size, in a field that says that they are arrays.

Any other reader sees the lists. Vectors are not marked: as lists of a fixed size, expressions read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.types as pt

from cedar.core.columns import Column, TensorType, type_of
from cedar.core.convert import to_numpy
from cedar.core.errors import RowError, SourceError

_MARK = {b"cedar.array": b"1"}


def field_of(name: str, array: pa.Array, column: Column) -> pa.Field:
    """The field of a column that was written as ``array``."""
    kind = type_of(column)
    marked = isinstance(kind, TensorType) and len(kind.shape) > 1 and 0 not in kind.shape
    return pa.field(name, array.type, metadata=_MARK if marked else None)


def tensor_types(fields: Iterable[pa.Field], types: Mapping[str, pa.DataType]) -> dict[str, TensorType]:
    """The columns whose fields say that they hold arrays, with the type that they have then.

    Args:
        fields: of a file.
        types: the canonical types of the columns that are read.
    """
    marked = [f.name for f in fields if f.name in types and (f.metadata or {}).items() >= _MARK.items()]
    found = {name: _tensor_type(types[name]) for name in marked}
    return {name: kind for name, kind in found.items() if kind is not None}


def _tensor_type(kind: pa.DataType) -> TensorType | None:
    shape = []
    while pt.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    plain = pt.is_primitive(kind) and not pt.is_time(kind)
    return TensorType(tuple(shape), str(to_numpy(pa.nulls(0, kind), "").dtype)) if plain and shape else None


def same_tensors(files: Iterable[Mapping[str, TensorType]]) -> dict[str, TensorType]:
    """The columns that are arrays in all files."""
    first, *others = files
    return {name: kind for name, kind in first.items() if all(other.get(name) == kind for other in others)}


def with_tensors(columns: Mapping[str, Column], tensors: Mapping[str, TensorType], where: str) -> dict[str, Column]:
    """The columns of a file, some of which are arrays.

    Raises:
        SourceError: another program wrote nulls there, which arrays do not hold; ``where`` is the file.
    """
    made = dict(columns)
    try:
        for name in tensors.keys() & columns.keys():
            made[name] = to_numpy(columns[name], name)
    except RowError as error:
        raise SourceError(
            f"{where}: {error.args[0]}, though its field says that it holds arrays",
            fix="write the column again, with an array in each row, or select the other columns",
        ) from error
    return made
