"""The table of docs/columns.md: what each column kind becomes, read from the document itself."""

import datetime as dt
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar.core.convert import tensor_of, to_arrow, to_numpy, to_numpy_each, to_torch, to_torch_each
from cedar.core.cursor import Keys
from cedar.core.errors import CedarError, PipelineError, RowError
from cedar.core.jagged import JaggedTensor

DOCUMENT = Path(__file__).parents[2] / "docs" / "columns.md"

# The column of each row of the table: without nulls, and with one.
COLUMNS: dict[str, tuple[Any, Any]] = {
    "int8 ... uint64": (pa.array([1, 2]), pa.array([1, None])),
    "bool": (pa.array([True, False]), pa.array([True, None])),
    "float16, float32, float64": (pa.array([1.0, 2.0]), pa.array([1.0, None])),
    "string": (pa.array(["a", "b"], pa.large_string()), pa.array(["a", None], pa.large_string())),
    "binary": (pa.array([b"a", b"b"], pa.large_binary()), pa.array([b"a", None], pa.large_binary())),
    "timestamp, date": (pa.array([dt.datetime(2024, 1, 1)] * 2), pa.array([dt.datetime(2024, 1, 1), None])),
    "duration, time": (pa.array([dt.timedelta(1)] * 2), pa.array([dt.timedelta(1), None])),
    "decimal": (pa.array([Decimal("1.5")] * 2), pa.array([Decimal("1.5"), None])),
    "null": (None, pa.nulls(2)),
    "list of numbers": (
        pa.array([[1, 2], [3]], pa.large_list(pa.int64())),
        pa.array([[1], None], pa.large_list(pa.int64())),
    ),
    "list of strings": (
        pa.array([["a"], ["b"]], pa.large_list(pa.large_string())),
        pa.array([["a"], None], pa.large_list(pa.large_string())),
    ),
    "list of lists": (
        pa.array([[[1]], [[2], []]], pa.large_list(pa.large_list(pa.int64()))),
        pa.array([[[1]], None], pa.large_list(pa.large_list(pa.int64()))),
    ),
    "fixed-size list": (
        pa.array([[1, 2]] * 2, pa.list_(pa.int64(), 2)),
        pa.array([[1, 2], None], pa.list_(pa.int64(), 2)),
    ),
    "struct": (pa.array([{"a": 1.0}] * 2), pa.array([{"a": 1.0}, None])),
    "ndarray": (np.zeros((2, 3), dtype=np.float32), None),
    "object": (np.array([{}, {1}], dtype=object), np.array([{}, None], dtype=object)),
}


def table() -> dict[str, list[str]]:
    lines = DOCUMENT.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| column"))
    rows = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        kind, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        rows[kind] = cells
    return rows


def describe(make: Any, column: Any) -> str:
    """A result in the words of the table."""
    if column is None:
        return "-"
    try:
        value = make(column, "x")
    except RowError:
        return "RowError"
    except PipelineError:
        return "PipelineError"
    return words(value)


def words(value: Any) -> str:
    if isinstance(value, JaggedTensor):
        return f"JaggedTensor of {words(value.values)}"
    if isinstance(value, dict):
        return f"dict of {words(next(iter(value.values())))}"
    if isinstance(value, list):
        return "list with None" if None in value else "list"
    if isinstance(value, torch.Tensor):
        gap = value.is_floating_point() and bool(value.isnan().any())
        return "tensor with NaN" if gap else "tensor"
    if value.dtype.kind in "mM":
        return "datetime64" if value.dtype.kind == "M" else "timedelta64"
    if value.dtype == object:
        return "object ndarray with None" if None in value.tolist() else "object ndarray"
    return "ndarray with NaN" if value.dtype.kind == "f" and np.isnan(value).any() else "ndarray"


