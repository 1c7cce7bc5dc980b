"""cedar.read: the reader is chosen by the ending of the files."""

from __future__ import annotations

import gzip
from pathlib import Path

import polars as pl
import pytest

import cedar
from cedar.lake.by_ending import by_ending

FRAME = pl.DataFrame({"x": [1, 2, 3], "y": ["a", "b", "c"]})


def written(folder: Path, ending: str) -> str:
    """A file of three rows."""
    path = folder / f"a{ending}"
    match ending:
        case ".parquet" | ".pq":
            FRAME.write_parquet(path)
        case ".arrow" | ".feather":
            FRAME.write_ipc(path, compat_level=pl.CompatLevel.oldest())
        case ".jsonl" | ".ndjson":
            FRAME.write_ndjson(path)
        case ".csv":
            FRAME.write_csv(path)
        case ".tsv":
            FRAME.write_csv(path, separator="\t")
        case ".csv.gz":
            path.write_bytes(gzip.compress(FRAME.write_csv().encode()))
    return str(path)


@pytest.mark.parametrize(
    "ending", [".parquet", ".pq", ".arrow", ".feather", ".jsonl", ".ndjson", ".csv", ".tsv", ".csv.gz"]
)
@pytest.mark.parametrize("what", ["file", "path", "folder", "list", "glob"])
def test_all_formats_are_read_from_files_folders_lists_and_globs(tmp_path: Path, ending: str, what: str):
    file = written(tmp_path, ending)
    (tmp_path / "README.md").write_text("not data")
    paths = {"file": file, "path": Path(file), "folder": tmp_path, "list": [file], "glob": f"{tmp_path}/a*"}[what]
    assert list(cedar.read(paths)) == FRAME.to_dicts()


def test_what_no_ending_tells_is_an_error_at_the_users_line(tmp_path: Path):
    (tmp_path / "in.bin").write_text("x")
    for paths in (tmp_path, tmp_path / "in.bin", tmp_path / "nothing"):
        with pytest.raises(cedar.PipelineError, match="no file has a known extension") as caught:
            cedar.read(paths)
        assert caught.value.site is not None
        assert caught.value.site.file == __file__
    with pytest.raises(cedar.PipelineError, match="no files are given"):
        cedar.read([])


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.csv.gz?v=1", "a.csv?path=b/c.json"])
def test_the_query_of_a_url_has_no_ending(name: str):
    form, _ = by_ending(f"http://localhost/{name}")  # not opened yet
    assert form == "csv"
