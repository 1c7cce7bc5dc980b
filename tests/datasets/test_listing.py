from __future__ import annotations

import gzip
import os
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar.core.errors import PipelineError, SourceError
from cedar.core.printable import redact_url
from cedar.datasets.files_io import File, concurrently, reading
from cedar.datasets.filesource import as_flag, as_paths
from cedar.datasets.listing import Listing, list_files
from cedar.datasets.parquet import read_parquet
from cedar.lake.vortex import read_vortex
from tests.toy_http_store import Store


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("b.txt", "a.txt", "sub/c.txt", "sub/deep/d.txt", "x[1].txt", ".hidden.txt", "data.csv"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path


@pytest.fixture
def memory():
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]
    yield fs
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]


def names(listing) -> list[str]:
    return [file.name for file in listing]


def test_files_come_sorted_whatever_the_order_of_the_paths(tree: Path):
    listing = list_files([str(tree / "b.txt"), str(tree / "a.txt")])
    assert names(listing) == ["a.txt", "b.txt"]
    assert [file.size for file in listing] == [5, 5]
    assert listing[0].url == str(tree / "a.txt")


def test_globs(tree: Path):
    assert names(list_files([str(tree / "*.txt")])) == ["a.txt", "b.txt", "x[1].txt"]
    assert names(list_files([str(tree / "**/*.txt")])) == ["a.txt", "b.txt", "sub/c.txt", "sub/deep/d.txt", "x[1].txt"]
    assert names(list_files([str(tree / "?.txt")])) == ["a.txt", "b.txt"]
    assert names(list_files([str(tree / "[bc].txt")])) == ["b.txt"]
    assert names(list_files([str(tree / "*")])) == ["a.txt", "b.txt", "data.csv", "x[1].txt"]


def test_a_name_that_looks_like_a_glob(tree: Path):
    assert names(list_files([str(tree / "x[1].txt")])) == ["x[1].txt"]


def test_relative_and_home_paths(tree: Path, monkeypatch):
    monkeypatch.chdir(tree)
    monkeypatch.setenv("HOME", str(tree))
    assert list_files(["a.txt"])[0].url == str(tree / "a.txt")
    assert list_files(["~/a.txt"])[0].url == str(tree / "a.txt")
    assert list_files([f"file://{tree}/a.txt"])[0].url == str(tree / "a.txt")


def test_a_file_listed_twice_is_refused(tree: Path):
    with pytest.raises(SourceError, match=r"a\.txt is listed twice: by '.*a\.txt' and by '.*\*\.txt'"):
        list_files([str(tree / "a.txt"), str(tree / "*.txt")])


def test_nothing_matches_at_the_root(tree: Path):
    with pytest.raises(SourceError, match=r"no file matches '/\*\.nothing'; '/' exists"):
        list_files(["/*.nothing"])


def test_nothing_matches_says_what_is_there(tree: Path):
    with pytest.raises(SourceError, match=r"no file matches '.*\*\.jpg'; '.*' exists and holds .*a\.txt"):
        list_files([str(tree / "*.jpg")])
    with pytest.raises(SourceError, match=r"no file matches .*sub' exists and holds c\.txt, deep"):
        list_files([str(tree / "sub/nope/none.txt")])


def test_a_directory_is_refused_unless_suffixes_say_what_it_stands_for(tree: Path):
    with pytest.raises(SourceError, match="is a directory where a file is expected") as error:
        list_files([str(tree)])
    assert error.value.fix is not None
    assert "/*'" in error.value.fix
    assert names(list_files([str(tree)], (".csv",))) == ["data.csv"]
    assert names(list_files([str(tree)], (".txt",)))[2:4] == ["sub/c.txt", "sub/deep/d.txt"]
    with pytest.raises(SourceError, match=r"no file matches '.*\.parquet'"):
        list_files([str(tree)], (".parquet",))


def test_a_glob_of_directories(tree: Path):
    with pytest.raises(SourceError, match="matches 1 directory and no file"):
        list_files([str(tree / "su*")])
    assert names(list_files([str(tree / "su*")], (".txt",))) == ["sub/c.txt", "sub/deep/d.txt"]


def test_a_dangling_link_is_refused(tree: Path):
    (tree / "z.txt").symlink_to(tree / "gone")
    with pytest.raises(SourceError, match="is not a regular file"):
        list_files([str(tree / "*.txt")])


def test_the_digest_does_not_change_when_the_data_moves(tree: Path, tmp_path_factory):
    before = list_files([str(tree / "**/*.txt")]).digest()
    moved = tmp_path_factory.mktemp("elsewhere") / "new"
    os.rename(tree, moved)
    assert list_files([str(moved / "**/*.txt")]).digest() == before
    (moved / "a.txt").write_text("longer than before")
    assert list_files([str(moved / "**/*.txt")]).digest() != before


