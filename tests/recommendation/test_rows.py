"""What clustering, sessions and histories share: runs of equal values, and times."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.errors import PipelineError
from cedar.recommendation import add_sessions
from cedar.recommendation.rows import codes_of, column_of, ordinals, run_start, starts_run, take_rows


@given(st.lists(st.sampled_from(["b", "a", "c"]), min_size=1, max_size=30))
def test_runs_of_equal_values_are_those_of_the_model(values):
    codes = codes_of(pa.array(values))
    order = list(dict.fromkeys(values))
    assert codes.tolist() == [order.index(value) for value in values]
    first = starts_run(codes)
    assert first.tolist() == [i == 0 or values[i - 1] != value for i, value in enumerate(values)]
    starts = run_start(first).tolist()
    assert all(first[start] and len(set(values[start : i + 1])) == 1 for i, start in enumerate(starts))
    table = pa.table({"v": values, "l": [[i] * (i % 3) for i in range(len(values))]})
    back = np.arange(len(values))[::-1]
    assert take_rows(table, back).to_pylist() == table.to_pylist()[::-1]


@pytest.mark.parametrize(
    "values", [[3, -1, 2], [0.5, -2.0, 9.0], ["b", "a", "c"], [dt.date(2024, 1, 2), dt.date(1969, 1, 1)],
               [dt.datetime(2024, 1, 2), dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 3)]]
)  # fmt: skip
def test_ordinals_sort_as_the_values_do(values):
    assert [values[i] for i in np.argsort(ordinals(pa.array(values)))] == sorted(values)


def test_a_column_is_in_one_piece_or_refused_by_name():
    table = pa.table({"user": pa.chunked_array([[1], [2, 3]])})
    assert column_of(table, "user", "f").equals(pa.array([1, 2, 3]))
    with pytest.raises(PipelineError, match="there is no column 'usr'"):
        column_of(table, "usr", "f")


def test_times_may_be_timestamps_or_numbers_of_a_unit():
    start = dt.datetime(2024, 1, 1)
    minutes = [0, 10, 41]
    stamps = [start + dt.timedelta(minutes=m) for m in minutes]
    for ts, unit in ((stamps, "s"), ([m * 60_000 for m in minutes], "ms"), ([m * 60.0 for m in minutes], "s")):
        table = pa.table({"u": ["a"] * 3, "ts": ts})
        assert add_sessions(table, "u", "ts", gap=30, unit=unit)["session_id"].to_pylist() == [0, 0, 1]