@pytest.mark.parametrize("kind", list(COLUMNS))
def test_the_documented_table(kind: str) -> None:
    plain, with_null = COLUMNS[kind]
    numpy_plain, numpy_null, torch_plain, torch_null, _ = table()[kind]
    if "NaT" in numpy_null:
        assert np.isnat(to_numpy(with_null, "x")).tolist() == [False, True]
        numpy_null = numpy_null.removesuffix(" with NaT")
    assert describe(to_numpy, plain) == numpy_plain
    assert describe(to_numpy, with_null) == numpy_null
    assert describe(to_torch, plain) == torch_plain
    assert describe(to_torch, with_null) == torch_null


def test_the_table_is_complete() -> None:
    assert set(table()) == set(COLUMNS)


def address(value: Any) -> int:
    return int(value.data_ptr() if isinstance(value, torch.Tensor) else value.__array_interface__["data"][0])


@pytest.mark.parametrize("name", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("make", [to_numpy, to_torch])
def test_numbers_share_memory(make: Any, name: str) -> None:
    column = pa.array(np.arange(10, dtype=name)).slice(3, 4)
    value = make(column, "x")
    assert value.tolist() == [3, 4, 5, 6]
    assert str(value.dtype).removeprefix("torch.") == name
    assert address(value) == column.buffers()[1].address + 3 * np.dtype(name).itemsize


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
@pytest.mark.parametrize("make", [to_numpy, to_torch])
def test_floats_share_memory_and_null_is_nan(make: Any, name: str) -> None:
    column = pa.array(np.arange(4, dtype=name))
    assert address(make(column, "x")) == column.buffers()[1].address
    gaps = make(pa.array([1.0, None]).cast(pa.type_for_alias(name)), "x")
    assert str(gaps.dtype).removeprefix("torch.") == name
    assert np.isnan(np.asarray(gaps)).tolist() == [False, True]


@pytest.mark.parametrize("each", [to_numpy_each, to_torch_each])
@given(values=st.lists(st.none() | st.floats(width=16), min_size=1, max_size=40), data=st.data())
def test_columns_with_nulls_are_converted_together_wherever_they_begin(
    each: Any, values: list[float | None], data: st.DataObject
) -> None:
    columns = {}
    for number, kind in enumerate((pa.float16(), pa.float32(), pa.float64(), pa.float32())):
        before = data.draw(st.integers(0, 20))
        held = [np.float16(v) if v is not None else None for v in [*[9.0] * before, *values, None]]
        columns[f"c{number}"] = pa.array(held, kind).slice(before, len(values))
    wanted = [np.nan if v is None else v for v in values]
    for column in each(columns).values():
        np.testing.assert_array_equal(np.asarray(column, dtype=np.float64), wanted)


@pytest.mark.parametrize("make", [to_numpy, to_torch])
def test_lists_share_memory_also_in_slices(make: Any) -> None:
    column = pa.array([[1, 2], [3], [], [4, 5, 6]], pa.large_list(pa.int64()))
    whole = make(column, "x")
    assert address(whole.values) == column.values.buffers()[1].address
    assert address(whole.offsets) == column.buffers()[1].address
    part = make(column.slice(1, 3), "x")
    assert part.to_list() == [[3], [], [4, 5, 6]]
    assert part.offsets.tolist() == [0, 1, 1, 4]
    assert address(part.values) == column.values.buffers()[1].address + 16


@pytest.mark.parametrize("make", [to_numpy, to_torch])
def test_fixed_shapes_share_memory(make: Any) -> None:
    column = pa.array([[[1, 2], [3, 4]]] * 3, pa.list_(pa.list_(pa.int64(), 2), 2)).slice(1, 2)
    value = make(column, "x")
    assert tuple(value.shape) == (2, 2, 2)
    assert address(value) == column.values.values.buffers()[1].address + 32
    array = np.arange(6.0).reshape(2, 3)
    assert address(make(array, "x")) == address(array)


@pytest.mark.parametrize("name", ["bool", "int8", "uint16", "float16", "complex64", "float64"])
def test_read_only_arrays_share_memory_without_a_warning(name: str) -> None:
    array = np.ones((2, 3), dtype=name)
    array.flags.writeable = False
    tensor = to_torch(array, "x")
    assert tuple(tensor.shape) == (2, 3)
    assert str(tensor.dtype) == f"torch.{name}"
    assert address(tensor) == address(array)


def test_tensors_of_strange_arrays() -> None:
    assert to_torch(np.arange(3)[::-1], "x").tolist() == [2, 1, 0]
    assert to_torch(np.arange(3, dtype=">i4"), "x").tolist() == [0, 1, 2]
    assert to_torch(np.zeros((2, 0)), "x").shape == (2, 0)
    assert tensor_of(np.array(5, ">i4")).shape == ()
    assert tensor_of(np.arange(6, dtype=">i2").reshape(2, 3).T).tolist() == [[0, 3], [1, 4], [2, 5]]
    assert to_torch(np.zeros((2, 1), "M8[s]"), "x").tolist() == [[0], [0]]
    with pytest.raises(RowError, match="NaT"):
        to_torch(np.array([["2020-01-01"], ["NaT"]], "M8[s]"), "x")
    with pytest.raises(PipelineError, match="no torch dtype"):
        to_torch(np.zeros((2, 1), dtype=[("a", "i4")]), "x")


def test_an_error_names_the_column_and_the_row() -> None:
    column = pa.array([[1], [2, None]], pa.large_list(pa.int64()))
    with pytest.raises(RowError, match=r"column 'ids'.*first at row 1 of the batch") as caught:
        to_torch(column, "ids", Keys(np.array([10, 11]), file=3))
    assert caught.value.row is not None
    assert (caught.value.row.file, caught.value.row.row) == (3, 11)
    with pytest.raises(RowError, match="row 2") as caught:
        to_numpy(pa.array([[[1]], [], [[2], None]], pa.large_list(pa.large_list(pa.int64()))), "x")
    with pytest.raises(RowError, match=r"fill_null\(\[\]\)"):
        to_numpy(pa.array([[1], None], pa.large_list(pa.int64())), "x")
    with pytest.raises(RowError, match="'s.a'"):
        to_numpy(pa.array([{"a": 1}, {"a": None}]), "s")


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([1, None], pa.int64()),
        ([[1], [None]], pa.large_list(pa.int64())),
        ([[1], None], pa.large_list(pa.int64())),
        ([[1, 2], [None, 3]], pa.list_(pa.int64(), 2)),
        ([{"u": 1}, {"u": None}], None),
        ([{"u": 1}, None], None),
        ([{"t": {"u": 1}}, {"t": {"u": None}}], None),
        ([{"t": {"u": 1}}, {"t": None}], None),
        ([{"u": [1]}, {"u": [None]}], None),
        ([{"u": [1]}, {"u": None}], None),
        ([[{"u": 1}], [{"u": None}]], None),
    ],
)
@pytest.mark.parametrize("name", ["x", "a.b"])
def test_what_an_error_says_to_do_about_nulls_does_it(rows: list[Any], kind: Any, name: str) -> None:
    p = cedar.from_arrow(pa.table({name: pa.array(rows, kind)}))
    with pytest.raises(RowError, match="null") as caught:
        list(p.batch(2))
    said = (caught.value.fix or "").partition(", or ")[0].replace("value)", "0)")
    said = said.replace("struct(...)", "struct(polars.lit(0).alias('u'))")
    filled = eval(f"p.{said}", {"p": p, "col": cedar.col, "polars": pl})
    assert len(list(filled.batch(2))) == 1


