import datetime as dt
import decimal
import pickle
import sys
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.columns import OBJECT, TensorType
from cedar.core.dtypes import infer_type
from cedar.core.values import ValueMismatch, build_column, describe, is_masked, misfits, type_name

INTS = pa.large_list(pa.int64())
PAIR = TensorType((2,), "float32")
STRUCT = pa.struct([("a", pa.int64()), ("b", INTS)])
f32 = np.arange(2, dtype=np.float32)


@pytest.mark.parametrize(
    ("values", "kind", "found"),
    [
        ([1, 2.5, np.float32(3), np.int8(2), None], pa.float64(), [1.0, 2.5, 3.0, 2.0, None]),
        ([np.array(5), torch.tensor(4), pa.scalar(3)], pa.int64(), [5, 4, 3]),
        ([float("inf")], pa.float32(), [float("inf")]),
        (
            [np.datetime64("2024-01-31"), None, np.datetime64("NaT", "D")],
            pa.date32(),
            [dt.date(2024, 1, 31), None, None],
        ),
        ([[1], None, [], (2, 3)], INTS, [[1], None, [], [2, 3]]),
        ([np.array([1, 2]), None], INTS, [[1, 2], None]),
        ([np.array([1], np.int32), np.array([2]), [3]], INTS, [[1], [2], [3]]),
        ([np.array([1], np.int32), np.array([2])], INTS, [[1], [2]]),
        ([torch.arange(2)], INTS, [[0, 1]]),
        ([np.array([5])], pa.large_list(pa.float64()), [[5.0]]),
        ([np.array(["a"])], pa.large_list(pa.large_string()), [["a"]]),
        ([[np.array([1]), [2]]], pa.large_list(INTS), [[[1], [2]]]),
        ([[1, 2], None], pa.list_(pa.int64(), 2), [[1, 2], None]),
        ([{"a": 1, "b": [1]}, None, {"a": 2}], STRUCT, [{"a": 1, "b": [1]}, None, {"a": 2, "b": None}]),
        ([[{"a": 1}], []], pa.large_list(STRUCT), [[{"a": 1, "b": None}], []]),
        ([{}, None], pa.struct([]), [{}, None]),
        ([decimal.Decimal("1.2"), 3], pa.decimal128(38, 2), [decimal.Decimal("1.20"), decimal.Decimal("3.00")]),
        ([], pa.large_string(), []),
        ([5, "x", None], OBJECT, [5, "x", None]),
        ([f32, f32], PAIR, [[0, 1], [0, 1]]),
        ([f32, torch.ones(2), [1, 2], (0.5, 2)], PAIR, [[0, 1], [1, 1], [1, 2], [0.5, 2]]),
        ([np.array([1, 2], np.int16)], PAIR, [[1, 2]]),
        ([], TensorType((2, 3), "int8"), []),
        ([1 + 2j], TensorType((), "complex64"), [1 + 2j]),
    ],
)
def test_what_fits(values, kind, found):
    column = build_column(values, kind)
    assert (column.to_pylist() if isinstance(column, pa.Array) else column.tolist()) == found
    assert (column.type == kind) if isinstance(kind, pa.DataType) else len(column) == len(values)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1.0, pa.int64()),
        (True, pa.int64()),
        (np.bool_(True), pa.int64()),
        (1, pa.bool_()),
        (2**70, pa.int64()),
        (300, pa.int8()),
        (-1, pa.uint8()),
        (2**53 + 1, pa.float64()),
        (1e300, pa.float32()),
        (True, pa.float64()),
        ("x", pa.large_binary()),
        (b"x", pa.large_string()),
        ("\ud800", pa.large_string()),
        (5, pa.null()),
        (dt.datetime(2020, 1, 1, 5), pa.date32()),
        (dt.datetime(2020, 1, 1, tzinfo=dt.UTC), pa.timestamp("us")),
        (dt.date(2020, 1, 1), pa.timestamp("us")),
        (decimal.Decimal("1.234"), pa.decimal128(38, 2)),
        ([1, 2.5], INTS),
        (5, INTS),
        ("ab", pa.large_list(pa.large_string())),
        ({1, 2}, INTS),
        (np.array([1.5]), INTS),
        (np.array([True]), INTS),
        (np.zeros((2, 2), int), INTS),
        (np.array([2**53 + 1]), pa.large_list(pa.float64())),
        ([1, 2, 3], pa.list_(pa.int64(), 2)),
        ({"a": 1, "c": 2}, STRUCT),
        ({"a": 1.5}, STRUCT),
        (5, STRUCT),
        (None, PAIR),
        (np.arange(3), PAIR),
        (f32.astype(float), PAIR),
        (np.array([1, 2**24 + 1]), PAIR),
        (np.array([True, False]), PAIR),
        ([True, False], PAIR),
        ([1e300, 2], PAIR),
        ([[1], [2, 3]], PAIR),
        ("ab", PAIR),
        (np.ma.masked_array([1.0, 2.0], [True, False]), TensorType((2,), "float64")),
        ([300, 1], TensorType((2,), "uint8")),
        ([-1, 1], TensorType((2,), "uint64")),
    ],
)
def test_what_does_not_fit(value, kind):
    good = build_column([], kind)
    assert len(good) == 0
    with pytest.raises(ValueMismatch) as caught:
        build_column([value], kind)
    assert caught.value.index == 0
    assert "does not fit" in str(caught.value)


