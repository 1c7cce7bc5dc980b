"""What the tests of predicates share: whether a file of one row group may hold one."""

from __future__ import annotations

import io

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from cedar.datasets.parquet_schema import leaf_bounds, leaves_of
from cedar.datasets.truth import excludes

NAN = float("nan")
BIG = 1 << 53
x = pl.col("x")


def holds(values, predicate, rows=None, **options):
    """Whether a file of one row group of column ``x`` may hold the predicate, checked against polars."""
    array = values if isinstance(values, pa.Array) else pa.array(values)
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": array}), sink, **options)
    group = pq.read_metadata(sink).row_group(0)
    ((leaf, kind),) = leaves_of(pq.read_metadata(sink)).values()
    excluded = excludes(predicate, lambda path: leaf_bounds(group.column(leaf), kind, len(array)), {"x": kind})
    if excluded:
        assert pl.DataFrame({"x": pl.Series(array)}).filter(predicate).height == 0
    return not excluded
