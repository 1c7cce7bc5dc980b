"""Blocks as Arrow tables: what they hold, and what Arrow cannot hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cedar.core.block import Block
from cedar.core.columns import TensorType, objects
from cedar.core.cursor import Keys
from cedar.core.errors import PipelineError
from cedar.datasets.to_arrow import to_arrow_table
from cedar.lake.sinks import write_parquet
from tests.datasets.blocks import block, files_of


def test_python_objects_are_refused(tmp_path: Path):
    odd = Block({"x": pa.array([1]), "o": objects([{1, 2}])}, Keys(np.arange(1)))
    with pytest.raises(PipelineError, match="column 'o' holds Python objects"):
        write_parquet([odd], tmp_path / "out")
    with pytest.raises(PipelineError, match="column 'o' holds Python objects"):
        to_arrow_table([odd])
    with pytest.raises(PipelineError, match="column 'c': Arrow has no type for complex128"):
        to_arrow_table([Block({"c": np.zeros((1, 2), dtype=complex)}, Keys(np.arange(1)))])
    assert files_of(tmp_path) == []


def test_a_type_that_changes(tmp_path: Path):
    blocks = [block({"x": [1]}), block({"x": ["a"]})]
    with pytest.raises(PipelineError, match="column 'x' is int64 in the first rows and large_string in later ones"):
        write_parquet(blocks, tmp_path / "out")
    with pytest.raises(PipelineError, match="column 'x' is int64"):
        to_arrow_table(blocks)
    with pytest.raises(PipelineError, match="column 'y' is missing in the first rows"):
        to_arrow_table([block({"x": [1]}), block({"x": [1], "y": [2]})])


def test_to_arrow_table():
    table = to_arrow_table([block({"x": [1, 2]}), block({"x": pa.array([], pa.int64())}), block({"x": [3]})])
    assert table.equals(pa.table({"x": [1, 2, 3]}))
    images = to_arrow_table([block({"i": np.arange(8).reshape(2, 2, 2)})])
    assert images["i"].to_pylist() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


def test_to_arrow_table_without_blocks():
    assert to_arrow_table([]).num_columns == 0
    empty = to_arrow_table([], {"x": pa.int64(), "v": TensorType((2,), "float32")})
    assert empty.schema == pa.schema([("x", pa.int64()), ("v", pa.list_(pa.float32(), 2))])