def test_the_first_misfit_is_named_and_all_are_listed():
    values = [1, "a", 2, 2.5]
    with pytest.raises(ValueMismatch, match=r"'a' \(str\) does not fit int64") as caught:
        build_column(values, pa.int64())
    assert caught.value.index == 1
    assert list(misfits(values, pa.int64())) == [1, 3]
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.index, str(again)) == (1, str(caught.value))


@pytest.mark.heavy
@given(st.lists(st.integers() | st.floats() | st.booleans() | st.text(max_size=2) | st.none(), max_size=6))
def test_misfits_are_those_that_python_would_refuse(values):
    def fits(value):
        whole = isinstance(value, int) and not isinstance(value, bool)
        return value is None or (whole and -(2**63) <= value < 2**63)

    assert set(misfits(values, pa.int64())) == {i for i, value in enumerate(values) if not fits(value)}


def test_arrays_are_copied_out_of_the_users_hands():
    buffer = np.zeros(2, dtype=np.float32)
    column = build_column([buffer], PAIR)
    buffer[:] = 7
    assert column.tolist() == [[0, 0]]


def test_descriptions_are_short_and_never_fail():
    class Broken:
        def __repr__(self):
            raise ValueError

    assert describe(Broken()).endswith("(Broken)")
    assert describe(None) == "None"
    assert describe(torch.zeros(2, 3)) == "a Tensor float32[2, 3]"
    assert len(describe("x" * 1000)) < 80
    assert type_name(pa.large_list(pa.float64())) == "large_list<item: float64>"


HALF, FINE = dt.timedelta(seconds=1.5), dt.timedelta(microseconds=5)
START = dt.datetime(2024, 1, 1)


@pytest.mark.parametrize(
    ("value", "kind", "finer"),
    [
        (HALF, pa.duration("s"), pa.duration("ms")),
        (-FINE, pa.duration("ms"), pa.duration("us")),
        (START + HALF, pa.timestamp("s"), pa.timestamp("ms")),
        ((START + FINE).replace(tzinfo=dt.UTC), pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC")),
        ((START + HALF).time(), pa.time32("s"), pa.time32("ms")),
        ((START + FINE).time(), pa.time32("ms"), pa.time64("us")),
        ([START + FINE], pa.large_list(pa.timestamp("s")), pa.large_list(pa.timestamp("us"))),
        (np.array(["9999-01-01"], "M8[s]"), TensorType((1,), "datetime64[ns]"), TensorType((1,), "datetime64[us]")),
        (np.array([10**12], "m8[s]"), TensorType((1,), "timedelta64[ns]"), TensorType((1,), "timedelta64[ms]")),
    ],
)
def test_times_are_not_cut(value, kind, finer):
    with pytest.raises(ValueMismatch, match="does not fit"):
        build_column([value], kind)
    assert build_column([value], finer).tolist() == [value]


def test_times_of_pandas_keep_their_nanoseconds():
    pandas = pytest.importorskip("pandas")
    times = pandas.Timestamp("2024-01-01 00:00:00.123456789"), pandas.Timedelta("1ns")
    for time, type_ in zip(times, (pa.timestamp, pa.duration), strict=True):
        fine, coarse = type_("ns"), type_("us")
        assert infer_type([time, None]) == fine
        assert build_column([time], fine).to_pylist() == [time]
        with pytest.raises(ValueMismatch, match="its fraction of a second is finer than us"):
            build_column([time], coarse)
    zoned = times[0].tz_localize("Europe/Berlin")
    assert infer_type([zoned]) == pa.timestamp("ns", "Europe/Berlin")
    assert infer_type([pandas.Timestamp("2024-01-01")]) == pa.timestamp("us")


def test_no_array_is_masked_while_another_thread_imports_masked_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_masked(np.ma.MaskedArray)
    begun = SimpleNamespace(__spec__=SimpleNamespace(_initializing=True))  # as in the middle of the import
    monkeypatch.setitem(sys.modules, "numpy.ma", begun)  # type: ignore[arg-type]
    assert not is_masked(np.ndarray)
