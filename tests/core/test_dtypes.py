from __future__ import annotations

import datetime as dt
import decimal
import functools
from collections.abc import Iterator
from typing import Annotated, Any, Optional

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.columns import OBJECT, TensorType
from cedar.core.dtypes import infer_type, item_annotation, return_annotation, type_from_annotation, type_from_dtype
from cedar.core.errors import PipelineError
from cedar.core.values import ValueMismatch, build_column


@pytest.mark.parametrize(
    ("annotation", "kind"),
    [
        (int, pa.int64()),
        (float, pa.float64()),
        (bool, pa.bool_()),
        (str, pa.large_string()),
        (bytes, pa.large_binary()),
        (dt.datetime, pa.timestamp("us")),
        (np.float32, pa.float32()),
        (list[int], pa.large_list(pa.int64())),
        (tuple[float, ...], pa.large_list(pa.float64())),
        (list[list[str]], pa.large_list(pa.large_list(pa.large_string()))),
        (Optional[int], pa.int64()),  # noqa: UP045
        (str | None, pa.large_string()),
        (int | float, pa.float64()),
        (Annotated[int, "ignored"], pa.int64()),
        (int | str, None),
        (np.ndarray, None),
        (list, None),
        (dict, None),
        (tuple[int, str], None),
        (Any, None),
        (None, None),
    ],
)
def test_annotations(annotation, kind):
    assert type_from_annotation(annotation) == kind


def test_return_annotations_are_found_and_resolved():
    def plain(x) -> list[int]:
        return [x]

    def unknown(x) -> NotThere:  # type: ignore[name-defined]  # noqa: F821
        return x

    class Model:
        def __call__(self, x: float) -> float:
            return x

    assert return_annotation(plain) == list[int]
    assert return_annotation(functools.partial(plain, 1)) == list[int]
    assert return_annotation(Model) is return_annotation(Model()) is float
    assert return_annotation(unknown) is return_annotation(abs) is return_annotation(int) is None


def test_item_annotations():
    assert item_annotation(list[int]) is item_annotation(Iterator[int]) is item_annotation(tuple[int, ...]) is int
    assert item_annotation(dict[str, int]) is item_annotation(tuple[int, str]) is item_annotation(list) is None


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        ("float32", pa.float32()),
        (np.float32, pa.float32()),
        (np.dtype("i8"), pa.int64()),
        ("string", pa.large_string()),
        (str, pa.large_string()),
        (bytes, pa.large_binary()),
        (object, OBJECT),
        (torch.float32, pa.float32()),
        (pa.string(), pa.large_string()),
        (pa.list_(pa.int32()), pa.large_list(pa.int32())),
        (list[int], pa.large_list(pa.int64())),
        (np.dtype(("f4", (3,))), TensorType((3,), "float32")),
        (TensorType((3,), "float32"), TensorType((3,), "float32")),
        ("datetime64[ns]", pa.timestamp("ns")),
        (OBJECT, OBJECT),
        (pl.Float32, pa.float32()),
        (pl.Date(), pa.date32()),
        (pl.String, pa.large_string()),
        (pl.Categorical, pa.large_string()),
        (pl.Datetime("ms"), pa.timestamp("ms")),
        (pl.List(pl.Int32), pa.large_list(pa.int32())),
        (pl.Struct({"a": pl.Int8}), pa.struct([("a", pa.int8())])),
        (pl.Object, OBJECT),
    ],
)
def test_dtypes(dtype, kind):
    assert type_from_dtype(dtype) == kind


@pytest.mark.parametrize("dtype", ["foo", 5, None, [1], pl.List, pl.Struct, pl.Series, dict])
def test_what_is_no_dtype(dtype):
    with pytest.raises(PipelineError, match="is not a type of column") as caught:
        type_from_dtype(dtype)
    assert caught.value.site.file == __file__


@pytest.mark.parametrize(
    ("dtype", "says"), [(pl.Int128, "Int128 has no type in Arrow"), (pl.List(pl.Object), "no Python objects")]
)
def test_a_type_of_polars_that_columns_lack_is_refused_by_name(dtype, says):
    with pytest.raises(PipelineError, match=says):
        type_from_dtype(dtype)


