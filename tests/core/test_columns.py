"""Columns: the bytes that their rows take."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core import columns
from cedar.core.columns import from_array, from_flags, from_numbers
from cedar.core.jagged import JaggedTensor
from cedar.core.values import build_column

LEAVES = st.sampled_from([pa.int64(), pa.bool_(), pa.float32(), pa.large_string(), pa.large_binary()])
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(pa.large_list, inner),
        st.builds(lambda kind: pa.list_(kind, 2), inner),
        st.builds(lambda kind: pa.struct([("a", kind), ("b", pa.int8())]), inner),
    ),
    max_leaves=3,
)


def some_value(kind, i):
    if i % 7 == 3:
        return None
    if pa.types.is_large_list(kind):
        return [some_value(kind.value_type, i + k) for k in range(i % 4)]
    if pa.types.is_fixed_size_list(kind):
        return [some_value(kind.value_type, i + k) for k in range(2)]
    if pa.types.is_struct(kind):
        return {"a": some_value(kind.field("a").type, i + 1), "b": 1}
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return "x" * (i % 5) if pa.types.is_large_string(kind) else b"y" * (i % 5)
    return i % 2 == 0 if pa.types.is_boolean(kind) else i


@given(NESTED, st.integers(0, 60), st.integers(0, 60), st.integers(0, 60))
def test_the_bytes_of_a_column_are_those_of_its_rows(kind, rows, start, count):
    whole = pa.array([some_value(kind, i) for i in range(rows)], kind)
    part = whole.slice(min(start, rows), count)
    assert columns.nbytes(part) == pytest.approx(part.nbytes, abs=8 + 2 * count), "but for bits of masks"


@given(NESTED, st.integers(0, 60), st.integers(0, 60), st.integers(0, 60), st.data())
def test_rows_are_taken_as_python_takes_them(kind, rows, start, count, data):
    """Of parts of arrays, with nulls at any depth and items below null lists; in any order, some of them often."""
    whole = below_nulls(pa.array([some_value(kind, i) for i in range(rows)], kind))
    part, beside = whole.slice(min(start, rows), count), pa.array(range(rows)).slice(min(start, rows), count)
    index = data.draw(st.lists(st.integers(0, len(part) - 1), max_size=80)) if len(part) else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "_MIN_ROWS_TO_GATHER", data.draw(st.sampled_from([0, 10, 1000])))
        taken = columns.take_arrays([beside, part, part], np.array(index, dtype=np.int64))
    held = part.to_pylist()
    assert taken[0].to_pylist() == [beside[i].as_py() for i in index]
    for array in taken[1:]:
        array.validate(full=True)
        assert array.type == kind
        assert array.to_pylist() == [held[i] for i in index]


def below_nulls(array):
    """The same values; below null lists there are items all the same."""
    if not pa.types.is_large_list(array.type) or not len(array):
        return array
    alive = array.is_valid()
    full = pa.array([row if row is not None else [None] for row in array.to_pylist()], array.type)
    bits = [alive.buffers()[1], full.buffers()[1]]
    return pa.Array.from_buffers(array.type, len(array), bits, children=[full.values])


def test_no_row_beyond_the_end_is_taken():
    lists = pa.array([[1], [2, 3]] * 400, pa.large_list(pa.int64()))
    for index in (np.arange(800)[::-1] + 1, np.arange(800) + 1):
        with pytest.raises(IndexError):
            columns.take(lists, index)


def test_columns_of_batches_that_are_handed_over_have_their_bytes():
    numbers, starts = np.arange(6), np.array([0, 2, 6])
    inner = JaggedTensor(numbers, starts)
    assert columns.nbytes(inner) == 48 + 24
    assert columns.nbytes(JaggedTensor(inner, np.array([0, 2]))) == 72 + 16
    assert columns.nbytes({"a": numbers, "b": {"c": inner}}) == 48 + 72
    assert columns.nbytes(JaggedTensor(["text"] * 6, starts)) > 24


def test_nbytes_of_objects_that_are_classes():
    class Odd:
        def nbytes(self):
            return 1

    assert columns.nbytes(columns.objects([np.ndarray, Odd(), np.zeros(9), None])) == 3 * 64 + 72


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


TEXT = """
import sys
import cedar

with open(sys.argv[1], "w") as file:
    file.write("\\n".join(f"line {i}" for i in range(300)))
p = cedar.read_text(sys.argv[1]).map(str.upper, "text").filter(cedar.col("text") != "")
p = p.with_columns(odd=cedar.col("line") % 2 == 1)
assert sum(len(batch["text"]) for batch in p.batch(8).loader(plan="off", executor="inline")) == 300
found = {"pandas", "numpy.ma", "pyarrow.parquet", "cedar.operators.join"} & {*sys.modules}
assert not found, found
"""


def test_lines_of_text_and_booleans_import_only_what_they_need(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", TEXT, str(tmp_path / "x.txt")], check=True, timeout=120)


ARRAYS = """
import sys
import numpy as np
import cedar

arrays = {"x": np.arange(300), "v": np.zeros((300, 3), np.float32), "even": np.arange(300) % 2 == 0}
p = cedar.from_numpy(arrays).map(lambda x: x + 1, "x", into="y").batch(8)
assert sum(len(batch["y"]) for batch in p.loader(executor="inline")) == 300
found = {"pandas", "pyarrow.parquet", "fsspec", "asyncio", "polars"} & {*sys.modules}
assert not found, found
"""


def test_arrays_of_numbers_import_only_what_they_need() -> None:
    subprocess.run([sys.executable, "-c", ARRAYS], check=True, timeout=120)


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
