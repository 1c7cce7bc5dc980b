"""A listing that changes: what happens to the keys, the random draws and the order of the rows that are in both."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar.core.errors import SourceError
from cedar.datasets.files_io import File
from cedar.datasets.listing import Listing, list_files
from cedar.datasets.parquet import read_parquet

ROWS = 40  # of a file, in row groups of 10


def write(path: Path, tag: int, rows: int = ROWS) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"x": [tag * 1000 + i for i in range(rows)]}), path, row_group_size=10)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i in range(8):
        write(tmp_path / "data" / f"day={i % 2}" / f"{i}.parquet", i)
    return tmp_path / "data"


def draw(batch: dict[str, Any], rng: np.random.Generator) -> float:
    return float(rng.random())


def describe(pattern: Any, window: int = 10, **options: Any) -> list[tuple[int, float]]:
    """What an epoch delivers: of each row its value and a random draw, in order."""
    p = cedar.read_parquet(pattern).shuffle(window=window).map(_drawn, random=True).batch(7, last="keep")
    options = {"executor": "inline", "seed": 5, **options}
    with p.loader(**options) as loader:
        return [(x, y) for batch in loader for x, y in zip(batch["x"].tolist(), batch["y"].tolist(), strict=True)]


def _drawn(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"x": row["x"], "y": rng.random()}


def add(folder: Path) -> None:
    write(folder / "day=0" / "00-first.parquet", 90)
    write(folder / "day=2" / "in the middle.parquet", 91, 7)
    write(folder / "day=9" / "zz.parquet", 92)


def remove(folder: Path) -> None:
    (folder / "day=0" / "0.parquet").unlink()
    (folder / "day=1" / "5.parquet").unlink()


def rename(folder: Path) -> None:
    (folder / "day=0" / "0.parquet").rename(folder / "day=1" / "zz.parquet")


def repair(folder: Path) -> None:
    write(folder / "day=0" / "0.parquet", 0, 13)


CHANGES: dict[str, tuple[Callable[[Path], None], set[int]]] = {
    "add": (add, {90, 91, 92}),
    "remove": (remove, {0, 5}),
    "rename": (rename, {0}),
    "repair": (repair, {0}),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("given", ["glob", "folder", "files"])
def test_other_rows_keep_keys_draws_and_order(folder: Path, given: str, change: str):
    def paths() -> Any:
        files = sorted(folder.rglob("*.parquet"))
        return {"glob": folder / "**" / "*.parquet", "folder": folder, "files": files}[given]

    apply, touched = CHANGES[change]
    before = describe(paths())
    apply(folder)
    after = describe(paths())

    def others(rows: list[tuple[int, float]]) -> list[tuple[int, float]]:
        return [row for row in rows if row[0] // 1000 not in touched]

    assert len(others(before)) >= 240
    assert others(before) == others(after)  # windows are row groups here, so the order of rows is that of splits
    assert sorted(x for x, _ in before) != [x for x, _ in before]

    whole = describe(paths(), window=10_000)  # one window: rows are sorted by their keys alone
    assert dict(whole) == dict(after)
    shutil.rmtree(folder)
    for i in range(8):
        write(folder / f"day={i % 2}" / f"{i}.parquet", i)
    assert others(describe(paths(), window=10_000)) == others(whole)


def test_where_the_data_set_lies_changes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch):
    before = describe(folder)
    fs = fsspec.filesystem("memory")
    fs.put(str(folder), "/mount/sets/", recursive=True)
    monkeypatch.chdir(folder.parent)
    try:
        for same in (
            "data", "data/**/*.parquet", f"file://{folder}", str(folder) + "/", ["data/day=0", "data/day=1"],
            ["data/day=1/*", "data/day=0/*"], sorted(folder.rglob("*.parquet")), "memory://mount/sets/data",
            "memory://mount/sets/data/**/*.parquet",
        ):  # fmt: skip
            assert describe(same) == before, same
    finally:
        fs.rm("/mount", recursive=True)
    os.symlink(folder, folder.parent / "other mount")
    assert describe(folder.parent / "other mount") == before


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        ([("a/x", "x")], ["x"]),
        ([("/d/a/x", "a/x"), ("/d/b/x", "b/x")], ["a/x", "b/x"]),
        ([("/d/a/x", "x"), ("/d/b/x", "x")], ["a/x", "b/x"]),
        ([("/d/a/x", "x"), ("/d/a/c/x", "x"), ("/d/a/c/e/x", "e/x")], ["x", "c/x", "c/e/x"]),
        ([("/d/a/x", "x"), ("bucket/b/x", "b/x")], ["/d/a/x", "bucket/b/x"]),
        ([("/x", "x"), ("/a/x", "x")], ["x", "a/x"]),
        ([("https://h/p/x?k=1", "x"), ("https://h/p/y?k=2", "y")], ["x", "y"]),
        ([("https://h/get?k=1", "get"), ("https://h/get?k=2", "get")], ["get k=1", "get k=2"]),
    ],
)
def test_names_are_paths_below_the_folder_that_all_have_in_common(paths: list[tuple[str, str]], names: list[str]):
    listing = Listing(tuple(File(path, name, 0) for path, name in paths))
    assert listing.names() == names
    assert len(set(listing.ids.tolist())) == len(names)


def test_two_files_with_one_hash_are_refused_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cedar.datasets.listing.hash_names", lambda names: np.array([len(n) for n in names]))
    with pytest.raises(SourceError, match=r"0\.parquet and .*2\.parquet have the same 64-bit hash") as error:
        describe(folder)
    assert "rename one" in str(error.value)


def test_names_that_are_not_text_have_keys(tmp_path: Path):
    for name in (b"\xff.parquet", b"\xfe.parquet"):
        with open(os.path.join(os.fsencode(tmp_path), name), "wb") as file:
            pq.write_table(pa.table({"x": [1]}), file)
    assert len(set(list_files([f"{tmp_path}/*"]).ids.tolist())) == 2


def test_files_as_rows_keep_keys_draws_and_order(tmp_path: Path):
    def names() -> list[str]:
        p = cedar.read_files(tmp_path / "*.bin").shuffle(window=1).batch(5, last="keep")
        with p.loader(executor="inline", seed=1) as loader:
            return [Path(path).name for batch in loader for path in batch["path"].tolist()]

    for i in range(300):
        (tmp_path / f"{i:03d}.bin").write_bytes(b"")
    before = names()
    (tmp_path / "000.a.bin").write_bytes(b"")
    (tmp_path / "150.bin").unlink()
    after = names()
    assert len(after) == 300
    assert [n for n in before if n != "150.bin"] == [n for n in after if n != "000.a.bin"]


@pytest.mark.parametrize("step", [1, 4, 13])
def test_files_as_rows_go_on_in_the_middle_of_a_split(tmp_path: Path, step: int):
    for i in range(100):
        (tmp_path / f"{i:03d}.bin").write_bytes(b"")
    for p in (cedar.read_files(tmp_path / "*.bin"), cedar.read_files(tmp_path / "*.bin").filter(_some, "path")):
        p = p.batch(5, last="keep")
        with p.loader(executor="inline") as loader:
            whole = [batch["path"].tolist() for batch in loader]
        with p.loader(executor="inline") as loader:
            batches = iter(loader)
            for _ in range(step):
                next(batches)
            state = loader.state_dict()
        with p.loader(executor="inline") as loader:
            loader.load_state_dict(state)
            assert [batch["path"].tolist() for batch in loader] == whole[step:]
            loader.load_state_dict(state)
            assert loader.locate(0, 3).row.url == whole[0][3]


def _some(path: str) -> bool:
    return not path.endswith("3.bin")


def test_messages_name_the_file(folder: Path, tmp_path: Path):
    def fails(row: dict[str, Any]) -> dict[str, Any]:
        raise ValueError(row["x"])

    p = cedar.read_parquet(folder).filter(cedar.col("x") == 6025).map(fails)
    with pytest.raises(cedar.RowError) as error, p.loader(executor="inline") as loader:
        list(loader)
    assert error.value.row is not None
    assert (error.value.row.url, error.value.row.row) == (str(folder / "day=0" / "6.parquet"), 25)
    assert read_parquet(folder).url(0).endswith("0.parquet")
