"""Write and read groups in a cache entry: the stored rows and, separately, the inverse, which has another length."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from cedar.core.boundary import as_column
from cedar.core.columns import Column
from cedar.core.groups.column import GroupColumn, RowSharing
from cedar.core.groups.encode import as_ints

Place = list[int] | None


def write_groups(columns: Mapping[str, Column], write: Callable[[dict[str, pa.Array]], Place]) -> list[dict[str, Any]]:
    """Write the groups among the columns, and return the JSON that ``read_groups`` needs."""
    sharing: dict[int, dict[str, GroupColumn]] = {}
    for name, column in columns.items():
        if isinstance(column, GroupColumn):
            sharing.setdefault(id(column.sharing), {})[name] = column.narrow()
    described = []
    for group in sharing.values():
        one = next(iter(group.values())).sharing
        described.append({
            "names": list(group), "fresh": [column.fresh for column in group.values()], "together": one.together,
            "held": one.stored_rows, "values": write({str(i): c.values for i, c in enumerate(group.values())}),
            "inverse": write({"inverse": pa.array(one.inverse)}),
        })  # fmt: skip
    return described


def read_groups(described: Sequence[Any], read: Callable[[Place], Any], rows: int) -> dict[str, GroupColumn]:
    """Return the columns of the groups by name. The columns of a group share one inverse, as when they were written.

    Args:
        described: the description that ``write_groups`` returned.
        read: returns the arrays of a part by name.
        rows: the number of rows of each column.

    Raises:
        ValueError, KeyError, TypeError: the description is invalid.
    """
    columns: dict[str, GroupColumn] = {}
    for one in described:
        inverse, values = read(one["inverse"])["inverse"], list(read(one["values"]).values())
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
        places = as_ints(inverse, "int32")
        if not valid or (rows and not 0 <= places.min() <= places.max() < stored) or not 0 <= together <= len(values):
            raise ValueError("a group with invalid rows")
        sharing = RowSharing(places, stored, together, rows)
        for name, array, is_fresh in zip(names, values, fresh, strict=True):
            columns[name] = GroupColumn(array, sharing, is_fresh)
    return columns
