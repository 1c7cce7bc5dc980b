"""Copy rows, so that functions can change them in place without side effects."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

from cedar.core.block import Block
from cedar.core.columns import Column, objects


def own_copy(block: Block) -> Block:
    """Return the block with deep copies of its Python objects. Functions cannot change other columns, which are shared.

    Objects that cannot be copied, such as file handles, are shared too.
    """
    return block.only_columns(own_columns(block.columns))


def own_columns(columns: Mapping[str, Column]) -> dict[str, Column]:
    """Return columns with deep copies of their Python objects."""
    return {name: _own(column) for name, column in columns.items()}


def plain_copy(block: Block) -> Block:
    """Return the block with copies of the arrays, lists, dicts, tuples and sets in its object columns.

    Instances of other classes are shared, because copying one may copy everything that it refers to.
    """
    columns = dict(block.columns)
    for name, column in columns.items():
        if isinstance(column, np.ndarray) and column.dtype == object:
            columns[name] = objects([_plain(value) for value in column])
    return block.only_columns(columns)


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind is np.ndarray:
        return value.copy() if value.dtype != object else _own(value)
    if kind is dict:
        return {key: _plain(one) for key, one in value.items()}
    return kind(map(_plain, value)) if kind in (list, tuple, set) else value


def _own(column: Column) -> Column:
    if not isinstance(column, np.ndarray) or column.dtype != object:
        return column
    copies = np.empty_like(column)
    for place, value in np.ndenumerate(column):
        copies[place] = _copied(value)
    return copies


def _copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - copying a user's object may raise anything
        return value
