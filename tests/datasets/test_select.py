"""A source with fewer columns reads, of the splits of the whole source, the same rows with the same values."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from cedar.core.errors import CedarError, PipelineError, RowError
from cedar.datasets.arrow import read_arrow
from cedar.datasets.base import offsets_of
from cedar.datasets.csv import read_csv
from cedar.datasets.files import read_files
from cedar.datasets.jsonl import read_jsonl
from cedar.datasets.parquet import read_parquet
from cedar.datasets.table import from_arrow, from_polars
from cedar.datasets.tar import read_tar
from cedar.datasets.text import read_text
from cedar.lake.lance import read_lance
from cedar.lake.vortex import read_vortex
from tests.datasets.reading import read_rows, traveled

ROWS = 500


def table() -> pa.Table:
    return pa.table(
        {
            "n": np.arange(ROWS),
            "half": pa.array([None if i % 7 == 0 else i / 2 for i in range(ROWS)]),
            "text": [f'says "{i}", twice' for i in range(ROWS)],
            "flag": [i % 2 == 0 for i in range(ROWS)],
        }
    )


def write_tar(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        for i in range(20):
            for name in (f"{i:03}.cls", f"{i:03}.jpg"):
                member = tarfile.TarInfo(name)
                member.size = i
                archive.addfile(member, io.BytesIO(b"7" * i))


@pytest.fixture(
    params=[
        "parquet",
        "arrow",
        "vortex",
        "lance",
        "table",
        "polars",
        "csv",
        "plain csv",
        "jsonl",
        "text",
        "files",
        "tar",
    ]
)
def source(request, tmp_path: Path):
    rows, path = table(), tmp_path / "t"
    match request.param:
        case "parquet":
            pq.write_table(rows, path, row_group_size=150)
            return read_parquet(path)
        case "arrow":
            pyarrow.feather.write_feather(rows, path, chunksize=99)
            return read_arrow(path)
        case "vortex":
            pytest.importorskip("vortex", reason="the extra vortex is not installed").io.write(rows, str(path))
            return read_vortex(path)
        case "lance":
            pytest.importorskip("lance", reason="the extra lance is not installed").write_dataset(rows, str(path))
            return read_lance(path)
        case "table":
            return from_arrow(rows)
        case "polars":
            return from_polars(pl.from_arrow(rows))
        case "csv":
            pl.DataFrame(rows.to_pydict()).write_csv(path)
            return read_csv(path)
        case "plain csv":
            path.write_text("a,b,c\n" + "".join(f"{i},{i / 3},t{i}\n" for i in range(ROWS)))
            return read_csv(path, quoting=False)
        case "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows.to_pylist()))
            return read_jsonl(path)
        case "text":
            path.write_text("".join(f"line {i}\n" for i in range(ROWS)))
            return read_text(path)
        case "files":
            for i in range(70):
                (tmp_path / f"{i}.bin").write_bytes(b"x" * i)
            return read_files(str(tmp_path / "*.bin"))
    write_tar(tmp_path / "t.tar")
    return read_tar(tmp_path / "t.tar")


def read(source, split):
    """The columns, whole, and the offsets of their rows."""
    columns: dict[str, list] = {}
    offsets: list[int] = []
    for chunk in source.read(split):
        offsets += offsets_of(chunk, split.start + len(offsets)).tolist()
        for name, column in chunk.columns.items():
            columns.setdefault(name, []).append(column)
    return {name: pa.concat_arrays(parts) for name, parts in columns.items()}, offsets


def test_the_rows_of_the_whole_source(source):
    names = list(source.schema())
    for chosen in (names[:1], names[::-1], names[1:2], []):
        narrow = traveled(source.select(chosen))
        assert list(narrow.schema()) == chosen
        for split in source.splits():
            whole, rows = read(source, split)
            some, others = read(narrow, split)
            assert others == rows
            assert list(some) == chosen
            for name in chosen:
                assert some[name].type == whole[name].type
                assert some[name].equals(whole[name])


def test_splits_of_the_selected_source_hold_the_same_rows(source):
    narrow = source.select(list(source.schema())[:1])
    assert [(s.file, s.start, s.stop, s.rows, s.part) for s in narrow.splits()] == [
        (s.file, s.start, s.stop, s.rows, s.part) for s in source.splits()
    ]


def test_a_column_that_is_not_there(source):
    with pytest.raises((CedarError, KeyError)):
        source.select(["nowhere"]).schema()


def test_files_are_not_opened_for_their_paths(tmp_path: Path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"abc")
    source = read_files(str(path))
    splits = source.splits()
    path.unlink()
    assert len(read(source.select(["path"]), splits[0])[1]) == 1


def test_parts_of_structs_in_parquet(tmp_path: Path):
    rows = [{"id": i, "at": None if i == 1 else {"x": i, "deep": {"y": -i, "z": "t"}}} for i in range(4)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    source = read_parquet(tmp_path / "t.parquet")
    narrow = source.select(["at.deep.y", "id"])
    assert list(narrow.schema()) == ["at", "id"]
    assert read_rows(narrow) == [
        {"at": None if i == 1 else {"deep": {"y": -i}}, "id": i} for i in range(4)
    ]  # fmt: skip
    assert read_rows(source.select(["at.x", "at.deep.z"]))[2] == {"at": {"x": 2, "deep": {"z": "t"}}}
    with pytest.raises(PipelineError, match=r"at\.nowhere"):
        source.select(["at.nowhere"]).schema()


def test_chunks_are_as_large_as_what_is_read_allows(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("cedar.datasets.parquet._CHUNK_BYTES", 80_000)
    wide = {f"c{i}": np.arange(20_000) for i in range(10)}
    pq.write_table(pa.table(wide), tmp_path / "t.parquet")
    source = read_parquet(tmp_path / "t.parquet")
    (split,) = source.splits()
    whole, narrow = (len(list(s.read(split))) for s in (source, source.select(["c1"])))
    assert narrow < whole == 5


def test_columns_whose_rows_repeat_make_chunks_of_more_rows(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("cedar.datasets.parquet._CHUNK_BYTES", 160_000)
    table = {"n": np.arange(20_000), "lists": [[i // 16, 7, 8] for i in range(20_000)]}
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    source = read_parquet(tmp_path / "t.parquet")
    (split,) = source.splits()
    repeating = source.with_repeating(frozenset({"lists"}))
    assert len(list(repeating.read(split))) < len(list(source.read(split)))
    assert len(list(repeating.select(["n"]).read(split))) == len(list(source.select(["n"]).read(split))) > 0
    assert read_rows(repeating) == read_rows(source)


def test_json_lines_keep_their_errors_in_the_columns_that_are_read(tmp_path: Path):
    path = tmp_path / "t.jsonl"
    lines = [json.dumps({"n": i, "text": "a", "at": {"x": i}}) for i in range(70)]
    path.write_text("\n".join([*lines, '{"n": "no number", "text": "a"}']))
    source = read_jsonl(path)
    assert len(read_rows(source.select(["text"]))) == 71
    with pytest.raises(RowError, match="line 71"):
        read_rows(source.select(["n"]))
    path.write_text("\n".join([*lines, '{"n": 3, "at": {"x": 1, "new": 2}}']))
    with pytest.raises(RowError, match="line 71"):
        read_rows(read_jsonl(path).select(["at"]))
