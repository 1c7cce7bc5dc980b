"""Scan: a source read with fewer columns, and with filters that decide what of the rest is read at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from cedar.core.columns import UNKNOWN, Column, ColumnType
from cedar.datasets.base import Read
from cedar.operators.base import Schema
from cedar.plan.graph import Node


@dataclass(frozen=True, eq=False)
class Scan(Read):
    """A ``Read`` of a plan.

    Args:
        source: as the user gave it; windows and row keys come from its metadata.
        columns: the columns that leave the scan; ``"a.b"`` is a field of the struct column ``a``, which then holds such
            fields alone, in the order of the source. None is all.
        where: the filters by expression that run inside it, in order; their columns are read first, and the others
            only where rows are left.
    """

    columns: tuple[str, ...] | None = None
    where: tuple[Node, ...] = ()

    def schema(self, *inputs: Schema) -> Schema:
        known = super().schema()
        if known is None or self.columns is None:
            return known
        chosen = chosen_fields(self.columns, known)
        return {name: narrowed_type(known.get(name, UNKNOWN), paths) for name, paths in chosen.items()}

    def parameters(self) -> dict[str, Any]:
        return super().parameters()


def chosen_fields(columns: Iterable[str], known: Iterable[str]) -> dict[str, list[str] | None]:
    """Columns, and the paths of the fields that are chosen of each; None is all of it.

    Examples:
        >>> chosen_fields(["a.b", "a.c.d", "x.y"], ["a", "x.y"])
        {'a': ['b', 'c.d'], 'x.y': None}
    """
    names = set(known)
    chosen: dict[str, list[str] | None] = {}
    for path in columns:
        top, _, rest = (path, "", "") if path in names else path.partition(".")
        before = chosen.get(top, [])
        chosen[top] = [*before, rest] if rest and before is not None else None
    return chosen


def dotted(name: str, fields: Iterable[tuple[str, ...]], known: Schema) -> list[str] | None:
    """Fields of a struct column as a scan names them, in order; None if the whole column is to be read.

    Args:
        name: of the column.
        fields: paths below it, none through a list.
        known: the columns of the source.
    """
    kind = (known or {}).get(name)
    paths = sorted(set(fields))
    paths = [path for path in paths if not any(path[:n] in paths for n in range(1, len(path)))]
    unclear = any("." in part for path in paths for part in (name, *path))
    unclear = unclear or any(other.startswith(f"{name}.") for other in known or ())  # a column of that name wins
    chosen = [".".join((name, *path)) for path in paths]
    if not chosen or unclear or not isinstance(kind, pa.StructType):
        return None
    return chosen if narrowed_type(kind, [path[len(name) + 1 :] for path in chosen]) != kind else None


def narrowed_type(kind: ColumnType, paths: Sequence[str] | None) -> ColumnType:
    """A type with the fields at ``paths`` alone, in their order; what is not a struct stays whole."""
    if paths is None or not isinstance(kind, pa.DataType) or not pa.types.is_struct(kind):
        return kind
    chosen = chosen_fields(paths, ())
    return pa.struct([(f.name, narrowed_type(f.type, chosen[f.name])) for f in kind if f.name in chosen])


def narrowed(column: Column, kind: Any) -> Column:
    """A struct column with the fields of ``kind`` alone; its nulls stay. Any other column as it is."""
    if not isinstance(column, pa.StructArray) or not isinstance(kind, pa.StructType) or column.type == kind:
        return column
    positions = {column.type.field(i).name: i for i in range(column.type.num_fields)}
    if any(f.name not in positions for f in kind):
        return column
    fields = [narrowed(column.field(positions[f.name]), f.type) for f in kind]
    named = [pa.field(f.name, array.type) for f, array in zip(kind, fields, strict=True)]
    return pa.StructArray.from_arrays(fields, fields=named, mask=column.is_null())
