"""Names and types of Parquet columns: what a selection gives, and whether files agree."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cedar.core.errors import PipelineError, SourceError
from cedar.datasets.parquet import read_parquet
from tests.datasets.parquet_files import table, two_files
from tests.datasets.reading import column, read_rows


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return two_files(tmp_path)


def test_types_are_canonical(folder: Path):
    schema = read_parquet(folder).schema()
    assert schema == {
        "id": pa.int64(),
        "x": pa.float32(),
        "name": pa.large_string(),
        "tags": pa.large_list(pa.int64()),
        "kind": pa.large_string(),
        "pos": pa.struct([("lat", pa.float64()), ("name", pa.large_string())]),
    }


def test_columns_come_in_the_order_asked_for(folder: Path):
    source = read_parquet(folder, columns=["tags", "id"])
    assert list(source.schema()) == ["tags", "id"]
    assert read_rows(source)[2] == {"tags": [0, 1], "id": 2}
    assert sum(s.bytes or 0 for s in source.splits()) < sum(s.bytes or 0 for s in read_parquet(folder).splits())


def test_parts_of_structs(folder: Path):
    source = read_parquet(folder, columns=["id", "pos.lat"])
    assert source.schema()["pos"] == pa.struct([("lat", pa.float64())])
    assert read_rows(source)[3] == {"id": 3, "pos": {"lat": 3.0}}


def test_no_columns_still_counts_rows(folder: Path):
    source = read_parquet(folder, columns=[])
    assert len(read_rows(source)) == 15
    assert source.schema() == {}


def test_nested_columns_of_all_kinds(tmp_path: Path):
    nested = pa.table(
        {
            "m": pa.array([[("a", 1)], [], None], pa.map_(pa.string(), pa.int64())),
            "ll": pa.array([[[1], []], [], None]),
            "ls": pa.array([[{"p": 1, "q": "x"}], [], None]),
            "f": pa.array([[1.0, 2.0], [3.0, 4.0], None], pa.list_(pa.float32(), 2)),
            "after": pa.array([1, 2, 3]),
        }
    )
    pq.write_table(nested, tmp_path / "n.parquet")
    source = read_parquet(tmp_path / "n.parquet")
    rows = read_rows(source)
    assert rows[0]["ls"] == [{"p": 1, "q": "x"}]
    assert rows[1] == {"m": [], "ll": [], "ls": [], "f": [3.0, 4.0], "after": 2}
    assert rows[2] == {"m": None, "ll": None, "ls": None, "f": None, "after": 3}
    assert column(read_parquet(tmp_path / "n.parquet", columns=["after"]), "after") == [1, 2, 3]
    picked = read_parquet(tmp_path / "n.parquet", columns=["ls.list.element.q", "after"])
    assert read_rows(picked)[0] == {"ls": [{"q": "x"}], "after": 1}


def test_a_column_that_does_not_exist(folder: Path):
    with pytest.raises(PipelineError, match="there is no column 'nmae'") as error:
        read_parquet(folder, columns=["nmae"]).schema()
    assert error.value.fix == "did you mean 'name'?"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop_columns(["name"]), r"column 'name' \(large_string\) is missing in the second"),
        (lambda t: t.append_column("more", pa.array([1] * 3)), r"column 'more' \(int64\) is missing in the first"),
        (
            lambda t: t.set_column(0, "id", t["id"].cast(pa.int32())),
            "'id' is int64 in the first and int32 in the",
        ),
    ],
)
def test_files_whose_schemas_differ(folder: Path, change, message: str):
    pq.write_table(change(table(3)), folder / "c.parquet")
    with pytest.raises(SourceError, match=message) as error:
        read_parquet(folder).splits()
    assert "a.parquet and " in str(error.value)
    assert "c.parquet have" in str(error.value)
    assert len(read_rows(read_parquet(folder, columns=["x", "tags"]))) == 18


KINDS = [pa.timestamp("us", "UTC"), pa.timestamp("us", "Europe/Berlin"), pa.duration("us"), pa.int64()]


@pytest.mark.parametrize("kinds", [KINDS[:2], KINDS[1::-1], KINDS[2:], KINDS[:1:-1]])
def test_files_whose_types_are_one_to_parquet_alone(tmp_path: Path, kinds):
    for name, kind in zip("ab", kinds, strict=True):
        pq.write_table(pa.table({"x": pa.array([1, 2], kind), "y": [1, 2]}), tmp_path / f"{name}.parquet")
    message = (
        f"a.parquet and .*b.parquet have different schemas: column 'x' is {kinds[0]} in the first and {kinds[1]} in"
    )
    for manifest in (None, tmp_path / "m"):
        with pytest.raises(SourceError, match=message.replace("[", r"\[").replace("]", r"\]")):
            read_parquet(tmp_path, manifest=manifest).splits()
        assert column(read_parquet(tmp_path, columns=["y"], manifest=manifest), "y") == [1, 2, 1, 2]


def test_files_that_only_other_programs_tell_apart_have_one_schema(tmp_path: Path):
    for number, name in enumerate("ab"):
        schema = pa.schema([pa.field("x", pa.int64(), metadata={"note": name})], {"pandas": f"{number}"})
        pq.write_table(pa.table([[number]], schema=schema), tmp_path / f"{name}.parquet")
    source = read_parquet(tmp_path)
    assert (source._footers.firsts, column(source, "x")) == ([0], [0, 1])


def test_order_of_columns_and_widths_of_strings_may_differ(folder: Path):
    other = table(3, 15)
    other = other.set_column(2, "name", other["name"].cast(pa.large_string())).select(other.column_names[::-1])
    pq.write_table(other, folder / "c.parquet")
    assert read_rows(read_parquet(folder)) == table(18).to_pylist()


def test_two_columns_of_one_name(tmp_path: Path):
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match="two columns 'a'"):
        read_parquet(tmp_path).schema()


# ---- INT96 timestamps ------------------------------------------------------------------------------------------------

DATES = [dt.datetime(9999, 12, 31), dt.datetime(1, 1, 1), None, dt.datetime(1960, 3, 1, 2, 3, 4, 5)]


def int96(path: Path, times, unit="us", **options) -> Path:
    """Times as Spark and Impala write them: in a column, a list, and structs, next to others that have 64 bits."""
    flat = pa.array(times, pa.timestamp(unit))
    nested = pa.StructArray.from_arrays([flat, pa.array(range(len(times)))], names=["t", "n"])
    pieces = pa.array([[{"t": t, "n": 1}, None] for t in flat], pa.list_(nested.type))
    columns = {"n": pa.array(range(len(times))), "flat": flat, "nested": nested, "pieces": pieces}
    pq.write_table(pa.table(columns), path, use_deprecated_int96_timestamps=True, **options)
    return path


def test_int96_timestamps_are_of_any_year(tmp_path: Path):
    source = read_parquet(int96(tmp_path / "t.parquet", DATES * 3, row_group_size=5))
    assert source.schema()["flat"] == pa.timestamp("us")
    assert column(source, "flat") == DATES * 3
    assert [row and row["t"] for row in column(source, "nested")] == DATES * 3
    assert [row[0]["t"] for row in column(source, "pieces")] == DATES * 3
    assert column(source.select(["pieces", "n"]), "n") == list(range(12))
    for year, n in ((2025, 3), (1900, 6)):
        late = pl.col("flat") > dt.datetime(year, 1, 1)
        kept = [s for s in source.splits() if not source.prune(s, late)]
        assert (
            sum(
                t > dt.datetime(year, 1, 1)
                for s in kept
                for c in source.read(s)
                for t in c.columns["flat"].drop_null().to_pylist()
            )
            == n
        )


@pytest.mark.parametrize("name", ["flat", "nested", "pieces"])
def test_nanoseconds_of_int96_timestamps_are_not_cut(tmp_path: Path, name):
    source = read_parquet(int96(tmp_path / "t.parquet", [5000, -1, None], "ns"), columns=[name])
    with pytest.raises(SourceError, match=f"t.parquet: column '{name}' has INT96 timestamps with nanoseconds") as error:
        read_rows(source)
    assert "pyarrow.parquet.write_table" in (error.value.fix or "")
    assert (
        column(read_parquet(int96(tmp_path / "u.parquet", [5000, -1000, None], "ns")), "flat")[1].microsecond == 999999
    )


def test_columns_whose_names_have_dots(tmp_path: Path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"s.t": [{"u": 1, "v": 2}], "a.b": [3]}), path)
    assert read_rows(read_parquet(path, columns=["s.t.u", "a.b"])) == [{"s.t": {"u": 1}, "a.b": 3}]
    with pytest.raises(PipelineError, match="there is no column 'a'"):
        read_parquet(path, columns=["a"]).schema()


def test_a_column_whose_name_begins_with_that_of_another(tmp_path: Path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"s": [{"x": 0}], "s.t": [{"u": 1, "v": {"w": 2}}]}), path)
    source = read_parquet(path, columns=["s", "s.t.u", "s.t.v.w"])
    assert read_rows(source) == [{"s": {"x": 0}, "s.t": {"u": 1, "v": {"w": 2}}}]
    assert read_rows(source.select(["s"])) == [{"s": {"x": 0}}]
    assert read_rows(source.select(["s.t"])) == [{"s.t": {"u": 1, "v": {"w": 2}}}]
    source = read_parquet(path, columns=["s.t.u", "s.t.v.w"])
    assert read_rows(source.select(["s"])) == [{"s": {"x": 0}}]
    assert read_rows(source.select(["s.t.v"])) == [{"s.t": {"v": {"w": 2}}}]
