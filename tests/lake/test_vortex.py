from __future__ import annotations

import random
import shutil
from datetime import date
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar import CedarError, PipelineError, ResumeError, SourceError, col
from cedar.datasets.sums import write_sums
from cedar.lake.vortex import _runs, read_vortex
from tests.datasets.reading import column, read_keyed, read_rows, traveled

vortex: Any = pytest.importorskip("vortex", reason="the extra vortex is not installed")


def table(n: int, start: int = 0) -> pa.Table:
    ids = range(start, start + n)
    return pa.table(
        {
            "name": pa.array([f"n{i % 50}" for i in ids], pa.string()),
            "id": pa.array(ids, pa.int64()),
            "tags": pa.array([list(range(i % 3)) if i % 4 else None for i in ids], pa.list_(pa.int32())),
            "f": pa.array([i / 7 if i % 5 else None for i in ids]),
            "deep": pa.array([{"a": i, "b": [str(i)]} for i in ids]),
            "raw": pa.array([bytes([i % 256] * (i % 6)) for i in ids]),
            "pair": pa.array([[i, -i] for i in ids], pa.list_(pa.float32(), 2)),
            "day": pa.array([date(2020, 1, 1 + i % 28) for i in ids]),
        }
    )


def write(path: Path, data: pa.Table, sums: bool = False) -> Path:
    vortex.io.write(data, str(path))
    if sums:
        write_sums([path])
    return path


# ---- rows ------------------------------------------------------------------------------------------------------------


def test_all_rows_of_files(tmp_path: Path):
    write(tmp_path / "a.vortex", table(100), sums=True)
    write(tmp_path / "b.vortex", table(50, 100))
    for paths in (tmp_path, f"{tmp_path}/*", [tmp_path / "b.vortex", tmp_path / "a.vortex"]):
        source = read_vortex(paths)
        assert [(s.file, s.start, s.rows) for s in source.splits()] == [(0, 0, 100), (1, 0, 50)]
        rows = read_keyed(source)
        assert [row for _, row in rows] == table(150).to_pylist()
        assert rows[120][0] == (1, 20)
        assert read_keyed(traveled(source), order=[1, 0]) == rows
    assert source.schema()["name"] == pa.large_string()
    assert source.schema()["tags"] == pa.large_list(pa.int32())


def test_splits_are_row_ranges_that_join_or_cut_chunks(tmp_path: Path, monkeypatch):
    write(tmp_path / "a.vortex", table(100_000).select(["id", "name"]))
    source = read_vortex(tmp_path)
    counts = [s.rows or 0 for s in source.splits()]
    assert (sum(counts), max(counts)) == (100_000, 65_536)
    monkeypatch.setattr("cedar.lake.vortex._ROWS", 10_000)
    source = read_vortex(tmp_path)
    assert len(source.splits()) >= 10
    assert column(source, "id") == list(range(100_000))


@given(st.lists(st.integers(1, 200_000), max_size=20))
def test_runs_cover_all_rows_once(sizes):
    ends = np.cumsum(sizes).tolist()
    chunks = list(zip([0, *ends], ends, strict=False))
    runs = list(_runs(chunks))
    assert [start for start, _ in runs] == [0, *(stop for _, stop in runs)][: len(runs)]
    assert (runs[-1][1] if runs else 0) == sum(sizes)
    assert all(0 < stop - start <= 65_536 for start, stop in runs)


def test_columns(tmp_path: Path):
    source = read_vortex(write(tmp_path / "a.vortex", table(100)), columns=["tags", "id"])
    assert read_rows(source)[5] == {"tags": [0, 1], "id": 5}
    assert read_rows(source.select(["id"]))[5] == {"id": 5}
    assert len(read_rows(source.select([]))) == 100
    with pytest.raises(PipelineError, match="there is no column 'ids'"):
        read_vortex(tmp_path / "a.vortex", columns=["ids"]).schema()