def test_other_storage(memory):
    for name in ("data/b.txt", "data/a.txt", "data/sub/c.txt", "data/.hidden.txt"):
        memory.pipe(name, b"abc")
    listing = list_files(["memory://data/*.txt"])
    assert [file.url for file in listing] == ["memory://data/a.txt", "memory://data/b.txt"]
    assert names(listing) == ["a.txt", "b.txt"]
    assert [file.size for file in listing] == [3, 3]
    assert names(list_files(["memory://data/**/*.txt"])) == ["a.txt", "b.txt", "sub/c.txt"]
    assert names(list_files(["memory://data"], (".txt",))) == ["a.txt", "b.txt", "sub/c.txt"]
    assert names(list_files(["memory://data/a.txt"])) == ["a.txt"]
    with pytest.raises(SourceError, match="is a directory"):
        list_files(["memory://data"])
    with pytest.raises(SourceError, match=r"no file matches 'memory://data/\*\.jpg'; .*a\.txt"):
        list_files(["memory://data/*.jpg"])
    with pytest.raises(SourceError, match="no file matches 'memory://nope/a'"):
        list_files(["memory://nope/a"])


def test_a_listing_that_fsspec_has_cached_is_not_used(memory, monkeypatch):
    cached = {}
    find = memory.find

    def listed(path, **options):
        if path not in cached:
            cached[path] = find(path, **options)
        return cached[path]

    monkeypatch.setattr(memory, "find", listed)
    monkeypatch.setattr(memory, "invalidate_cache", lambda path=None: cached.clear())
    for paths in ("memory://data", "memory://data/*.txt"):
        memory.store.clear()
        for name in ("a.txt", "b.txt"):
            memory.pipe(f"data/{name}", b"abc")
            assert name in names(list_files([paths], (".txt",)))


def test_a_remote_folder_whose_name_looks_like_a_glob(memory):
    memory.pipe({"runs/run[1]/a.txt": b"", "runs/run1/b.txt": b""})
    assert names(list_files(["memory://runs/run[1]"], (".txt",))) == ["a.txt"]
    assert names(list_files(["memory://runs/run[1]/*.txt"])) == ["run1/b.txt"]


def test_queries_of_urls():
    urls = ["http://host/a?x=1", "http://host/a?x=2", "http://host/b"]
    listing = Listing(tuple(File(url, url[12:13], 1) for url in urls))
    assert len(set(listing.names())) == 3
    with Store({"a.csv.gz": gzip.compress(b"x\n1\n")}) as store:
        url = f"{store.url}/a.csv.gz?path=x/y"
        assert names(list_files([url])) == ["a.csv.gz"]
        assert list(cedar.read(url)) == [{"x": 1}]


def test_a_protocol_that_nobody_knows():
    with pytest.raises(SourceError, match=r"'nosuch://\*\*\*@host/a' cannot be listed"):
        list_files(["nosuch://user:secret@host/a"])


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("/data/a@b?c=d.txt", "/data/a@b?c=d.txt"),
        ("ftp://user:secret@host/a.csv", "ftp://***@host/a.csv"),
        ("https://host/a.csv?sig=abc&x=1", "https://host/a.csv?***"),
        ("s3://bucket/part-?.parquet", "s3://bucket/part-?.parquet"),
        ("memory://a/b@c", "memory://a/b@c"),
    ],
)
def test_credentials_are_not_shown(url: str, shown: str):
    assert redact_url(url) == shown


@pytest.mark.parametrize("paths", [3, None, ["a", 3], {"a"}, b"a"])
def test_paths_of_the_wrong_type(paths):
    with pytest.raises(PipelineError, match="read_text: paths must be a string"):
        as_paths(paths, "read_text")


def test_no_paths():
    with pytest.raises(PipelineError, match="no paths given"):
        as_paths([], "read_text")
    with pytest.raises(PipelineError, match="an empty path"):
        as_paths(["a", ""], "read_text")
    assert as_paths(Path("a/b"), "read_text") == ("a/b",)


def test_only_true_and_false_are_flags(tmp_path: Path):
    assert [as_flag(value, "verify", "read") for value in (True, np.False_)] == [True, False]
    for reader in (read_parquet, read_vortex):
        with pytest.raises(
            PipelineError, match=rf"{reader.__name__}\(verify='no'\): True or False is expected, not str"
        ):
            reader(tmp_path, verify="no")


