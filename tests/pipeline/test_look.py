"""Looks at a pipeline: the first rows, a flow chart, a picture."""

from __future__ import annotations

import polars as pl
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import col
from tests.watch.toy_tables import table


def test_head_is_a_frame_of_the_first_rows(tmp_path):
    path = str(tmp_path / "a.parquet")
    pq.write_table(table(), path)
    p = cedar.read_parquet(path).filter(col("f") > 5)
    rows = p.take(7).to_arrow()
    assert p.head(7).equals(pl.DataFrame(pl.from_arrow(rows)), null_equal=True)
    assert p.batch(4).head(7).equals(p.head(7))
    assert p.repeat().head(2).height == 2
    assert p.head(0).height == 0
    with pytest.raises(cedar.PipelineError):
        p.head(-1)
