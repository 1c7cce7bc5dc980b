from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar.core.errors import CedarError, PipelineError, SourceError
from cedar.datasets import parquet
from cedar.datasets.files_io import check_unchanged
from cedar.datasets.parquet import read_parquet
from tests.datasets.parquet_files import table, two_files
from tests.datasets.reading import column, read_keyed, read_rows, traveled


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return two_files(tmp_path)


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


def test_select_keeps_what_is_known(folder: Path):
    source = read_parquet(folder)
    source.splits()
    chosen = source.select(["name"])
    assert chosen.listing is source.listing
    assert chosen.__dict__["_footers"] is source._footers
    assert column(chosen, "name")[:2] == ["n0", "n1"]
    assert list(source.schema()) == ["id", "x", "name", "tags", "kind", "pos"]


def test_it_travels(folder: Path):
    assert read_keyed(traveled(read_parquet(folder))) == read_keyed(read_parquet(folder))


def test_the_digest_tells_data_and_not_place(folder: Path, tmp_path_factory):
    before = read_parquet(folder).digest()
    moved = tmp_path_factory.mktemp("moved") / "x"
    os.rename(folder, moved)
    assert read_parquet(moved).digest() == before
    pq.write_table(table(10), moved / "a.parquet", row_group_size=5)
    assert read_parquet(moved).digest() != before


def test_row_bytes(folder: Path):
    assert 10 < (read_parquet(folder).row_bytes or 0) < 500


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

    def noted(*args: Any, **options: Any) -> Any:
        asked.extend([options["pre_buffer"]] if "pre_buffer" in options else [])  # not if only the schema is read
        return opened(*args, **options)

    monkeypatch.setattr(pq, "ParquetFile", noted)
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


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [["a", "a"], [1], 5])
def test_columns_that_are_no_names(columns):
    with pytest.raises(PipelineError, match="is not a list of different names"):
        read_parquet("x.parquet", columns=columns)


def test_a_file_that_vanishes_after_listing(folder: Path):
    source = read_parquet(folder)
    splits = source.splits()
    (folder / "a.parquet").unlink()
    with pytest.raises(SourceError, match=r"a\.parquet, row group 0: the file no longer exists"):
        list(source.read(splits[0]))


def test_a_file_that_changes_after_listing(folder: Path):
    source = read_parquet(folder)
    splits = source.splits()
    pq.write_table(table(20), folder / "a.parquet")
    with pytest.raises(SourceError, match=r"a\.parquet: changed while in use"):
        list(source.read(splits[0]))


def test_a_file_that_changes_where_its_footer_left_nothing(folder: Path, monkeypatch):
    asked: list[str] = []
    monkeypatch.setattr(parquet, "check_unchanged", lambda file: [asked.append(file.name), check_unchanged(file)])
    source = read_parquet(folder)
    splits = source.splits()
    none, some = pl.col("id") < 0, pl.col("id") >= 0
    assert [source.prune(split, none) for split in splits] == [True] * 5
    assert asked == ["a.parquet", "b.parquet"], "each file once, not each row group"
    pq.write_table(table(20), folder / "a.parquet")
    with pytest.raises(SourceError, match=r"a\.parquet: changed while in use"):
        source.prune(splits[0], none)
    assert not source.prune(splits[0], some), "any reader of it will say so"
    (folder / "b.parquet").unlink()
    with pytest.raises(SourceError, match=r"b\.parquet: .*no longer exists"):
        source.prune(splits[3], none)


@pytest.mark.parametrize("executor", ["inline", "processes"])
def test_every_epoch_looks_at_files_of_which_it_reads_nothing(folder: Path, executor):
    p = cedar.read_parquet(folder).filter(pl.col("id") >= 10).batch(10, last="keep")
    with p.loader(executor=executor) as loader:
        assert [len(batch["id"]) for batch in loader] == [5]
        pq.write_table(table(20), folder / "a.parquet")
        with pytest.raises(SourceError, match=r"a\.parquet: changed while in use"):
            list(loader)


def attempt(path: Path) -> int | None:
    """The rows of a damaged file, fully checked; None if a CedarError says that it cannot be read."""
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