def test_concurrently_keeps_order_and_raises_the_first_error():
    assert concurrently(lambda x: x * x, range(50)) == [x * x for x in range(50)]
    with pytest.raises(ZeroDivisionError):
        concurrently(lambda x: 1 // x, [1, 0, 2])


def test_reading_names_the_file_and_keeps_the_cause():
    with (
        pytest.raises(SourceError, match=r"^a\.bin, row group 3: cannot be read: broken") as error,
        reading("a.bin", "row group 3"),
    ):
        raise ValueError("broken")
    assert isinstance(error.value.__cause__, ValueError)
    with pytest.raises(SourceError, match="no permission"), reading("a.bin"):
        raise PermissionError("no")
    with pytest.raises(SourceError, match="no longer exists"), reading("a.bin"):
        raise FileNotFoundError("no")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a-{0..3}.x", ["a-0.x", "a-1.x", "a-2.x", "a-3.x"]),
        ("a-{008..010}.x", ["a-008.x", "a-009.x", "a-010.x"]),
        ("s3://b/{x,y}/{1..2}.p", ["s3://b/x/1.p", "s3://b/x/2.p", "s3://b/y/1.p", "s3://b/y/2.p"]),
        ("{2..1}", ["2", "1"]),
        ("{,b}c", ["c", "bc"]),
        ("{one}/{}", ["{one}/{}"]),
        ("s3://b/{x,y}/*.{jpg,png}", ["s3://b/x/*.{jpg,png}", "s3://b/y/*.{jpg,png}"]),
        ("*/{0..1}.{x,y}", ["*/0.x", "*/0.y", "*/1.x", "*/1.y"]),
        ("{a/*,b/*}", ["a/*", "b/*"]),
        ("https://h/a?b={1,2}", ["https://h/a?b=1", "https://h/a?b=2"]),
    ],
)
def test_braces_stand_for_several_paths(path, expected):
    assert as_paths(path, "read") == tuple(expected)


@pytest.mark.parametrize("storage", ["local", "memory"])
def test_one_of_the_endings_of_a_glob_must_match(tmp_path, storage):
    root = str(tmp_path) if storage == "local" else "memory://endings"
    fs, path = fsspec.url_to_fs(root)
    fs.makedirs(f"{path}/a", exist_ok=True)
    for name in ("1.jpg", "2.png", "3.txt"):
        fs.pipe_file(f"{path}/a/{name}", b"")
    files = cedar.read_files(f"{root}/*/*.{{jpg,jpeg,png}}")
    assert [row["path"].rpartition("/")[2] for row in files] == ["1.jpg", "2.png"]
    with pytest.raises(SourceError, match=r"no file matches '.*\*\.{gif,bmp}'"):
        list(cedar.read_files(f"{root}/*/*.{{gif,bmp}}"))
    with pytest.raises(SourceError, match="no file matches"):
        list(cedar.read_files(f"{root}/{{a,b}}/*.jpg"))


def test_a_local_file_may_have_braces_in_its_name(tmp_path):
    name = tmp_path / "{1,2}.txt"
    name.write_text("here")
    assert as_paths(name, "read") == (str(name),)
    for number in (1, 2):
        (tmp_path / f"n{number}.txt").write_text(str(number))
    assert [row["text"] for row in cedar.read_text(str(tmp_path / "n{1..2}.txt"))] == ["1", "2"]


LOGS = {
    "Delta": "_delta_log/00000000000000000000.json",
    "Iceberg": "metadata/00001-5e8f.metadata.json",
    "Hudi": ".hoodie/hoodie.properties",
}


HINTS = {"Delta": "cedar.read_delta", "Iceberg": "cedar.read_iceberg", "Hudi": "Spark"}


def made(root, log):
    """A table with a partition folder and a data folder, and next to it a plain folder."""
    fs, path = fsspec.url_to_fs(root)
    for name in ("table/data", "table/day=1/hour=2", "plain/day=1"):
        fs.makedirs(f"{path}/{name}", exist_ok=True)
        with fs.open(f"{path}/{name}/a.parquet", "wb") as file:
            pq.write_table(pa.table({"x": [1]}), file)
    fs.makedirs(f"{path}/table/{os.path.dirname(log)}", exist_ok=True)
    fs.pipe_file(f"{path}/table/{log}", b"{}")


@pytest.mark.parametrize("kind", LOGS)
@pytest.mark.parametrize("storage", ["local", "file", "memory"])
def test_a_table_is_refused_however_its_folder_is_named(tmp_path, kind, storage):
    root = {"local": str(tmp_path), "file": f"file://{tmp_path}", "memory": f"memory://formats-{kind}"}[storage]
    made(root, LOGS[kind])
    for below in ("table", "table/", "table/data", "table/day=1", "table/*/*.parquet", "table/**/*.parquet",
                  "table/d*", "*/day=1/*/*.parquet"):  # fmt: skip
        for paths in (f"{root}/{below}", [f"{root}/plain", f"{root}/{below}"]):
            with pytest.raises(SourceError, match=f"table is an? {kind} .*deleted") as error:
                cedar.read_parquet(paths).count()
            assert HINTS[kind] in str(error.value)
    assert cedar.read_parquet(f"{root}/plain").count() == 1
    assert cedar.read_parquet(f"{root}/plain/*/*.parquet").count() == 1
    assert cedar.read_parquet([f"{root}/table/data/a.parquet", f"{root}/plain/day=1/a.parquet"]).count() == 2  # named


def test_a_folder_of_metadata_is_no_table(tmp_path):
    made(str(tmp_path), "metadata/columns.json")
    assert cedar.read_parquet(str(tmp_path / "table/data")).count() == 1


def test_a_link_to_a_folder_of_a_table_is_refused(tmp_path):
    made(str(tmp_path), LOGS["Delta"])
    os.symlink(tmp_path / "table/day=1", tmp_path / "link")
    with pytest.raises(SourceError, match="a Delta Lake table"):
        cedar.read_parquet(str(tmp_path / "link")).count()
