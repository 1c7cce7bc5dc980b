"""Rows that functions may change in place without anybody else seeing it."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from cedar.block import Block
from cedar.columns import Column


def own_copy(block: Block) -> Block:
    """The block with Python objects of its own; other columns are handed to functions read-only, and are shared.

    Objects that cannot be copied, such as handles, are shared, too.
    """
    columns = {name: _own(column) for name, column in block.columns.items()}
    return block.only_columns(columns)


def _own(column: Column) -> Column:
    if not isinstance(column, np.ndarray) or column.dtype != object:
        return column
    found = np.empty_like(column)
    for place, value in np.ndenumerate(column):
        found[place] = _copied(value)
    return found


def _copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - whatever a class does when it is copied
        return value
