"""Bad input: each ends in one error that names the user's line and, if there is one, the file and the row."""

from __future__ import annotations

import io
import math
import os
import random
import tarfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import CedarError, PipelineError, RowError, SourceError, col

pytestmark = pytest.mark.timeout(180)  # nothing hangs
EXECUTORS = ["inline", "threads"]


def error_of(
    kind: type[CedarError], make: Callable[[], Any], *says: str, row: int | None = None, url: str | None = None
) -> CedarError:
    """The one error of running what ``make`` builds, on every executor: its place, its row, and what it says."""
    found: CedarError | None = None
    for executor in EXECUTORS:
        with pytest.raises(kind) as caught:
            list(make().loader(executor=executor))
        error = caught.value
        assert type(error) is kind
        assert not isinstance(error.__cause__, CedarError)
        assert error.site is not None
        assert error.site.file == __file__
        for text in says:
            assert text in str(error)
        assert error.fix, "what to do next"
        if row is not None:
            assert error.row is not None
            assert error.row.row == row
        if url is not None:
            assert url in str(error)
        error.done = None  # how many rows were delivered before it depends on how far ahead they are read
        assert found is None or str(found) == str(error)
        found = error
    assert found is not None
    return found


def items(n: int = 200) -> cedar.Pipeline:
    return cedar.from_items([{"x": i, "name": str(i)} for i in range(n)])


WITH_VORTEX = pytest.mark.skipif(find_spec("vortex") is None, reason="the extra vortex is not installed")
READERS = [
    cedar.read_parquet, cedar.read_files, cedar.read_text, cedar.read_csv, cedar.read_jsonl, cedar.read_arrow,
    cedar.read_tar,
    pytest.param(cedar.read_vortex, marks=WITH_VORTEX),
]  # fmt: skip
EVERY_READER = pytest.mark.parametrize("reader", READERS, ids=lambda r: r.__name__)


# ---- files -----------------------------------------------------------------------------------------------------------


@EVERY_READER
@pytest.mark.parametrize("path", ["nothing*.x", "nothing.x", "nowhere/at/all/*.x"])
def test_no_file_matches(reader: Any, path: str, tmp_path: Path) -> None:
    (tmp_path / "there.txt").write_text("x")
    error_of(SourceError, lambda: reader(f"{tmp_path}/{path}"), "no file matches", path)


@EVERY_READER
def test_a_directory(reader: Any, tmp_path: Path) -> None:
    (tmp_path / "there.txt").write_text("x")
    error_of(SourceError, lambda: reader(str(tmp_path)), str(tmp_path))


