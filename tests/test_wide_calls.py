"""What a batch costs grows with its cells in C, not with calls of Python for each column."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

import cedar
from tests.optimizer.test_growth import calls


def later_batches(columns, format="numpy"):
    table = pa.table({f"c{i}": np.arange(600) / (i + 1) for i in range(columns)})
    loader = cedar.from_arrow(table).shuffle().batch(64).loader(executor="inline", format=format, plan="off")
    batches = iter(loader)
    next(batches)
    count = calls(lambda: next(batches))
    loader.close()
    return count


def test_a_column_more_is_a_few_calls_more():
    for format, each in (("numpy", 3), ("arrow", 5), ("torch", 3)):
        later_batches(2, format)
        few, many = later_batches(2, format), later_batches(102, format)
        assert many - few <= each * 100
