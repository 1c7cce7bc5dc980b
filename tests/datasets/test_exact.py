"""Integers in text are read exactly, or are errors that name their row: never rounded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar.datasets.exact import Inexact, check_value, rounded_rows

ODD = 2**53 + 1  # the first integer that a double does not hold


def test_json_refuses_a_whole_number_that_its_column_rounds(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(f'{{"x": {x}}}\n' for x in [0.5, *[1] * 80, 1e300, ODD, 2]))
    with pytest.raises(cedar.RowError, match=rf"t\.jsonl, line 83: column 'x': {ODD} cannot be held exactly by double"):
        list(cedar.read_jsonl(str(path)))
    path.write_text("".join(f'{{"x": {x}}}\n' for x in [0.5, 2**53, 2**60, 1e300, float(ODD)]))
    assert [row["x"] for row in cedar.read_jsonl(str(path))] == [0.5, 2.0**53, 2.0**60, 1e300, 2.0**53]


@pytest.mark.parametrize(
    ("first", "row"),
    [
        ({"x": [0.5]}, {"x": [1, ODD]}),
        ({"x": {"y": 0.5}}, {"x": {"y": ODD}}),
        ({"x": [[0.5]]}, {"x": [[], [1, 10**400]]}),
    ],
)
def test_nested_whole_numbers_are_looked_at_too(tmp_path: Path, first: Any, row: Any) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in [first, {"x": None}, row]))
    with pytest.raises(cedar.RowError, match="line 3: column 'x'"):
        list(cedar.read_jsonl(str(path)))


def test_json_reads_whole_numbers_of_64_bits(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    for values in ([ODD, -(2**63), 2**63 - 1], [ODD, 2**64 - 1]):
        path.write_text("".join(f'{{"x": {x}}}\n' for x in values))
        assert [row["x"] for row in cedar.read_jsonl(str(path))] == values
    path.write_text(f'{{"x": 1}}\n{{"x": {2**63}}}\n' * 40)
    assert cedar.read_jsonl(str(path)).schema == {"x": pa.uint64()}
    path.write_text('{"x": 1}\n' * 64 + f'{{"x": {2**63}}}\n')
    with pytest.raises(cedar.RowError, match="line 65"):
        list(cedar.read_jsonl(str(path)))


@pytest.mark.parametrize("quoting", [True, False])
def test_csv_refuses_a_whole_number_that_its_column_rounds(tmp_path: Path, quoting: bool) -> None:
    path = tmp_path / "t.csv"
    path.write_text("".join(f"{x}\n" for x in ["x,y", "0.5,a", f"{2**60},b", "1e300,c", f"{ODD},d", "7,e"]))
    where = "row 3" if quoting else "line 5"
    with pytest.raises(cedar.RowError, match=rf"t\.csv, {where}.*column 'x': {ODD} cannot be held exactly by double"):
        list(cedar.read_csv(str(path), quoting=quoting))
    assert list(cedar.read_csv(str(path), quoting=quoting).select("y"))[3] == {"y": "d"}
    texts = cedar.read_csv(str(path), quoting=quoting, dtypes={"x": "string"})
    assert [row["x"] for row in texts] == ["0.5", str(2**60), "1e300", str(ODD), "7"]


def test_csv_finds_the_row_far_into_a_file(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = 1_200_000  # three blocks of 4 MiB
    path.write_text("x\n0.5\n" + "12345678\n" * rows + f"{ODD}\n1\n")
    with pytest.raises(cedar.RowError, match=rf"row {rows + 1} .*{ODD}"):
        cedar.read_csv(str(path)).to_arrow()


@pytest.mark.parametrize("quoting", [True, False])
def test_csv_reads_whole_numbers_of_64_bits(tmp_path: Path, quoting: bool) -> None:
    path = tmp_path / "t.csv"
    for values in ([ODD, -(2**63), 2**63 - 1], [1, 2**63, 2**64 - 1]):
        path.write_text("x\n" + "".join(f"{x}\n" for x in values))
        assert [row["x"] for row in cedar.read_csv(str(path), quoting=quoting)] == values
    for values in ([-1, 2**63 + 1], [1, 10**30 + 1], [1, 10**400]):
        path.write_text("x\n" + "".join(f"{x}\n" for x in values))
        with pytest.raises(cedar.RowError, match=f"column 'x': {values[1]} cannot be held exactly"):
            list(cedar.read_csv(str(path), quoting=quoting))
    path.write_text("x\n1\n1000000000000000000000000000001\n")
    exact = cedar.read_csv(str(path), quoting=quoting, dtypes={"x": pa.decimal128(38, 0)})
    assert [int(row["x"]) for row in exact] == [1, 10**30 + 1]


@given(st.integers(), st.sampled_from([np.float16, np.float32, np.float64]))
def test_a_number_is_refused_where_numpy_rounds_it(value: int, dtype: Any) -> None:
    kind = pa.from_numpy_dtype(np.dtype(dtype))
    with np.errstate(over="ignore"):
        held = dtype(float(value)) if abs(value) < 2**1000 else np.inf
    exact = bool(np.isfinite(held)) and int(held) == value
    try:
        check_value("x", value, kind)
        assert exact
    except Inexact:
        assert not exact
        assert rounded_rows({"x": pa.array(np.array([held], dtype=dtype))}).tolist() == [0]


@pytest.mark.parametrize(("text", "kind"), [("1e39", "float32"), ("-1e39", "float32"), ("1e400", "float64")])
def test_a_number_that_would_be_infinite_is_refused(tmp_path: Path, text: str, kind: str) -> None:
    (tmp_path / "t.csv").write_text(f"x\n1.5\ninf\n{text}\n")
    (tmp_path / "infinite.csv").write_text("x\ninf\n-Infinity\n")
    (tmp_path / "t.jsonl").write_text(f'{{"x": [1.5]}}\n{{"x": [{text}]}}\n')
    for quoting in (True, False):
        csv = cedar.read_csv(tmp_path / "t.csv", quoting=quoting, dtypes={"x": kind})
        with pytest.raises(cedar.RowError, match=f"column 'x': {text} cannot be held exactly"):
            list(csv)
        infinite = cedar.read_csv(tmp_path / "infinite.csv", quoting=quoting, dtypes={"x": kind})
        assert [row["x"] for row in infinite] == [np.inf, -np.inf]
    with pytest.raises(cedar.RowError, match=r"t\.jsonl, line 2: .*(cannot be held exactly|too big)"):
        list(cedar.read_jsonl(tmp_path / "t.jsonl", dtypes={"x": pa.list_(pa.type_for_alias(kind))}))
