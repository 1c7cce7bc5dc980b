"""The files that a sink has in progress: one for each folder, ended when full, and gone when they are dropped."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.errors import PipelineError
from cedar.datasets.storage import Storage
from cedar.lake.formats import FORMATS
from cedar.lake.parts import PartFiles, split_by
from tests.datasets.blocks import files_of


def parts_in(folder: Path, rows_per_file: int | None = None) -> PartFiles:
    return PartFiles(Storage.at(folder), FORMATS["jsonl"], lambda number: f"part-{number:05d}.jsonl", rows_per_file)


def add(parts: PartFiles, folder: str, rows: list[int]) -> None:
    parts.add(folder, len(rows), parts.format.encode(pa.table({"x": rows})))


def test_every_folder_has_a_file_and_one_that_is_full_is_followed_by_another(tmp_path: Path):
    parts = parts_in(tmp_path, rows_per_file=3)
    for folder, rows in (("k=1", [1, 2]), ("k=2", [3]), ("k=1", [4]), ("k=1", [5, 6]), ("k=1", [7, 8])):
        add(parts, folder, rows)
    assert (parts.has_open_files, parts.rows) == (True, 1 + 2)
    parts.end()
    done = parts.take_done()
    assert [(part.name, part.rows) for part in done] == [
        ("k=1/part-00000.jsonl", 3), ("k=1/part-00002.jsonl", 2), ("k=2/part-00001.jsonl", 1),
        ("k=1/part-00003.jsonl", 2),
    ]  # fmt: skip
    assert (parts.take_done(), parts.has_open_files, parts.bytes) == ([], False, 0)
    for part, rows in zip(done, ([1, 2, 4], [5, 6], [3], [7, 8]), strict=True):
        content = (tmp_path / part.name).with_name(part.temporary).read_bytes()
        assert content == b"".join(b'{"x":%d}\n' % x for x in rows)
        assert len(content) == part.bytes


def test_what_is_dropped_is_gone_and_what_was_taken_stays(tmp_path: Path):
    parts = parts_in(tmp_path, rows_per_file=1)
    add(parts, "", [1])
    (kept,) = parts.take_done()
    add(parts, "", [2])
    parts.rows_per_file = None
    add(parts, "", [3])
    assert len(files_of(tmp_path)) == 3
    parts.drop()
    assert files_of(tmp_path) == [kept.temporary]


@given(st.lists(st.tuples(st.sampled_from(["a", "b/c", None]), st.sampled_from([True, False, None])), max_size=30))
def test_every_row_is_in_the_folder_of_its_values_once_and_in_order(keys: list[tuple[str | None, bool | None]]):
    table = pa.table({
        "n": pa.array(range(len(keys))),
        "k": pa.array([k for k, _ in keys], pa.string()),
        "f": pa.array([f for _, f in keys], pa.bool_()),
    })  # fmt: skip
    none = "__HIVE_DEFAULT_PARTITION__"
    wanted: dict[str, list[int]] = {}
    for n, (k, f) in enumerate(keys):
        texts = none if k is None else k.replace("/", "%2F"), none if f is None else str(f).lower()
        wanted.setdefault("f={1}/k={0}".format(*texts), []).append(n)
    found = list(split_by(table, ["f", "k"]))
    assert {folder: part["n"].to_pylist() for folder, part in found} == wanted
    assert len(found) == len(wanted)
    assert all(part.column_names == ["n"] for _, part in found)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("kk", "there is no column 'kk'"),
        ("l", "cannot partition by 'l' of type list"),
        ("x", "cannot partition by 'x' of type double"),
        ("_day", "cannot partition by '_day': folders whose names begin with '_' are hidden from readers"),
        (".x", "cannot partition by '.x': folders"),
    ],
)
def test_columns_that_name_no_folder_are_refused(name: str, why: str):
    with pytest.raises(PipelineError, match=why):
        list(split_by(pa.table({"k": [1], "l": [[1]], "x": [0.5], "_day": [1], ".x": [1]}), [name]))
