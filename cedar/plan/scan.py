"""Scan: reads only some columns of a source. With filters, it reads the other columns only for rows that pass."""

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
    """The optimized form of a ``Read``.

    Args:
        source: the user's source, unchanged, because windows and row keys depend on its metadata.
        columns: the output columns; None means all. ``"a.b"`` is a field of the struct column ``a``, which then has
            only the listed fields, in the source's order.
        where: expression filters that run inside the scan, in order. The scan reads the filters' columns first, and
            other columns only if some rows pass.
    """

    columns: tuple[str, ...] | None = None
    where: tuple[Node, ...] = ()

    def schema(self, *inputs: Schema) -> Schema:
        known = super().schema()
        if known is None or self.columns is None:
            return known
        chosen = chosen_fields(self.columns, known)
        return {name: narrowed_type(known.get(name, UNKNOWN), paths) for name, paths in chosen.items()}


def chosen_fields(columns: Iterable[str], known: Iterable[str]) -> dict[str, list[str] | None]:
    """Return, for each column, the paths of the fields chosen from it; None means the whole column.

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
    """Return a struct column's fields in dotted notation ("a.b"), in order; None if the whole column must be read.

    Args:
        name: the column's name.
        fields: the paths of the fields inside the column; no path passes through a list.
        known: the columns of the source.
    """
    kind = (known or {}).get(name)
    paths = sorted(set(fields))
    paths = [path for path in paths if not any(path[:n] in paths for n in range(1, len(path)))]
    unclear = any("." in part for path in paths for part in (name, *path))
    unclear = unclear or any(
        other.startswith(f"{name}.") for other in known or ()
    )  # a column with a dotted name takes precedence
    chosen = [".".join((name, *path)) for path in paths]
    if not chosen or unclear or not isinstance(kind, pa.StructType):
        return None
    return chosen if narrowed_type(kind, [path[len(name) + 1 :] for path in chosen]) != kind else None


def narrowed_type(kind: ColumnType, paths: Sequence[str] | None) -> ColumnType:
    """Return a struct type with only the fields at ``paths``, in their order; other types unchanged."""
    if paths is None or not isinstance(kind, pa.DataType) or not pa.types.is_struct(kind):
        return kind
    chosen = chosen_fields(paths, ())
    return pa.struct([(f.name, narrowed_type(f.type, chosen[f.name])) for f in kind if f.name in chosen])


def narrowed(column: Column, kind: Any) -> Column:
    """Return a struct column with only the fields of ``kind``, nulls included; other columns unchanged."""
    if not isinstance(column, pa.StructArray) or not isinstance(kind, pa.StructType) or column.type == kind:
        return column
    positions = {column.type.field(i).name: i for i in range(column.type.num_fields)}
    if any(f.name not in positions for f in kind):
        return column
    fields = [narrowed(column.field(positions[f.name]), f.type) for f in kind]
    named = [pa.field(f.name, array.type) for f, array in zip(kind, fields, strict=True)]
    return pa.StructArray.from_arrays(fields, fields=named, mask=column.is_null())
