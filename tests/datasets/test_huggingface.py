from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pytest

from cedar.core.errors import PipelineError
from cedar.datasets.huggingface import from_huggingface
from tests.datasets.reading import column, read_rows


def dataset(data: pa.Table, indices: list[int] | None = None) -> SimpleNamespace:
    """What datasets.Dataset keeps: wrapped tables."""
    order = None if indices is None else SimpleNamespace(table=pa.table({"indices": pa.array(indices, pa.uint64())}))
    return SimpleNamespace(data=SimpleNamespace(table=data), _indices=order)


def test_rows_in_the_order_of_the_table():
    data = pa.table({"x": [1, 2, 3], "image": [{"bytes": b"a", "path": None}] * 3})
    assert read_rows(from_huggingface(dataset(data))) == data.to_pylist()


def test_rows_in_the_order_of_the_indices():
    data = pa.table({"x": pa.chunked_array([list(range(50)), list(range(50, 100))])})
    source = from_huggingface(dataset(data, [99, 3, 3, 50]))
    assert column(source, "x") == [99, 3, 3, 50]
    assert source.describe() == "from_huggingface(4 rows)"


def test_splits_are_small_where_rows_are_large():
    data = pa.table({"image": [b"x" * 2_000_000] * 40})
    assert [s.rows for s in from_huggingface(dataset(data)).splits()] == [32, 8]


@pytest.mark.parametrize("kind", ["DatasetDict", "IterableDataset", "list"])
def test_what_is_no_dataset(kind: str):
    with pytest.raises(PipelineError, match=rf"takes a datasets\.Dataset, not {kind}") as error:
        from_huggingface(type(kind, (), {})())
    assert (error.value.fix is None) == (kind == "list")