PAIR = np.arange(2, dtype=np.float32)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2], pa.int64()),
        ([True, None], pa.bool_()),
        ([1, 2.5], pa.float64()),
        ([None, None], pa.null()),
        ([2**63], pa.uint64()),
        ([2**64], OBJECT),
        ([-1, 2**63], OBJECT),
        (["a", None], pa.large_string()),
        ([b"a", bytearray(b"b")], pa.large_binary()),
        ([dt.datetime(2020, 1, 1)], pa.timestamp("us")),
        ([dt.datetime(2020, 1, 1, tzinfo=dt.UTC)], pa.timestamp("us", "UTC")),
        ([dt.date(2020, 1, 1)], pa.date32()),
        ([dt.time(1)], pa.time64("us")),
        ([dt.timedelta(1)], pa.duration("us")),
        ([decimal.Decimal("1.25"), decimal.Decimal(7)], pa.decimal128(38, 2)),
        ([decimal.Decimal(10**40)], pa.decimal256(76, 0)),
        ([decimal.Decimal(10**37), decimal.Decimal("0.25")], pa.decimal256(76, 2)),
        ([np.float32(1)], pa.float32()),
        ([np.int8(1), 3], pa.int64()),
        ([np.float32(1), 1.5], pa.float64()),
        ([np.bool_(True)], pa.bool_()),
        ([np.array(3, dtype=np.int16)], pa.int16()),
        ([torch.tensor(3)], pa.int64()),
        ([pa.scalar("x")], pa.large_string()),
        ([[1, 2], [], None], pa.large_list(pa.int64())),
        ([(1,), (2.5,)], pa.large_list(pa.float64())),
        ([[], []], pa.large_list(pa.null())),
        ([[[1]], [[]]], pa.large_list(pa.large_list(pa.int64()))),
        ([{"a": 1}, {"a": 2.5, "b": "x"}], pa.struct([("a", pa.float64()), ("b", pa.large_string())])),
        ([{"a": PAIR}], pa.struct([("a", pa.large_list(pa.float32()))])),
        ([{1: 2}], OBJECT),
        ([{"a": object()}], OBJECT),
        ([PAIR, PAIR], TensorType((2,), "float32")),
        ([PAIR.astype(">f4")], TensorType((2,), "float32")),
        ([PAIR, PAIR.astype(float)], TensorType((2,), "float64")),
        ([torch.zeros(2, 3)], TensorType((2, 3), "float32")),
        ([PAIR, np.zeros(3, dtype=np.float32)], pa.large_list(pa.float32())),
        ([PAIR, None], pa.large_list(pa.float32())),
        ([[1, 2], np.arange(3)], pa.large_list(pa.int64())),
        ([[PAIR, PAIR]], pa.large_list(pa.large_list(pa.float32()))),
        ([np.zeros((2, 2)), np.zeros((3, 2))], OBJECT),
        ([np.array(["a", "b"])], pa.large_list(pa.large_string())),
        ([np.array([1j])], TensorType((1,), "complex128")),
        ([np.zeros(2, "m8[D]"), np.zeros(3, "m8[D]")], OBJECT),
        ([np.zeros(2, "M8[M]"), np.zeros(3, "M8[M]")], OBJECT),
        ([np.zeros(2, np.longdouble), np.zeros(3, np.longdouble)], OBJECT),
        ([[np.array([1j])]], OBJECT),
        ([1j], OBJECT),
        ([{1, 2}], OBJECT),
        ([object(), 5], OBJECT),
    ],
)
def test_infer_type(values, kind):
    assert infer_type(values) == kind
    assert len(build_column(values, kind)) == len(values)


@pytest.mark.parametrize(
    ("values", "index", "says"),
    [
        ([1, True], 1, "1 (int) and True (bool)"),
        ([None, "a", 1], 2, "'a' (str) and 1 (int)"),
        (["a", b"b"], 1, "b'b' (bytes)"),
        ([[1], [2, "a"]], 1, "in one list column"),
        ([dt.date(2020, 1, 1), dt.datetime(2020, 1, 1)], 1, "do not fit"),
        ([dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, tzinfo=dt.UTC)], 1, "do not fit"),
        ([np.zeros((2, 3)), None], 1, "arrays have no nulls"),
        ([PAIR, np.array([True, False])], 1, "bool[2]"),
    ],
)
def test_kinds_that_do_not_mix(values, index, says):
    with pytest.raises(ValueMismatch) as caught:
        infer_type(values)
    assert caught.value.index == index
    assert says in str(caught.value)


PLAIN = st.one_of(st.integers(-(2**63), 2**63 - 1), st.none())
COLUMNS = st.one_of(
    st.lists(PLAIN),
    st.lists(st.booleans() | st.none()),
    st.lists(st.floats(allow_nan=False) | st.none()),
    st.lists(st.text(st.characters(exclude_categories=["Cs"])) | st.none()),
    st.lists(st.binary() | st.none()),
    st.lists(st.lists(PLAIN) | st.none()),
    st.lists(st.dictionaries(st.sampled_from("abc"), st.lists(PLAIN))),
)


@given(COLUMNS)
def test_values_come_back_as_they_were(values):
    column = build_column(values, infer_type(values))
    found = column.to_pylist()
    if any(isinstance(v, dict) for v in values):
        found = [{k: v for k, v in row.items() if v is not None} for row in found]
    assert found == values


def test_a_tensor_that_numpy_does_not_have_is_named() -> None:
    with pytest.raises(ValueMismatch, match=r"a Tensor bfloat16\[2\] cannot be converted") as caught:
        infer_type([torch.zeros(2), None, torch.zeros(2, dtype=torch.bfloat16)])
    assert caught.value.index == 2
