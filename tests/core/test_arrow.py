"""Arrow arrays made without ``pa.array``: the same as it makes, and without what it imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.arrow import from_array, from_flags, from_numbers
from cedar.core.values import build_column

NUMBERS = st.lists(st.none() | st.integers(-100, 100), max_size=20)
FLOATS = st.lists(st.none() | st.floats(width=64), max_size=20)


@given(NUMBERS, st.sampled_from([pa.int64(), pa.int8()]))
def test_whole_numbers_and_nones(values: list[Any], kind: pa.DataType) -> None:
    same(build_column(values, kind), pa.array(values, kind))


@given(FLOATS)
def test_floats_and_nones(values: list[Any]) -> None:
    same(build_column(values, pa.float64()), pa.array(values, pa.float64(), from_pandas=False))


@given(st.lists(st.none() | NUMBERS, max_size=20), st.sampled_from([pa.large_list(pa.int64()), pa.list_(pa.int64())]))
def test_lists_and_nones(values: list[Any], kind: pa.DataType) -> None:
    same(build_column(values, kind), pa.array(values, kind))


@pytest.mark.parametrize("kind", ["?", "i1", "u8", "f2", "f4", "f8", "M8[s]"])
def test_arrays(kind: str) -> None:
    array = np.arange(9).astype(kind)
    for each in (array, array[:0], array[::2], array[3:]):
        same(from_array(each), pa.array(each))


def test_flags_and_what_is_missing() -> None:
    flags = np.arange(11) % 3 == 0
    same(from_flags(flags), pa.array(flags))
    same(from_numbers(np.arange(11), missing=flags), pa.array(np.arange(11), mask=flags))


def same(made: pa.Array, wanted: pa.Array) -> None:
    made.validate(full=True)
    assert made.type == wanted.type
    assert made.is_valid().equals(wanted.is_valid())
    assert repr(made.to_pylist()) == repr(wanted.to_pylist())  # with NaN and -0.0


SCRIPT = """
import sys
import cedar

rows = [{"x": i, "t": None if i % 3 else i} for i in range(300)]
p = cedar.from_items(rows).map(lambda x: [x] * (x % 3), "x", into="l", dtype=list[int])
p = p.map_batches(lambda batch: {"x": batch["x"] + 1}, "x", format="numpy")
p = p.filter(lambda x: x > 250, "x").map(lambda x: x + 1, "x", dtype=int).drop("t").batch(8)
for plan in ("off", "auto"):
    for _ in p.loader(plan=plan, executor="inline"):
        pass
sys.exit("pandas" in sys.modules)
"""


def test_functions_of_rows_import_no_pandas() -> None:
    """It takes a quarter of a second: for lists, values that are missing, and blocks that a filter empties."""
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=120)


SCAN = """
import sys
import polars as pl
import cedar

frame = pl.DataFrame({"x": [0.5, None, float("nan"), 2.0] * 64, "n": range(256)})
frame.write_parquet(sys.argv[1])
p = cedar.read_parquet(sys.argv[1]).filter(cedar.col("x") > 0.7).filter(cedar.col("n").is_not_null()).batch(8)
assert sum(len(batch["n"]) for batch in p.loader(executor="inline")) == 128
sys.exit("pandas" in sys.modules)
"""


LOCAL = """
import sys
import pyarrow as pa, pyarrow.parquet as pq
import cedar

pq.write_table(pa.table({"x": range(100)}), sys.argv[1])
heavy = {"fsspec", "asyncio", "polars", "torch", "numba"} - set(sys.modules)
next(iter(cedar.read_parquet(sys.argv[1]).map(lambda x: x + 1, "x").batch(8).loader()))
sys.exit(", ".join(heavy & set(sys.modules)) or None)
"""


@pytest.mark.heavy
def test_the_first_batch_of_local_files_waits_for_no_module_of_storage_or_expressions(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", LOCAL, str(tmp_path / "x.parquet")], check=True, timeout=120)


@pytest.mark.heavy
def test_filters_of_a_scan_import_no_pandas(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", SCAN, str(tmp_path / "x.parquet")], check=True, timeout=120)