def test_files_without_rows_and_of_other_columns(tmp_path: Path):
    write(tmp_path / "a.vortex", table(0))
    assert (read_vortex(tmp_path).splits(), cedar.read_vortex(tmp_path).count()) == ([], 0)
    write(tmp_path / "b.vortex", table(3).drop_columns(["tags"]))
    with pytest.raises(SourceError, match="column 'tags' .* is missing in the second"):
        read_vortex(tmp_path).splits()
    vortex.io.write(vortex.array([1, 2]), str(tmp_path / "c.vortex"))
    with pytest.raises(SourceError, match=r"c\.vortex.* not columns"):
        read_vortex(tmp_path / "c.vortex").schema()


def test_other_storage(tmp_path: Path):
    fs = fsspec.filesystem("memory")
    for name in ("a.vortex", "a.vortex.crc"):
        write(tmp_path / "a.vortex", table(300), sums=True)
        fs.pipe_file(f"/vortex/{name}", (tmp_path / name).read_bytes())
    assert cedar.read_vortex("memory://vortex", verify=True).to_arrow().to_pylist() == table(300).to_pylist()


# ---- predicates ------------------------------------------------------------------------------------------------------

ROWS = 40_000
NUMBERS = pa.table(
    {
        "i": pa.array([None if i % 11 == 0 else i for i in range(ROWS)]),
        "u": pa.array([i % 200 for i in range(ROWS)], pa.uint8()),
        "f": pa.array([float("nan") if i > 30_000 else i / 3 for i in range(ROWS)]),
        "s": pa.array([f"{i:05}" if i % 5 else None for i in range(ROWS)]),
        "b": pa.array([i > 20_000 for i in range(ROWS)]),
    }
)
CONSTANTS: dict[str, list[Any]] = {"i": [-1, 0, 7, 39_999, 2**40, 2**63, -(2**70), 0.5], "u": [-1, 3, 250, 300, 199.5],
             "f": [-1.0, 1e9, 9],
             "s": ["", "00007", "39999", "é"], "b": [True, False]}  # fmt: skip


@st.composite
def predicates(draw) -> Any:
    kind = draw(st.sampled_from(["compare", "compare", "in", "null", "and", "or", "not", "flag"]))
    if kind in {"and", "or"}:
        a, b = draw(predicates()), draw(predicates())
        return a & b if kind == "and" else a | b
    if kind == "not":
        return ~draw(predicates())
    if kind == "flag":
        return col("b")
    name = draw(st.sampled_from(sorted(CONSTANTS)))
    if kind == "null":
        return draw(st.sampled_from([col(name).is_null(), col(name).is_not_null()]))
    values = st.sampled_from(CONSTANTS[name])
    if kind == "in" and name != "f":
        chosen = draw(st.lists(values, max_size=2))
        return col(name).is_in([v for v in chosen if isinstance(v, str) or (abs(v) < 2**40 and v == int(v))])
    value = draw(values)
    compare: Any = draw(st.sampled_from(["__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"]))
    return getattr(col(name), compare)(value)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("numbers") / "n.vortex", NUMBERS)


@given(predicates())
def test_splits_are_left_out_only_where_polars_finds_no_row(numbers: Path, predicate: pl.Expr):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cedar.lake.vortex._ROWS", 8192)
        source = read_vortex(numbers)
        frame: Any = pl.from_arrow(NUMBERS)
        for split in source.splits():
            try:
                left = len(frame[split.start : split.stop].filter(predicate))
            except pl.exceptions.PolarsError:
                left = 1  # the error has to come out
            assert not (source.prune(split, predicate) and left), (split, predicate)


def test_splits_without_rows_that_are_wanted_are_left_out(numbers: Path, monkeypatch):
    monkeypatch.setattr("cedar.lake.vortex._ROWS", 8192)
    source = read_vortex(numbers)
    kept = [s.part for s in source.splits() if not source.prune(s, (col("i") > 35_000) & (col("f") < 1e9))]
    assert kept == [4]
    assert cedar.read_vortex(numbers).filter(col("s") == "00007").to_arrow()["i"].to_pylist() == [7]


# ---- damage ----------------------------------------------------------------------------------------------------------


