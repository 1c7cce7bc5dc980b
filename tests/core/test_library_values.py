"""Values of well-known packages: what counts in a digest, and what does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch

from cedar.core.digests import digest_of, examine

ALIKE = {
    "chunks": (pa.chunked_array([[1], [2, 3]]), pa.chunked_array([[1, 2, 3]])),
    "a slice": (pa.array([9, 1, 2]).slice(1), pa.array([1, 2])),
    "a table and its batch": (pa.table({"x": [1]}), pa.record_batch({"x": [1]})),
    "strides": (torch.arange(6).reshape(2, 3).T, torch.tensor([[0, 3], [1, 4], [2, 5]])),
    "a scalar's array": (np.float32(2), np.float32(2)),
    "expressions": (pl.col("a") + 1, pl.col("a") + 1),
}
APART = {
    "types": (pa.array([1], pa.int32()), pa.array([1], pa.int64())),
    "names": (pa.table({"x": [1]}), pa.table({"y": [1]})),
    "shapes": (torch.zeros(2, 3), torch.zeros(3, 2)),
    "dtypes": (torch.zeros(2, dtype=torch.int32), torch.zeros(2, dtype=torch.float32)),
    "parameters": (torch.zeros(2), torch.nn.Parameter(torch.zeros(2))),
    "scalars": (np.float32(2), np.float64(2)),
    "metadata": (np.dtype("i4"), np.dtype("i4", metadata={"a": 1})),
    "ufuncs": (np.add, np.multiply),
    "series": (pl.Series("x", [1]), pl.Series("y", [1])),
}


@pytest.mark.parametrize("name", ALIKE)
def test_how_values_lie_in_memory_does_not_count(name: str) -> None:
    one, two = ALIKE[name]
    assert digest_of(one) == digest_of(two)


@pytest.mark.parametrize("name", APART)
def test_types_names_and_shapes_count(name: str) -> None:
    one, two = APART[name]
    assert digest_of(one) != digest_of(two)


def test_values_of_expressions_count_only_with_data() -> None:
    one, two = pl.col("a").is_in([1, 2]), pl.col("a").is_in([1, 3])
    assert digest_of(one) != digest_of(two)
    assert digest_of(pl.col("a"), data=False) != digest_of(pl.col("b"), data=False)


@pytest.mark.parametrize(
    "made",
    [
        lambda: pl.col("a").map_elements(lambda x: x, return_dtype=pl.Int64),
        lambda: torch.sparse_coo_tensor(torch.tensor([[0]]), torch.tensor([1.0]), (2,), check_invariants=True),
    ],
)
def test_what_cannot_be_read_is_said(made: Any) -> None:
    value = made()
    assert examine(lambda: value).unknown
