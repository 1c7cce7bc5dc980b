from __future__ import annotations

import os
import random
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cedar.core.errors import CedarError, PipelineError, SourceError
from cedar.datasets.parquet import read_parquet
from tests.datasets.reading import column, read_keyed, read_rows, travelled


def table(n: int = 10, start: int = 0) -> pa.Table:
    ids = range(start, start + n)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "x": pa.array([None if i % 3 == 0 else i / 2 for i in ids], pa.float32()),
            "name": pa.array([f"n{i}" for i in ids]),
            "tags": pa.array([list(range(i % 4)) for i in ids], pa.list_(pa.int64())),
            "kind": pa.array([f"k{i % 2}" for i in ids]).dictionary_encode(),
            "pos": pa.array([{"lat": float(i), "name": str(i)} for i in ids]),
        }
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pq.write_table(table(10), tmp_path / "a.parquet", row_group_size=4)
    pq.write_table(table(5, 10), tmp_path / "b.parquet", row_group_size=4)
    return tmp_path


def test_a_split_is_a_row_group(folder: Path):
    source = read_parquet(str(folder / "*.parquet"))
    splits = source.splits()
    assert [(s.file, s.start, s.stop, s.rows, s.part) for s in splits] == [
        (0, 0, 4, 4, 0),
        (0, 4, 8, 4, 1),
        (0, 8, 10, 2, 2),
        (1, 0, 4, 4, 0),
        (1, 4, 5, 1, 1),
    ]
    assert all(s.bytes for s in splits)
    rows = read_keyed(source)
    assert [key for key, _ in rows] == [(0, i) for i in range(10)] + [(1, i) for i in range(5)]
    assert [row for _, row in rows] == table(15).to_pylist()


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


def test_select_keeps_what_is_known(folder: Path):
    source = read_parquet(folder)
    source.splits()
    chosen = source.select(["name"])
    assert chosen.listing is source.listing
    assert chosen.__dict__["_footers"] is source._footers
    assert column(chosen, "name")[:2] == ["n0", "n1"]
    assert list(source.schema()) == ["id", "x", "name", "tags", "kind", "pos"]


def test_footers_are_read_once(folder: Path, monkeypatch):
    read = []
    original = pq.read_metadata

    def read_metadata(path):
        read.append(path)
        return original(path)

    monkeypatch.setattr(pq, "read_metadata", read_metadata)
    source = read_parquet(folder)
    source.splits()
    source.schema()
    read_rows(source)
    read_rows(travelled(source))
    assert len(read) == 2


def test_it_travels(folder: Path):
    assert read_keyed(travelled(read_parquet(folder))) == read_keyed(read_parquet(folder))


def test_the_digest_tells_data_and_not_place(folder: Path, tmp_path_factory):
    before = read_parquet(folder).digest()
    moved = tmp_path_factory.mktemp("moved") / "x"
    os.rename(folder, moved)
    assert read_parquet(moved).digest() == before
    pq.write_table(table(10), moved / "a.parquet", row_group_size=5)
    assert read_parquet(moved).digest() != before


def test_row_bytes(folder: Path):
    assert 10 < (read_parquet(folder).row_bytes or 0) < 500


def test_describe_hides_credentials():
    source = read_parquet(["s3://key:secret@bucket/a.parquet", "b.parquet"])
    assert source.describe() == "read_parquet(s3://***@bucket/a.parquet, +1)"
    assert "secret" not in repr(source)


def test_files_without_rows_have_no_splits(tmp_path: Path):
    pq.write_table(table(1).slice(0, 0), tmp_path / "a.parquet")
    pq.write_table(table(2), tmp_path / "b.parquet")
    source = read_parquet(tmp_path)
    assert [key for key, _ in read_keyed(source)] == [(1, 0), (1, 1)]
    (tmp_path / "b.parquet").unlink()
    only = read_parquet(tmp_path)
    assert only.splits() == []
    assert list(only.schema()) == table(1).column_names
    assert only.row_bytes is None


def test_other_storage(folder: Path):
    fs = fsspec.filesystem("memory")
    for name in ("a.parquet", "b.parquet"):
        fs.pipe(f"pqtest/{name}", (folder / name).read_bytes())
    try:
        source = read_parquet("memory://pqtest/*.parquet")
        assert read_keyed(source) == read_keyed(read_parquet(folder))
        assert source.url(1) == "memory://pqtest/b.parquet"
    finally:
        fs.rm("pqtest", recursive=True)


@pytest.mark.parametrize(("where", "ahead"), [("local", False), ("memory", True)])
def test_only_what_is_far_away_is_fetched_before_it_is_decoded(folder: Path, monkeypatch, where: str, ahead: bool):
    asked = []
    opened = pq.ParquetFile
    monkeypatch.setattr(pq, "ParquetFile", lambda *a, **k: asked.append(k["pre_buffer"]) or opened(*a, **k))
    if where == "local":
        assert len(read_rows(read_parquet(folder))) == 15
    else:
        fs = fsspec.filesystem("memory")
        fs.pipe("pqahead/a.parquet", (folder / "a.parquet").read_bytes())
        try:
            assert len(read_rows(read_parquet("memory://pqahead/a.parquet"))) == 10
        finally:
            fs.rm("pqahead", recursive=True)
    assert set(asked) == {ahead}


