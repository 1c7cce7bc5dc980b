"""Tables in memory: Arrow's, and polars frames."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pytest

from cedar.core.errors import PipelineError
from cedar.datasets.table import from_arrow, from_polars
from tests.datasets.arrow_tables import table
from tests.datasets.reading import column, read_rows, travelled


@pytest.mark.heavy
def test_from_arrow():
    data = table(70_000)
    source = from_arrow(data)
    assert [(s.start, s.rows) for s in source.splits()] == [(0, 65_536), (65_536, 4_464)]
    assert column(source, "id") == list(range(70_000))
    assert source.row_bytes is not None
    assert read_rows(travelled(from_arrow(data.slice(3, 5)))) == data.slice(3, 5).to_pylist()
    assert read_rows(from_arrow(data.to_batches()[0].slice(0, 2))) == data.slice(0, 2).to_pylist()
    assert read_rows(source.select(["id"]))[1] == {"id": 1}


def test_from_arrow_with_many_chunks_and_none():
    chunks = pa.chunked_array([[1], [], [2, 3]], pa.int64())
    assert column(from_arrow(pa.table({"x": chunks})), "x") == [1, 2, 3]
    assert from_arrow(pa.table({"x": pa.array([], pa.int64())})).splits() == []


def test_from_polars():
    frame = pl.DataFrame({"x": [1, 2], "c": pl.Series(["a", "b"], dtype=pl.Categorical), "l": [[1], []]})
    source = from_polars(frame)
    assert source.schema() == {"x": pa.int64(), "c": pa.large_string(), "l": pa.large_list(pa.int64())}
    assert read_rows(source) == frame.to_dicts()
    assert source.describe() == "from_polars(2 rows)"


def test_what_is_no_table():
    with pytest.raises(PipelineError, match=r"from_arrow takes a pyarrow\.Table") as error:
        from_arrow(pl.DataFrame({"x": [1]}))
    assert "from_polars" in (error.value.fix or "")
    with pytest.raises(PipelineError, match=r"takes a polars\.DataFrame, not LazyFrame") as error:
        from_polars(pl.LazyFrame({"x": [1]}))
    assert "collect" in (error.value.fix or "")
    with pytest.raises(PipelineError, match=r"takes a polars\.DataFrame, not Table"):
        from_polars(pa.table({"x": [1]}))
    with pytest.raises(PipelineError, match="two columns 'a'"):
        from_arrow(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]))
