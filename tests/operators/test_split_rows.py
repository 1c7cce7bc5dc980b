"""The hashes of values by which split assigns rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import cedar
from cedar.operators.split_rows import value_hashes
from tests.operators.toy_times import TIMES


@pytest.mark.parametrize("kind", TIMES)
def test_each_time_has_its_own_hash(kind: str) -> None:
    times = pa.concat_arrays([TIMES[kind], TIMES[kind][1:]])
    hashes = value_hashes(times[1:], seed=3).tolist()
    assert len(set(hashes)) == 3
    assert hashes[:3] == hashes[3:]


@pytest.mark.parametrize("kind", TIMES)
def test_rows_with_equal_times_are_in_one_part(kind: str) -> None:
    rows = cedar.from_arrow(pa.table({"t": pa.concat_arrays([TIMES[kind]] * 4), "i": np.arange(16) % 4}))
    parts = rows.split({"a": 0.5, "b": 0.5}, by="t")
    found = [{row["i"] for row in part.select("i")} for part in parts.values()]
    assert sorted(i for part in found for i in part) == [0, 1, 2, 3]
