from __future__ import annotations

import json
import logging
import os
import pickle
import random
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar.core.errors import PipelineError, SourceError
from cedar.datasets import footers, manifest
from cedar.datasets.files_io import File
from cedar.datasets.manifest import CountKey, file_mark, load_counts, place_of, save_counts, write_manifest
from cedar.datasets.parquet import ParquetSource, read_parquet
from cedar.store.entry import opened, sealed, table_body
from cedar.store.folder import Folder
from tests.datasets.reading import read_keyed, traveled

CASES = int(os.environ.get("CASES", "200"))
HEAD = 64  # bytes before the Arrow stream


def write(path: Path, rows: int, start: int = 0, size: int = 3, kind: Any = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    x = np.arange(start, start + rows)
    texts = pa.array([f"t{i}" for i in x], pa.string())
    lists = pa.array([[i] * (i % 3) for i in x], pa.list_(pa.int64()))
    table = pa.table({"x": pa.array(x, kind or pa.int64()), "s": texts, "l": lists})
    pq.write_table(table, path, row_group_size=size)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i, rows in enumerate([7, 0, 4, 1]):
        write(tmp_path / "data" / f"day={i % 2}" / f"{i}.parquet", rows, 100 * i)
    return tmp_path / "data"


def describe(source: ParquetSource) -> list[Any]:
    """What a source says of its data, and what it reads."""
    return [
        list(source.splits()), source.digest(), source.identity(), source.marks, dict(source.schema()),
        source.row_bytes, [file.stamp for file in source.listing], read_keyed(source),
        [source.prune(split, pl.col("x") > 103) for split in source.splits()],
        [source.prune(split, pl.col("day") == 1) for split in source.splits()],
    ]  # fmt: skip


@pytest.fixture
def asks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Listings made, and footers read of files, one line each."""
    seen: list[str] = []

    def watched(module: Any, name: str) -> None:
        plain = getattr(module, name)

        def call(*args: Any) -> Any:
            seen.append(name)
            return plain(*args)

        monkeypatch.setattr(module, name, call)

    watched(manifest, "list_files")
    watched(footers, "_tail")
    return seen


def test_a_source_is_the_same_with_a_manifest_when_it_is_made_and_after(folder: Path, tmp_path: Path) -> None:
    where = tmp_path / "m"
    for columns in (None, ["s"], ["x", "day"], ["day"], ["l", "x"]):
        plain = read_parquet(str(folder), columns=columns)
        first, second = (read_parquet(str(folder), columns=columns, manifest=where) for _ in range(2))
        assert describe(first) == describe(plain) == describe(second) == describe(traveled(second))
        assert describe(second.select(["x"])) == describe(plain.select(["x"]))
        where.unlink()


def test_a_second_start_reads_one_file(folder: Path, tmp_path: Path, asks: list[str]) -> None:
    read_parquet(str(folder), manifest=tmp_path / "m").splits()
    assert asks == ["list_files", *["_tail"] * 4]
    asks.clear()
    source = read_parquet(str(folder), manifest=tmp_path / "m")
    assert len(read_keyed(source)) == 12
    assert source.prune(source.splits()[0], pl.col("x") < 0)
    assert asks == []


def test_another_process_gets_no_footers_and_reads_those_it_needs(
    folder: Path, asks: list[str], tmp_path: Path
) -> None:
    source = read_parquet(str(folder), manifest=tmp_path / "m")
    splits = source.splits()
    whole = len(pickle.dumps(source.__dict__["_manifest"].columns))
    assert len(pickle.dumps(source._footers)) < whole
    asks.clear()
    other = pickle.loads(pickle.dumps(source))
    file = splits[0].file
    assert sum(chunk.rows for split in splits if split.file == file for chunk in other.read(split)) == 7
    assert asks == ["_tail"]


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_pipelines_and_states_are_the_same(folder: Path, tmp_path: Path, executor: str) -> None:
    def pipeline(where: Any) -> cedar.Pipeline:
        return cedar.read_parquet(str(folder), manifest=where).select("x").shuffle(seed=1).batch(2, last="keep")

    with pipeline(None).loader(executor=executor) as plain:
        batches = iter(plain)
        expected = [next(batches)["x"].tolist() for _ in range(2)]
        state = plain.state_dict()
        expected += [batch["x"].tolist() for batch in batches]
    with pipeline(tmp_path / "m").loader(executor=executor) as loader:
        assert [batch["x"].tolist() for batch in loader] == expected
    with pipeline(tmp_path / "m").loader(executor=executor) as loader:
        loader.load_state_dict(state)
        assert [batch["x"].tolist() for batch in loader] == expected[2:]


def test_it_is_brought_up_to_date_by_reading_what_changed(folder: Path, tmp_path: Path, asks: list[str]) -> None:
    out = tmp_path / "m"
    made = write_manifest(str(folder), out)
    assert (made.files, made.row_groups, made.rows, made.read) == (4, 7, 12, 4)
    assert str(made).startswith("4 files, 7 row groups, 12 rows; 4 footers read, 0 unchanged; ")
    assert write_manifest(str(folder), out).read == 0
    write(folder / "day=0" / "0.parquet", 9, 500)  # changed
    write(folder / "day=1" / "0.parquet", 2, 700)  # new, before others
    (folder / "day=1" / "3.parquet").unlink()
    asks.clear()
    assert write_manifest(str(folder), out).read == 2
    assert asks == ["list_files", "_tail", "_tail"]
    asks.clear()
    kept = describe(read_parquet(str(folder), manifest=out))
    assert asks == []
    assert kept == describe(read_parquet(str(folder)))


def test_new_files_are_not_seen_and_changed_ones_are_an_error(folder: Path, tmp_path: Path) -> None:
    write_manifest(str(folder), tmp_path / "m")
    write(folder / "day=1" / "9.parquet", 2, 700)
    assert len(read_keyed(read_parquet(str(folder), manifest=tmp_path / "m"))) == 12
    write(folder / "day=0" / "0.parquet", 9, 500)
    with pytest.raises(SourceError, match=r"0\.parquet.*changed while in use") as caught:
        read_keyed(read_parquet(str(folder), manifest=tmp_path / "m"))
    assert "cedar data manifest" in str(caught.value)


def test_files_of_several_schemas_and_paths(tmp_path: Path) -> None:
    for i, kind in enumerate([pa.int64(), pa.int32(), pa.int64()]):
        write(tmp_path / f"{i}" / "a.parquet", 4, 10 * i, kind=kind)
    paths = [str(tmp_path / "1" / "*.parquet"), str(tmp_path / "0"), str(tmp_path / "2" / "a.parquet")]
    for _ in range(2):
        kept, plain = read_parquet(paths, columns=["s"], manifest=tmp_path / "m"), read_parquet(paths, columns=["s"])
        assert [list(kept.splits()), kept.digest(), read_keyed(kept)] == [
            list(plain.splits()), plain.digest(), read_keyed(plain),
        ]  # fmt: skip
        with pytest.raises(SourceError, match="have different schemas: column 'x' is int64 in the first"):
            read_parquet(paths, manifest=tmp_path / "m").schema()


def test_files_that_differ_are_an_error_also_where_damaged_files_are_skipped(tmp_path: Path) -> None:
    for i, kind in enumerate([pa.int64(), pa.int32()]):
        write(tmp_path / "data" / f"{i}.parquet", 4, 10 * i, kind=kind)
    p = cedar.read_parquet(str(tmp_path / "data"), manifest=tmp_path / "m")
    with pytest.raises(SourceError, match="have different schemas"):
        list(p.loader(on_error=cedar.Skip(files=True), executor="inline"))


def test_sound_files_are_not_read_again_where_damaged_ones_are_skipped(folder: Path, asks: list[str]) -> None:
    source = read_parquet(str(folder), manifest=folder.parent / "m")
    assert len(source.splits()) == 6
    asks.clear()
    assert (len(read_keyed(source.skipping_damaged())), asks) == (12, [])


def test_on_other_storage(tmp_path: Path) -> None:
    fs = fsspec.filesystem("memory")
    for i in range(3):
        write(tmp_path / "a.parquet", 4, 10 * i)
        fs.pipe_file(f"/manifests/data/{i}.parquet", (tmp_path / "a.parquet").read_bytes())
    url, where = "memory://manifests/data/*.parquet", "memory://manifests/m"
    assert write_manifest(url, where).read == 3
    assert write_manifest(url, where).read == 0
    kept = read_parquet(url, manifest=where)
    assert [list(kept.splits()), kept.digest(), kept.identity(), read_keyed(kept)] == [
        (plain := read_parquet(url)).splits(), plain.digest(), plain.identity(), read_keyed(plain),
    ]  # fmt: skip
    fs.rm("/manifests", recursive=True)


def test_those_who_start_at_once_make_it_once(folder: Path, tmp_path: Path, asks: list[str]) -> None:
    found: list[int] = []

    def start() -> None:
        found.append(len(read_parquet(str(folder), manifest=tmp_path / "m").splits()))

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [6] * 6
    assert asks.count("list_files") == 1
    assert os.listdir(tmp_path) in (["data", "m"], ["m", "data"])


def test_what_is_damaged_is_said_and_made_anew(folder: Path, tmp_path: Path, caplog: Any) -> None:
    where = tmp_path / "m"
    plain = describe(read_parquet(str(folder)))
    assert describe(read_parquet(str(folder), manifest=where)) == plain
    whole = where.read_bytes()
    draw = random.Random(0)
    places = [0] + [HEAD] + [draw.randrange(HEAD, len(whole)) for _ in range(9)]
    for damaged in [*(flipped(whole, at) for at in places[1:]), whole[:20], whole[: len(whole) // 2], b""]:
        where.write_bytes(damaged)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "cedar"):
            assert read_parquet(str(folder), manifest=where).digest() == plain[1]
        assert [f"the manifest {str(where)!r} is damaged" in r.getMessage() for r in caplog.records] == [True]
        assert where.read_bytes() == whole


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


def forged(data: bytes, change: Callable[[pa.Table], pa.Table]) -> bytes:
    """A manifest whose hash is right, of a table that is not."""
    table = change(pa.ipc.open_stream(body_of(data)[HEAD:]).read_all())
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return resealed(data[:HEAD] + sink.getvalue().to_pybytes())


def resealed(body: bytes) -> bytes:
    """A manifest with right checksums."""

    def write(sink: Any) -> dict[str, Any]:
        sink.write(body)
        return {}

    return sealed(manifest._NAME, write, manifest._VERSIONS)


def body_of(data: bytes) -> bytes:
    return bytes(opened(data, manifest._NAME, manifest._VERSIONS).body)


def with_column(name: str, value: Callable[[Any], Any]) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        i = table.schema.get_field_index(name)
        field = table.schema.field(i)
        return table.set_column(i, field, pa.array([value(v) for v in table[name].to_pylist()], field.type))

    return change


FORGED: list[tuple[Callable[[pa.Table], pa.Table], str]] = [
    (with_column("path", lambda _: "/etc/hosts"), "not below its paths"),
    (with_column("path", lambda p: p.replace("/day=0/", "/../day=0/")), "not below its paths"),
    (with_column("name", lambda _: "day=7/0.parquet"), "not below its paths"),
    (with_column("given", lambda _: 1), "not below its paths"),
    (with_column("given", lambda _: -1), "not below its paths"),
    (with_column("given", lambda _: None), "column 'given' has nulls"),
    (lambda t: pa.concat_tables([t, t]), "twice"),
    (lambda t: t.slice(0, 0), "it has no files"),
    (with_column("size", lambda _: -5), "with a size below 0"),
    (with_column("stamp", lambda _: '{"a": 1}'), "invalid stamp"),
    (with_column("stamp", lambda _: "[" * 100_000), "is damaged"),
    (with_column("kind", lambda _: 3), "not numbered in order"),
    (with_column("rows", lambda r: [-1 for _ in r]), "below 0"),
    (with_column("rows", lambda r: [*r, 5]), "the sizes of some columns"),
    (with_column("bytes", lambda b: b[1:]), "the sizes of some columns"),
    (with_column("bytes", lambda b: [1 << 62 for _ in b]), "beyond 62 bits"),
    (with_column("footer", lambda _: b"x"), "it is cut off"),
    (with_column("footer", lambda f: (1 << 62).to_bytes(8, "little") + f[8:]), "it says it has"),
    (with_column("footer", lambda f: f[:8] + bytes(len(f) - 8)), "it is damaged"),
    (lambda t: t.drop_columns(["stamp"]), "do not match this version"),
]


@pytest.mark.heavy
@pytest.mark.parametrize(("change", "why"), FORGED)
def test_what_a_stranger_wrote_names_no_other_files_and_is_made_anew(
    folder: Path, tmp_path: Path, caplog: Any, change: Any, why: str
) -> None:
    where = tmp_path / "m"
    write_manifest(str(folder), where)
    whole = where.read_bytes()
    where.write_bytes(forged(whole, change))
    with caplog.at_level(logging.WARNING, "cedar"):
        assert len(read_parquet(str(folder), manifest=where).splits()) == 6
    assert why in caplog.text
    assert where.read_bytes() == whole


def test_counts_that_are_not_those_of_the_footer_are_an_error_by_name(folder: Path, tmp_path: Path) -> None:
    where = tmp_path / "m"
    write_manifest(str(folder), where)
    where.write_bytes(forged(where.read_bytes(), with_column("rows", lambda r: [n + 1 for n in r])))
    with pytest.raises(SourceError, match="the footer of .*it differs from the manifest"):
        read_keyed(read_parquet(str(folder), manifest=where))


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(max(1, CASES // 20)))
def test_any_bytes_behind_a_right_hash_are_refused_or_read(folder: Path, tmp_path: Path, seed: int) -> None:
    where, draw = tmp_path / "m", random.Random(seed)
    write_manifest(str(folder), where)
    whole = where.read_bytes()
    for _ in range(10):
        body = bytearray(body_of(whole))
        for _ in range(draw.randint(1, 4)):
            body[draw.randrange(HEAD, len(body))] = draw.randrange(256)
        where.write_bytes(resealed(bytes(body)))
        try:
            source = read_parquet(str(folder), manifest=where)
            assert all(file.url.startswith(str(folder)) for file in source.listing)
            for split in source.splits():
                list(source.read(split))
        except (PipelineError, SourceError):
            pass  # by name


def test_a_manifest_of_other_paths_and_what_is_none_are_left_alone(folder: Path, tmp_path: Path) -> None:
    where = tmp_path / "m"
    write_manifest(str(folder), where)
    whole = where.read_bytes()
    with pytest.raises(PipelineError, match="was written for other paths"):
        read_parquet(str(folder / "day=0"), manifest=where).splits()
    assert where.read_bytes() == whole
    data = next(folder.rglob("*.parquet"))
    whole = data.read_bytes()
    for use in (lambda: read_parquet(str(folder), manifest=data).splits(), lambda: write_manifest(str(folder), data)):
        with pytest.raises(PipelineError, match="is not a manifest"):
            use()
    assert data.read_bytes() == whole


def test_credentials_do_not_get_into_a_manifest(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="a URL with credentials") as caught:
        write_manifest("https://me:secret@example.org/a.parquet", tmp_path / "m")
    assert "secret" not in str(caught.value)


def test_a_place_that_cannot_be_written_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be written.*") as caught:
        read_parquet(str(folder), manifest=tmp_path / "no" / "m").splits()
    assert "cedar data manifest" in str(caught.value)


def test_paths_stand_in_it_as_seen_from_everywhere(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_manifest("data", "m")
    monkeypatch.chdir(folder)
    assert len(read_parquet("../data", manifest="../m").splits()) == 6
    metadata = pa.ipc.open_stream((tmp_path / "m").read_bytes()[HEAD:]).schema.metadata
    assert json.loads(metadata[b"cedar.paths"]) == [str(folder)]


def beside(tmp_path: Path, filters: str = "f", name: str = "a") -> CountKey:
    source = SimpleNamespace(manifest=str(tmp_path / name), storage_options=None, paths=())
    key = place_of(source, filters)
    assert key is not None
    return key


def file_of(key: CountKey) -> Path:
    assert isinstance(key.place, Folder)
    return Path(key.place.path(key.name))


def test_counts_come_back_under_their_filters(tmp_path: Path) -> None:
    save_counts(beside(tmp_path), {"one": (3, 0), "two": ()})
    save_counts(beside(tmp_path, "g"), {"one": (1, 1)})
    assert load_counts(beside(tmp_path)) == {"one": (3, 0), "two": ()}
    assert load_counts(beside(tmp_path, "g")) == {"one": (1, 1)}
    assert load_counts(beside(tmp_path, "h")) == load_counts(beside(tmp_path, name="b")) == {}


def test_without_a_manifest_they_are_kept_for_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    one, two = (SimpleNamespace(manifest=None, storage_options=None, paths=(path,)) for path in ("a", "b"))
    key = place_of(one, "f")
    assert key is not None
    save_counts(key, {"one": (3,)})
    again, other = place_of(one, "f"), place_of(two, "f")
    assert again is not None
    assert other is not None
    assert load_counts(again) == {"one": (3,)}
    assert load_counts(other) == {}


def test_damaged_ones_are_said_and_what_is_of_others_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    key = beside(tmp_path)
    for table in (pa.table({"x": [1]}), pa.table({"file": ["one"], "left": [[-1]]})):
        save_counts(key, {"one": (3,)})
        key.place.put(key.name, table_body(table), {})
        assert load_counts(key) == {}
        assert "will be recomputed" in caplog.text
        caplog.clear()
    save_counts(key, {"one": (3,)})
    file_of(key).write_bytes(file_of(key).read_bytes()[:-1])
    assert load_counts(key) == {}
    assert "will be recomputed: it is cut short" in caplog.text
    (tmp_path / "b.counts").write_text("mine")
    save_counts(beside(tmp_path, name="b"), {"one": (3,)})
    assert (tmp_path / "b.counts").read_text() == "mine"
    assert "entries cannot be saved in" in caplog.text


def test_a_file_is_known_by_its_name_size_and_stamp() -> None:
    file = File("/a", "a", 5, stamp=(1, 2, 3))
    others = [
        File("/b", "a", 5, stamp=(1, 2, 3)),
        File("/a", "a", 6, stamp=(1, 2, 3)),
        File("/a", "a", 5, stamp=(9, 2, 3)),
    ]
    assert file_mark(file) == file_mark(File("/a", "other", 5, stamp=(1, 2, 3)))
    assert len({file_mark(file), *map(file_mark, others)}) == 4
    assert file_mark(File("/a", "a", 5)) is None