# ---- hive partitions -------------------------------------------------------------------------------------------------


def test_partitions_become_columns(tmp_path: Path):
    pq.write_to_dataset(
        pa.table({"x": [1, 2, 3], "day": ["a b", "c/d", None], "hour": [7, 8, 7]}),
        tmp_path,
        partition_cols=["day", "hour"],
    )
    source = read_parquet(tmp_path)
    assert source.schema() == {"x": pa.int64(), "day": pa.large_string(), "hour": pa.int64()}
    rows = sorted(read_rows(source), key=lambda r: r["x"])
    assert rows == [
        {"x": 1, "day": "a b", "hour": 7},
        {"x": 2, "day": "c/d", "hour": 8},
        {"x": 3, "day": None, "hour": 7},
    ]
    assert sorted(column(read_parquet(tmp_path, columns=["hour"]), "hour")) == [7, 7, 8]
    assert list(read_rows(source.select(["day", "x"]))[0]) == ["day", "x"]
    assert sorted(column(read_parquet(f"{tmp_path}/day=*/hour=*"), "x")) == [1, 2, 3]


def test_files_partitioned_by_different_columns(tmp_path: Path):
    for folder in ("a=1", "b=1"):
        (tmp_path / folder).mkdir()
        pq.write_table(table(1), tmp_path / folder / "x.parquet")
    with pytest.raises(SourceError, match=r"is partitioned by \['a'\], .*by \['b'\]"):
        read_parquet(tmp_path).schema()


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_a_column_that_does_not_exist(folder: Path):
    with pytest.raises(PipelineError, match="there is no column 'nmae'") as error:
        read_parquet(folder, columns=["nmae"]).schema()
    assert error.value.fix == "did you mean 'name'?"


@pytest.mark.parametrize("columns", [["a", "a"], [1]])
def test_columns_that_are_no_names(columns):
    with pytest.raises(PipelineError, match="is not a list of different names"):
        read_parquet("x.parquet", columns=columns)


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


def test_order_of_columns_and_widths_of_strings_may_differ(folder: Path):
    other = table(3, 15)
    other = other.set_column(2, "name", other["name"].cast(pa.large_string())).select(other.column_names[::-1])
    pq.write_table(other, folder / "c.parquet")
    assert read_rows(read_parquet(folder)) == table(18).to_pylist()


def test_two_columns_of_one_name(tmp_path: Path):
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match="two columns 'a'"):
        read_parquet(tmp_path).schema()


def test_an_empty_file_and_one_of_another_format(tmp_path: Path):
    for content in (b"", b"PAR1", b"hello, this is not parquet at all"):
        (tmp_path / "a.parquet").write_bytes(content)
        with pytest.raises(SourceError, match=r"a\.parquet, footer: cannot be read"):
            read_parquet(tmp_path).splits()


def test_a_file_that_vanishes_after_listing(folder: Path):
    source = read_parquet(folder)
    splits = source.splits()
    (folder / "a.parquet").unlink()
    with pytest.raises(SourceError, match=r"a\.parquet, row group 0: the file is not there any more"):
        list(source.read(splits[0]))


def test_a_file_that_changes_after_listing(folder: Path):
    source = read_parquet(folder)
    splits = source.splits()
    pq.write_table(table(20), folder / "a.parquet")
    with pytest.raises(SourceError, match=r"a\.parquet: changed while in use"):
        list(source.read(splits[0]))


def attempt(path: Path) -> int | None:
    """The rows of a damaged file, fully checked; None where a CedarError says that it cannot be read."""
    source = read_parquet(path)
    try:
        rows = 0
        for split in source.splits():
            for chunk in source.read(split):
                for values in chunk.columns.values():
                    values.validate(full=True)
                    values.to_pylist()
                    assert len(values) == split.rows
                rows += chunk.rows
    except CedarError as error:
        return None if "damaged.parquet" in str(error) else -1
    return rows


@pytest.mark.parametrize("checksums", [False, True])
@pytest.mark.parametrize("compression", ["none", "snappy"])
def test_damaged_files_give_an_error_or_the_right_number_of_rows(tmp_path: Path, compression: str, checksums: bool):
    pq.write_table(
        table(200),
        tmp_path / "whole.parquet",
        row_group_size=50,
        compression=compression,
        write_page_checksum=checksums,
    )
    whole = (tmp_path / "whole.parquet").read_bytes()
    damaged = tmp_path / "damaged.parquet"
    chance = random.Random(7)
    for _ in range(20):
        damaged.write_bytes(whole[: chance.randrange(len(whole))])
        assert attempt(damaged) is None
    for _ in range(20):
        flipped = bytearray(whole)
        flipped[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        damaged.write_bytes(flipped)
        assert attempt(damaged) in (None, 200)


def test_checksums_find_a_flipped_bit(tmp_path: Path):
    values = pa.table({"x": pa.array(np.arange(1000))})
    pq.write_table(values, tmp_path / "a.parquet", compression="none", use_dictionary=False, write_page_checksum=True)
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    content[4000] ^= 1
    (tmp_path / "a.parquet").write_bytes(content)
    assert column(read_parquet(tmp_path), "x") != list(range(1000))
    with pytest.raises(SourceError, match=r"a\.parquet, row group 0: cannot be read"):
        read_rows(read_parquet(tmp_path, verify=True))