def test_every_flipped_bit_of_a_file_with_checksums_is_named(tmp_path: Path):
    path = write(tmp_path / "a.vortex", table(3000), sums=True)
    whole, chance = path.read_bytes(), random.Random(3)
    for _ in range(40):
        content = bytearray(whole)
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(content)
        with pytest.raises(SourceError, match=r"a\.vortex: damaged: bytes .* differ from those written"):
            read_rows(read_vortex(path))


def test_without_checksums_a_flip_is_an_error_or_a_value_and_never_the_end(tmp_path: Path):
    whole = write(tmp_path / "whole.vortex", table(500)).read_bytes()
    damaged = tmp_path / "damaged.vortex"
    chance = random.Random(7)
    outcomes = set()
    for i in range(60):
        content = bytearray(whole)
        if i % 3:
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        else:
            del content[chance.randrange(len(content)) :]
        damaged.write_bytes(content)
        try:
            outcomes.add(str(len(read_rows(read_vortex(damaged)))))
        except CedarError as error:
            outcomes.add("named" if "damaged.vortex" in str(error) else str(error))
    assert outcomes == {"named", "500"}


def test_checksums_that_are_missing_damaged_or_of_another_file(tmp_path: Path):
    path = write(tmp_path / "a.vortex", table(100))
    with pytest.raises(SourceError, match=r"a\.vortex: has no checksums") as caught:
        cedar.read_vortex(path, verify=True).count()
    assert "write_sums" in (caught.value.fix or "")
    write_sums([path])
    assert cedar.read_vortex(path, verify=True).count() == 100
    sums = tmp_path / "a.vortex.crc"
    good = sums.read_bytes()
    for bad in (b"", b"{}", good[:-3], good.replace(b'"block": 65536', b'"block": 65537'), good.replace(b"1", b"2")):
        sums.write_bytes(bad)
        with pytest.raises(SourceError, match=r"a\.vortex"):
            cedar.read_vortex(path).count()
        assert cedar.read_vortex(path, verify=False).count() == 100
    sums.write_bytes(good)
    write(path, table(200))
    with pytest.raises(SourceError, match="was truncated or rewritten"):
        cedar.read_vortex(path).count()


# ---- change ----------------------------------------------------------------------------------------------------------


def test_a_file_that_is_replaced_is_told(tmp_path: Path):
    for i in range(3):
        write(tmp_path / f"{i}.vortex", table(100, 100 * i))
    p = cedar.read_vortex(tmp_path).select("id").batch(10)
    with p.loader(executor="inline", plan="off") as loader, pytest.raises(SourceError, match="changed while in use"):
        for step, _ in enumerate(loader):
            if not step:
                state = loader.state_dict()
                shutil.copyfile(tmp_path / "0.vortex", tmp_path / "2.vortex")
    with pytest.raises(ResumeError):
        cedar.read_vortex(tmp_path).select("id").batch(10).loader().load_state_dict(state)


def test_a_resumed_run_goes_on(tmp_path: Path):
    write(tmp_path / "a.vortex", table(3000), sums=True)
    p = cedar.read_vortex(tmp_path).select("id").shuffle(seed=2, window=500).batch(64, last="keep")
    with p.loader() as loader:
        assert len(loader) == 47
        batches = iter(loader)
        begun = [next(batches)["id"].tolist() for _ in range(20)]
        state = loader.state_dict()
    with p.loader(executor="processes", workers=2) as loader:
        loader.load_state_dict(state)
        rest = [batch["id"].tolist() for batch in loader]
    assert sorted(i for batch in begun + rest for i in batch) == list(range(3000))
    with p.loader(plan="off", executor="inline") as loader:
        assert [batch["id"].tolist() for batch in loader] == begun + rest


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch):
    import sys

    from cedar.core.packages import library

    monkeypatch.setitem(sys.modules, "vortex", None)
    library.cache_clear()
    (tmp_path / "a.vortex").write_bytes(b"VTXF")
    with pytest.raises(PipelineError, match="read_vortex needs vortex") as caught:
        cedar.read_vortex(tmp_path).count()
    assert caught.value.fix == "pip install 'cedar-data[vortex]'"
    library.cache_clear()
