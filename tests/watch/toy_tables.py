"""A table of columns of several kinds, with nulls."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def table(rows=5000):
    drawn = np.random.default_rng(1)
    values = drawn.normal(5, 2, rows)
    values[::100] = np.nan
    lists = [list(range(n)) for n in drawn.integers(0, 9, rows)]
    return pa.table(
        {
            "n": pa.array(drawn.integers(0, 50, rows), mask=drawn.random(rows) < 0.1),
            "f": values,
            "s": [("a", "b", "c")[int(i)] for i in drawn.integers(0, 3, rows) * drawn.integers(0, 2, rows)],
            "l": lists,
        }
    )
