"""Rows that functions may change in place without anyone else seeing it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

from cedar.core.block import Block
from cedar.core.columns import Column, objects


def own_copy(block: Block) -> Block:
    """The block with Python objects of its own; other columns are handed to functions read-only, and are shared.

    Objects that cannot be copied, such as handles, are shared, too.
    """
    return block.only_columns(own_columns(block.columns))


def own_columns(columns: Mapping[str, Column]) -> dict[str, Column]:
    """The same of columns without keys."""
    return {name: _own(column) for name, column in columns.items()}


def plain_copy(block: Block) -> Block:
    """The block with arrays, lists, dicts and sets of its own in columns of objects; instances of other classes are
    shared: copying one may copy all that it refers to.
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
    except Exception:  # noqa: BLE001 - whatever a class does when it is copied
        return value
