"""Groups in an entry: rows are held once, share again when they are read, and what cannot be is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cedar.cache.group_columns import read_groups, write_groups
from cedar.core.groups.column import cut_each, grouped

ROWS = [[1, 2], [1, 2], [3], [1, 2], []]


def written() -> tuple[list[dict[str, Any]], list[dict[str, pa.Array]]]:
    """What is told of a group of two columns next to a plain one, and the parts that were written."""
    lists = pa.array(ROWS, pa.large_list(pa.int64()))
    parts: list[dict[str, pa.Array]] = []

    def write(arrays: dict[str, pa.Array]) -> list[int]:
        parts.append(arrays)
        return [len(parts) - 1]

    whole = {**grouped({"a": lists, "b": lists}), "x": np.arange(5)}
    return write_groups(cut_each(whole, 1, 5), write), parts


def read(parts: list[dict[str, pa.Array]]) -> Any:
    """What reads a part back."""
    return lambda place: parts[place[0]]


def test_groups_hold_what_their_rows_need_and_share_again() -> None:
    described, parts = written()
    columns = read_groups(described, read(parts), rows=4)
    assert list(columns) == ["a", "b"]
    assert columns["a"].plain().to_pylist() == columns["b"].plain().to_pylist() == ROWS[1:]
    assert columns["a"].sharing is columns["b"].sharing
    assert columns["a"].values.to_pylist() == [[1, 2], [3], []]


@pytest.mark.parametrize("wrong", [{"held": 2}, {"held": 4}, {"held": 3.0}, {"together": 3}, {"fresh": [1, 0]}])
def test_a_group_that_is_told_wrongly_is_refused(wrong: dict[str, Any]) -> None:
    (described,), parts = written()
    with pytest.raises(ValueError, match="invalid rows"):
        read_groups([described | wrong], read(parts), rows=4)
