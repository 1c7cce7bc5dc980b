"""Groups of rows, counted from the beginning of the epoch."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import cedar
from cedar import Skip
from tests.engine.delivery.few_rows import xs


def test_a_group_that_fails_is_skipped_as_a_whole() -> None:
    def grouped(columns: dict[str, Any]) -> dict[str, Any]:
        if 13 in columns["x"]:
            raise ValueError("13")
        return {"x": columns["x"]}

    p = cedar.from_arrow(pa.table({"x": pa.array(range(30), pa.int64())}))
    p = p.map_batches(grouped, "x", format="numpy", size=5, on_error=Skip()).batch(5, last="keep")
    loader = p.loader()
    assert xs(loader) == [list(range(i, i + 5)) if i != 10 else [] for i in range(0, 30, 5)]
    assert sum(loader.report().skipped.values()) == 5