def test_a_null_struct_makes_its_fields_null() -> None:
    assert np.isnan(to_numpy(pa.array([{"a": 1.0}, None]), "s")["a"]).tolist() == [False, True]
    sliced = pa.array([{"a": 1}, {"a": 2}, {"a": 3}]).slice(1, 2)
    assert to_numpy(sliced, "s")["a"].tolist() == [2, 3]


def test_times_keep_their_unit() -> None:
    assert to_numpy(pa.array([dt.date(2024, 1, 2)]), "x").dtype == "M8[D]"
    assert to_numpy(pa.array([dt.date(2024, 1, 2)], pa.date64()), "x").dtype == "M8[D]"
    assert to_numpy(pa.array([5], pa.timestamp("ms", "UTC")), "x").dtype == "M8[ms]"
    assert to_numpy(pa.array([dt.time(0, 0, 1)], pa.time32("s")), "x").dtype == "m8[s]"
    assert to_torch(pa.array([dt.time(0, 0, 1)], pa.time32("s")), "x").tolist() == [1]
    assert to_torch(pa.array([dt.date(1970, 1, 3)]), "x").tolist() == [2]
    assert to_torch(pa.array([5], pa.timestamp("ms")), "x").dtype == torch.int64


def test_kinds_that_are_not_canonical_are_taken_too() -> None:
    assert to_numpy(pa.array(["a", None]).dictionary_encode(), "x").tolist() == ["a", None]
    assert to_numpy(pa.array([[1], [2]]), "x").to_list() == [[1], [2]]
    assert to_torch(pa.array([["a", "b"]], pa.list_(pa.large_string(), 2)), "x").to_list() == [["a", "b"]]
    pairs = pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))
    assert to_numpy(pairs, "x").to_list() == [[{"key": "k", "value": 1}]]


