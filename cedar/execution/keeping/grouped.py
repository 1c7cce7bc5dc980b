"""Groups in an entry: the rows that they hold, and apart from them the inverse, which is of another length."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from cedar.columns import Column
from cedar.groups.column import GroupColumn, Sharing
from cedar.groups.encode import as_ints

Place = list[int] | None


def write_groups(columns: Mapping[str, Column], write: Callable[[dict[str, pa.Array]], Place]) -> list[dict[str, Any]]:
    """Write the groups among the columns; returns what ``read_groups`` needs, as JSON."""
    sharing: dict[int, dict[str, GroupColumn]] = {}
    for name, column in columns.items():
        if isinstance(column, GroupColumn):
            sharing.setdefault(id(column.sharing), {})[name] = column.narrow()
    described = []
    for group in sharing.values():
        one = next(iter(group.values())).sharing
        described.append({
            "names": list(group), "fresh": [column.fresh for column in group.values()], "together": one.together,
            "held": one.held, "values": write({str(i): column.values for i, column in enumerate(group.values())}),
            "inverse": write({"inverse": pa.array(one.inverse)}),
        })  # fmt: skip
    return described


def read_groups(described: Sequence[Mapping[str, Any]], read: Callable[[Place], Any]) -> dict[str, GroupColumn]:
    """The columns of groups, by name; those of one group share again."""
    found = {}
    for one in described:
        inverse = as_ints(read(one["inverse"])["inverse"], "int32")
        sharing = Sharing(inverse, one["held"], one["together"], len(inverse))
        for name, values, fresh in zip(one["names"], read(one["values"]).values(), one["fresh"], strict=True):
            found[name] = GroupColumn(values, sharing, fresh)
    return found