@pytest.mark.parametrize("reader", [cedar.read_parquet, cedar.read_csv, cedar.read_arrow, cedar.read_tar])
def test_an_empty_file(reader: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    error_of(SourceError, lambda: reader(str(tmp_path / "empty")), url=f"{tmp_path}/empty")


@pytest.mark.parametrize("reader", [cedar.read_text, cedar.read_jsonl])
def test_an_empty_file_of_lines_has_no_rows(reader: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    assert list(reader(str(tmp_path / "empty"))) == []


@EVERY_READER
def test_a_path_that_is_none(reader: Any) -> None:
    with pytest.raises(PipelineError, match="paths must be") as caught:
        reader(3)
    assert caught.value.site is not None
    assert caught.value.site.file == __file__


def write_parquet(folder: Path, n: int = 3, **options: Any) -> list[Path]:
    paths = [folder / f"{i}.parquet" for i in range(n)]
    for i, path in enumerate(paths):
        table = pa.table(
            {"x": pa.array(range(100 * i, 100 * i + 100), pa.int64()), "s": [f"row {j}" for j in range(100)]}
        )
        pq.write_table(table, path, row_group_size=30, **options)
    return paths


@pytest.mark.parametrize("reader", ["parquet", "text", "files"])
def test_a_file_that_vanishes_after_listing(reader: str, tmp_path: Path) -> None:
    def make() -> cedar.Pipeline:
        paths = write_parquet(tmp_path)
        p: cedar.Pipeline = getattr(cedar, f"read_{reader}")(f"{tmp_path}/*.parquet")
        if reader == "text":
            for path in paths:
                path.write_text("a\nb\n")
        len(p.loader()) if reader != "text" else p.explain()
        paths[1].unlink()
        return p

    error_of(SourceError, make, url=f"{tmp_path}/1.parquet")


def test_a_truncated_parquet_file(tmp_path: Path) -> None:
    path = write_parquet(tmp_path)[1]
    whole = path.read_bytes()
    draw = random.Random(1)
    for _ in range(20):
        path.write_bytes(whole[: draw.randrange(len(whole))])
        error_of(SourceError, lambda: cedar.read_parquet(f"{tmp_path}/*.parquet"), url=str(path))


def test_flipped_bytes_in_a_parquet_file(tmp_path: Path) -> None:
    path = write_parquet(tmp_path, 1, write_page_checksum=True, compression="none")[0]
    whole = path.read_bytes()
    good = cedar.read_parquet(str(path)).to_arrow()
    draw = random.Random(2)
    found = 0
    for _ in range(20):
        flipped = bytearray(whole)
        flipped[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        path.write_bytes(flipped)
        try:
            same = cedar.read_parquet(str(path), verify=True).to_arrow().equals(good)
        except CedarError as error:
            found += str(path) in str(error) and error.site is not None
        else:
            assert same, "a changed value passed as good"
    assert found > 10


@pytest.mark.parametrize(
    ("other", "says"),
    [({"x": [1]}, "'s'"), ({"x": [1.5], "s": ["a"]}, "'x'"), ({"x": [1], "s": ["a"], "z": [1]}, "'z'")],
)
def test_parquet_files_of_different_schemas(other: dict[str, Any], says: str, tmp_path: Path) -> None:
    write_parquet(tmp_path)
    pq.write_table(pa.table(other), tmp_path / "1.parquet")
    error_of(SourceError, lambda: cedar.read_parquet(f"{tmp_path}/*.parquet"), says, url=f"{tmp_path}/1.parquet")


def test_a_csv_row_with_too_few_fields(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x,y\n" + "1,2\n" * 150 + "3\n" + "1,2\n" * 20)
    error_of(RowError, lambda: cedar.read_csv(str(path)), "Expected 2 columns, got 1", row=150, url=str(path))


def test_a_broken_line_of_json(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"x": 1}\n' * 100 + '{"x": \n' + '{"x": 1}\n')
    error_of(RowError, lambda: cedar.read_jsonl(str(path)), "line 101", row=900, url=str(path))
    path.write_text('{"x": 1}\n' * 100 + '{"x": "one"}\n')
    error_of(RowError, lambda: cedar.read_jsonl(str(path)), "line 101", "dtypes", row=900, url=str(path))


def shard(path: Path, *members: tuple[str, bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, kind in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            info.linkname = "a.txt"
            info.size = 2 if kind == tarfile.REGTYPE else 0
            tar.addfile(info, io.BytesIO(b"hi"))


FILE = tarfile.REGTYPE


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ([("a.txt", FILE), ("../b.txt", FILE)], "'../b.txt'"),
        ([("a.txt", FILE), ("/b.txt", FILE)], "'/b.txt'"),
        ([("a.txt", FILE), ("b.txt", tarfile.SYMTYPE)], "link"),
        ([("a.txt", FILE), ("b.txt", tarfile.LNKTYPE)], "link"),
        ([("a.txt", FILE), ("a.txt", FILE)], "'a'"),
        ([("a.txt", FILE), ("b.txt", FILE), ("a.txt", FILE)], "'a'"),
    ],
)
def test_tar_members_that_are_refused(members: Any, says: str, tmp_path: Path) -> None:
    shard(tmp_path / "a.tar", *members)
    error_of(SourceError, lambda: cedar.read_tar(str(tmp_path / "a.tar")), says, url=f"{tmp_path}/a.tar")


# ---- columns ---------------------------------------------------------------------------------------------------------

MISSPELLED: dict[str, Callable[[cedar.Pipeline], cedar.Pipeline]] = {
    "map": lambda p: p.map(str, "nome"),
    "flat_map": lambda p: p.flat_map(list, "nome"),
    "filter": lambda p: p.filter(bool, "nome"),
    "filter expression": lambda p: p.filter(col("nome") == "a"),
    "with_columns": lambda p: p.with_columns(y=col("nome")),
    "map_batches": lambda p: p.map_batches(lambda c: c, "nome"),
    "select": lambda p: p.select("nome"),
    "drop": lambda p: p.drop("nome"),
    "rename": lambda p: p.rename({"nome": "n"}),
    "pad": lambda p: p.pad("nome", to=2),
    "pack": lambda p: p.pack(2, "nome"),
    "sample": lambda p: p.sample("nome", n=2),
    "shuffle": lambda p: p.shuffle(by="nome"),
    "bucket": lambda p: p.bucket_by_length("nome", [1], [2, 2]),
    "map of a batch": lambda p: p.batch(2).map(str, "nome"),
}


@pytest.mark.parametrize("name", MISSPELLED)
def test_a_misspelled_column_says_which_exist_nearest_first(name: str) -> None:
    error_of(
        PipelineError, lambda: MISSPELLED[name](items()), "no column 'nome'", "'name', 'x'", "did you mean 'name'?"
    )


@pytest.mark.parametrize("into", ["", (), ("",), 3, ("a", 3)])
def test_into_that_names_nothing(into: Any) -> None:
    with pytest.raises(PipelineError, match="into") as caught:
        items().map(str, "x", into=into)
    assert caught.value.site is not None
    assert caught.value.site.file == __file__


@pytest.mark.parametrize("weight", [0, 0.0, -1, math.nan, math.inf, "a lot", None])
def test_weights_of_a_mix(weight: Any) -> None:
    with pytest.raises(PipelineError, match="weight") as caught:
        cedar.mix([(items(), 1.0), (items(), weight)])
    assert caught.value.site is not None
    assert caught.value.site.file == __file__


# ---- functions -------------------------------------------------------------------------------------------------------


class Two(Exception):
    """Cannot be rebuilt from its text alone."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code
        self.reason = reason


def raises(x: int) -> int:
    if x == 150:
        raise Two(7, "seven")
    return x


def changes(x: int) -> Any:
    return "text" if x == 150 else x


def forgets(x: int) -> Any:
    return None if x == 150 else {"y": x}


def reshapes(x: int) -> Any:
    return np.zeros(4 if x == 150 else 3)


def test_a_function_that_raises_an_error_of_two_arguments() -> None:
    error = error_of(RowError, lambda: items().map(raises, "x"), "7: seven", "epoch 0", row=150)
    assert isinstance(error.__cause__, Two)
    assert (error.__cause__.code, error.__cause__.reason) == (7, "seven")
    assert error.__cause__.__traceback__ is not None


@pytest.mark.heavy
def test_the_original_error_comes_from_another_process_too() -> None:
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        with pytest.raises(RowError, match="7: seven") as caught:
            list(items().map(raises, "x").loader(executor=pool))
        assert len(list(items(9).loader(executor=pool))) == 9, "the pool lives on"
    error = caught.value
    assert error.site is not None
    assert error.site.file == __file__
    assert error.row is not None
    assert error.row.row == 150
    assert type(error.__cause__).__name__ == "Two"


def test_a_function_of_another_type_than_the_first_rows_fixed() -> None:
    error_of(RowError, lambda: items().map(changes, "x"), "'text' (str) does not fit int64", "first rows", row=150)
    error_of(RowError, lambda: items().map(changes, "x", dtype=int), "dtype=", row=150)


def test_a_function_that_forgets_to_return() -> None:
    error_of(PipelineError, lambda: items().map(lambda x: None, "x"), "returned None")
    error_of(RowError, lambda: items().map(lambda row: forgets(row["x"])), "not a row", row=150)


def test_a_function_of_another_shape_in_one_row() -> None:
    error_of(RowError, lambda: items().map(reshapes, "x"), "float64[4]", "float64[3]", row=150)


BATCHES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "another shape": (lambda x: np.zeros((len(x), 4 if 150 in x else 3)), "float64[4]"),
    "another type": (lambda x: x.astype(str) if 150 in x else x, "string"),
    "fewer rows": (lambda x: x[:3] if 150 in x else x, "returned 3 rows for a batch of 10"),
    "nothing": (lambda x: None if 150 in x else x, "None"),
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_function_that_goes_wrong_in_one_batch(name: str) -> None:
    fn, says = BATCHES[name]
    error_of(RowError, lambda: items().batch(10).map(fn, "x"), says, "batch starting at", row=150)


def test_map_batches_that_return_another_number_of_rows() -> None:
    error_of(PipelineError, lambda: items().map_batches(lambda c: {"x": c["x"][:3]}, "x", format="numpy"), "returned 3")


@pytest.mark.parametrize(
    "make",
    [
        lambda p: p.with_columns(x=col("x") - col("x").mean()),
        lambda p: p.with_columns(x=col("x").cum_sum()),
        lambda p: p.filter(col("x") > col("x").shift(1)),
        lambda p: p.map_batches(lambda c: {"x": np.sort(c["x"])[::-1].copy()}, "x", format="numpy"),
        lambda p: p.map_batches(lambda c: {"x": c["x"] - c["x"].mean()}, "x", format="numpy"),
    ],
)
def test_what_depends_on_other_rows_is_refused(make: Any) -> None:
    with pytest.raises(PipelineError) as caught:
        list(make(items()))
    assert caught.value.site is not None
    assert caught.value.site.file == __file__
    assert caught.value.fix


def test_a_column_whose_type_changes_in_the_source() -> None:
    rows = [{"x": i if i < 100 else "text"} for i in range(200)]
    error_of(RowError, lambda: cedar.from_items(rows), "'text' (str) does not fit int64", row=100)
    error_of(RowError, lambda: cedar.from_iterable(lambda: iter(rows)), "'text' (str) does not fit int64", row=100)


def test_filters_answer_yes_or_no() -> None:
    error_of(
        RowError, lambda: items().filter(lambda x: "maybe" if x == 150 else True, "x"), "not True or False", row=150
    )


def test_a_class_that_cannot_be_made() -> None:
    class Model:
        def __init__(self) -> None:
            raise OSError("no weights")

        def __call__(self, x: int) -> int:
            return x

    error = error_of(PipelineError, lambda: items().map(Model, "x", dtype=int), "no weights", "each worker constructs")
    assert isinstance(error.__cause__, OSError)


def test_an_iterator_that_raises() -> None:
    def rows() -> Any:
        yield from ({"x": i} for i in range(100))
        raise Two(1, "one")

    error = error_of(RowError, lambda: cedar.from_iterable(rows), "1: one", row=100)
    assert isinstance(error.__cause__, Two)


# ---- ranks -----------------------------------------------------------------------------------------------------------


def test_rank_and_world_set_twice_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    for rank, world in ((1, 4), (0, 2)):
        with pytest.raises(PipelineError, match="set twice, differently") as caught:
            items().loader(rank=rank, world=world)
        assert "subgroup=True" in str(caught.value)
        assert caught.value.site is not None
        assert caught.value.site.file == __file__
    assert items().loader(rank=0, world=4).rank.world == 4, "twice the same is not a conflict"
    assert items().loader(rank=0, world=2, subgroup=True).rank.world == 2
    assert os.environ["RANK"] == "0"