@pytest.mark.parametrize(
    "array",
    [np.arange(3), np.zeros((2, 3), np.float32), np.zeros((2, 2, 0)), np.zeros((0, 2)), np.ones((2, 2), bool)],
)
def test_ndarrays_to_arrow_and_back(array: np.ndarray) -> None:
    column = to_arrow(array, "x")
    assert len(column) == len(array)
    assert column.to_pylist() == array.tolist()
    if array.size:
        np.testing.assert_array_equal(to_numpy(column, "x"), array)


def test_arrow_of_ndarrays_shares_memory() -> None:
    array = np.arange(6.0).reshape(2, 3)
    assert to_arrow(array, "x").values.buffers()[1].address == address(array)
    column = pa.array([1])
    assert to_arrow(column, "x") is column


def test_objects_to_arrow() -> None:
    assert to_arrow(np.array([{"a": 1}, None], dtype=object), "x").to_pylist() == [{"a": 1}, None]
    assert to_arrow(np.array(["a", None], dtype=object), "x").type == pa.large_string()
    for values in ([1, "a"], [object()]):
        with pytest.raises(CedarError, match="'x'"):
            to_arrow(np.array(values, dtype=object), "x")
    with pytest.raises(CedarError, match="complex128"):
        to_arrow(np.array([1j]), "x")


@pytest.mark.parametrize("convert", [to_numpy_each, to_torch_each])
def test_lists_that_are_converted_together_are_those_converted_alone(convert):
    draw = random.Random(3)
    for _ in range(50):
        rows = draw.randint(1, 9)
        start = draw.randint(0, rows)
        columns = {}
        for i, kind in enumerate([pa.int64(), pa.float32(), pa.int64(), pa.string(), pa.float64()]):
            values = [[str(draw.random()) if kind == pa.string() else i] * draw.randint(0, 3) for _ in range(rows)]
            if i == 4:
                values[0] = [None, 1.0]
            columns[f"c{i}"] = pa.array(values, pa.large_list(pa.large_string() if kind == pa.string() else kind))[
                start:
            ]
        together = convert(columns)
        for name, column in columns.items():
            (alone,) = convert({name: column}).values()
            assert str(together[name].to_list()) == str(alone.to_list())  # NaN is not NaN
            assert together[name].offsets[0] == 0


@pytest.mark.parametrize("values", [np.zeros((2, 3), np.longdouble), np.zeros(2, np.clongdouble)])
def test_numbers_that_torch_does_not_have_are_refused(values: np.ndarray) -> None:
    with pytest.raises(PipelineError, match=f"column 'x' of {values.dtype} has no torch dtype"):
        to_torch(values, "x")
