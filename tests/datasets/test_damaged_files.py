"""``Skip(files=True)``: a damaged file does not end the epoch, and what is skipped is the same however it is read."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cedar
from cedar.core.errors import CedarError, PipelineError, PlanError, RowError, SourceError

ROWS = 30  # of a file
FILES = 5
SKIP = cedar.Skip(files=True)


def _table(rows: list[int]) -> pa.Table:
    return pa.table({"x": rows, "s": [f"value {x}" for x in rows]})


def _arrow(rows: list[int], new: Callable[..., Any]) -> bytes:
    sink = io.BytesIO()
    with new(sink, _table(rows).schema) as writer:
        writer.write_table(_table(rows), max_chunksize=10)
    return sink.getvalue()


def _parquet(rows: list[int]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(_table(rows), sink, row_group_size=10)
    return sink.getvalue()


def _tar(rows: list[int]) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as tar:
        for x in rows:
            member = tarfile.TarInfo(f"{x}.x")
            member.size = 3
            tar.addfile(member, io.BytesIO(b"abc"))
    return sink.getvalue()


def _jsonl(rows: list[int]) -> bytes:
    return b"".join(json.dumps({"x": x, "s": f"value {x}"}).encode() + b"\n" for x in rows)


def _csv(rows: list[int]) -> bytes:
    return b"x,s\n" + b"".join(b"%d,value %d\n" % (x, x) for x in rows)


def _by_name(batch: dict[str, Any]) -> list[int]:
    return [int(x) for x in batch["x"].tolist()]


Kind = tuple[str, Callable[[list[int]], bytes], Callable[[str], cedar.Pipeline], Callable[[dict[str, Any]], list[Any]]]
KINDS: dict[str, Kind] = {
    "parquet": ("parquet", _parquet, cedar.read_parquet, _by_name),
    "arrow": ("arrow", lambda rows: _arrow(rows, pa.ipc.new_file), cedar.read_arrow, _by_name),
    "stream": ("arrow", lambda rows: _arrow(rows, pa.ipc.new_stream), cedar.read_arrow, _by_name),
    "jsonl": ("jsonl", _jsonl, cedar.read_jsonl, _by_name),
    "jsonl.gz": ("jsonl.gz", lambda rows: gzip.compress(_jsonl(rows), mtime=0), cedar.read_jsonl, _by_name),
    "csv": ("csv", _csv, cedar.read_csv, _by_name),
    "plain csv": ("csv", _csv, lambda path: cedar.read_csv(path, quoting=False), _by_name),
    "csv.gz": ("csv.gz", lambda rows: gzip.compress(_csv(rows), mtime=0), cedar.read_csv, _by_name),
    "tar": ("tar", _tar, cedar.read_tar, lambda batch: [int(key) for key in batch["key"].tolist()]),
    "text.gz": (
        "gz", lambda rows: gzip.compress(b"".join(b"%d\n" % x for x in rows), mtime=0), cedar.read_text,
        lambda batch: [int(text) for text in batch["text"].tolist()],
    ),
}  # fmt: skip


def written(folder: Path, kind: str) -> list[Path]:
    suffix, made, _, _ = KINDS[kind]
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{i}.{suffix}" for i in range(FILES)]
    for i, path in enumerate(paths):
        path.write_bytes(made(list(range(100 * i, 100 * i + ROWS))))
    return paths


def read(folder: Path, kind: str) -> cedar.Pipeline:
    return KINDS[kind][2](str(folder / f"*.{KINDS[kind][0]}"))


def run(p: cedar.Pipeline, kind: str, state: Any = None, **options: Any) -> tuple[list[list[Any]], Any]:
    with p.loader(**{"on_error": SKIP, "executor": "inline", "seed": 3} | options) as loader:
        if state is not None:
            loader.load_state_dict(state)
        return [KINDS[kind][3](batch) for batch in loader], loader.report()


def flat(batches: list[list[Any]]) -> list[Any]:
    return [x for batch in batches for x in batch]


@pytest.mark.parametrize("which", [0, 2, FILES - 1])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_cut_short_costs_its_own_rows_alone(tmp_path: Path, kind: str, which: int):
    paths = written(tmp_path, kind)
    data = paths[which].read_bytes()
    cut = data.rindex(b",") if kind in ("csv", "plain csv") else len(data) // 2 + 5
    paths[which].write_bytes(data[:cut])
    p = read(tmp_path, kind).batch(4, last="keep")
    with pytest.raises((SourceError, RowError)) as error:
        run(p, kind, on_error=cedar.Skip())
    assert "loader(on_error=cedar.Skip(files=True))" in str(error.value)
    policy = cedar.Skip(files=True, quarantine=str(tmp_path / "bad"))
    batches, report = run(p, kind, on_error=policy)
    rows = flat(batches)
    sound = [x for i in range(FILES) for x in range(100 * i, 100 * i + ROWS) if i != which]
    assert [x for x in rows if x // 100 != which] == sound
    kept = [x for x in rows if x // 100 == which]
    assert kept == list(range(100 * which, 100 * which + len(kept)))
    assert len(kept) < ROWS
    if kind in ("jsonl", "stream", "tar"):
        assert len(kept) >= 9
    [(url, lost)] = report.skipped_files.items()
    assert url == str(paths[which])
    assert url in lost.error
    assert lost.rows is None
    assert f"skipped of {url} an unknown number of row(s)" in str(report)
    assert list(report.skipped.values()) == [1]
    [line] = (tmp_path / "bad" / "rank-0.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert (record["source"], record["rows"], record["epoch"]) == (url, None, 0)
    assert record["error"] == lost.error


DAMAGE: dict[str, Callable[[Path], object]] = {
    "gone": lambda path: path.unlink(),
    "no permission": lambda path: path.chmod(0),
    "other format": lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4),
    "empty": lambda path: path.write_bytes(b""),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_cannot_be_read_once_it_is_listed(tmp_path: Path, kind: str, damage: str):
    if damage == "no permission" and os.geteuid() == 0:
        pytest.skip("root may read everything")
    paths = written(tmp_path, kind)
    p = read(tmp_path, kind).batch(4, last="keep")
    assert p.schema
    p.loader(on_error=SKIP, executor="inline").close()  # files are listed, and their footers are known
    DAMAGE[damage](paths[1])
    for pipeline in (p, read(tmp_path, kind).batch(4, last="keep")):  # where it is known, and where it is found so
        rows = flat(run(pipeline, kind)[0])
        assert [x for x in rows if x // 100 != 1] == [
            x for i in range(FILES) for x in range(100 * i, 100 * i + ROWS) if i != 1
        ]


def test_of_row_groups_that_cannot_be_read_all_rows_are_counted(tmp_path: Path):
    paths = written(tmp_path, "parquet")
    p = read(tmp_path, "parquet").shuffle(seed=1, window=20).batch(4, last="keep")
    whole = run(p, "parquet")[0]
    data = bytearray(paths[3].read_bytes())
    group = pq.read_metadata(paths[3]).row_group(1)
    start = group.column(1).dictionary_page_offset or group.column(1).data_page_offset
    data[start : start + 8] = b"\xff" * 8
    paths[3].write_bytes(bytes(data))
    p = read(tmp_path, "parquet").shuffle(seed=1, window=20).batch(4, last="keep")
    policy = cedar.Skip(files=True, quarantine=str(tmp_path / "bad"))
    batches, report = run(p, "parquet", on_error=policy)
    lost = set(range(310, 320))
    assert batches == [[x for x in batch if x not in lost] for batch in whole]  # slots keep their place
    assert report.skipped_files[str(paths[3])].rows == 10
    assert sum(report.skipped.values()) == 10
    [line] = (tmp_path / "bad" / "rank-0.jsonl").read_text().splitlines()
    assert (json.loads(line)["row"], json.loads(line)["rows"]) == (10, 10)
    full = run(p, "parquet", on_error=cedar.Skip(files=True, refill=True))[0]
    assert {len(batch) for batch in full} == {4}
    assert flat(full) == [x for x in flat(whole) if x not in lost]
    for plan in ("auto", "off"):  # the damage is in a column that nothing reads
        narrow = read(tmp_path, "parquet").filter(cedar.col("x") >= 0).select("x").batch(4, last="keep")
        assert not lost & set(flat(run(narrow, "parquet", plan=plan)[0]))
    ranks = [run(p, "parquet", rank=rank, world=2)[0] for rank in (0, 1)]
    assert sorted(flat(ranks[0] + ranks[1])) == sorted(set(flat(whole)) - lost)


@pytest.mark.parametrize(
    ("policy", "over"),
    [
        (cedar.Skip(files=True, max_count=0), "max_count=0"),
        (cedar.Skip(files=True, max_rate=0.001), "max_rate=0.001"),
    ],
)
def test_budgets_hold_for_files(tmp_path: Path, policy: cedar.Skip, over: str):
    paths = written(tmp_path, "tar")
    paths[1].write_bytes(paths[1].read_bytes()[:3000])
    p = read(tmp_path, "tar").batch(4, last="keep")
    with pytest.raises(RowError, match=f"more than {over}") as error:
        run(p, "tar", on_error=policy)
    assert str(paths[1]) in str(error.value)
    assert run(p, "tar", on_error=cedar.Skip(files=True, max_count=1))[0]


def test_no_sound_file_is_an_error(tmp_path: Path):
    for path in written(tmp_path, "parquet"):
        path.write_bytes(b"nothing")
    with pytest.raises(SourceError, match="does not end as a Parquet file does"):
        run(read(tmp_path, "parquet").batch(4), "parquet")


def test_what_is_no_damage_stays_an_error(tmp_path: Path):
    written(tmp_path, "parquet")
    pq.write_table(pa.table({"other": ["a"]}), tmp_path / "9.parquet")
    with pytest.raises(CedarError, match="different schemas"):  # every file is sound
        run(read(tmp_path, "parquet").batch(4), "parquet")
    (tmp_path / "9.parquet").unlink()
    p = read(tmp_path, "parquet")
    with pytest.raises(PlanError, match="files=True"):
        p.loader(plan=p.optimize(), on_error=SKIP)
    with pytest.raises(PipelineError, match="damaged"):
        read(tmp_path, "parquet").filter(cedar.col("x") > 3).batch(4).loader(counts="exact", on_error=SKIP)


def test_files_as_rows_are_lost_one_by_one(tmp_path: Path):
    for i in range(50):
        (tmp_path / f"{i:02d}.bin").write_bytes(bytes([i]))
    p = cedar.read_files(tmp_path / "*.bin").shuffle(seed=2).batch(5)

    def names(batches: Any) -> list[list[str]]:
        return [[Path(path).name for path in batch["path"].tolist()] for batch in batches]

    with p.loader(executor="inline", on_error=SKIP) as loader:
        whole = names(loader)
        (tmp_path / "07.bin").unlink()
        (tmp_path / "33.bin").write_bytes(b"longer")
        lost = {"07.bin", "33.bin"}
    with p.loader(executor="inline", on_error=SKIP) as loader:
        assert names(loader) == [[name for name in batch if name not in lost] for batch in whole]
        assert {Path(url).name for url in loader.report().skipped_files} == lost
        assert all(each.rows == 1 for each in loader.report().skipped_files.values())


def test_a_cache_keeps_what_was_lost(tmp_path: Path):
    paths = written(tmp_path / "data", "parquet")
    data = bytearray(paths[3].read_bytes())
    data[4:12] = b"\xff" * 8
    paths[3].write_bytes(bytes(data))
    p = read(tmp_path / "data", "parquet").map(abs, "x", dtype=int).cache(str(tmp_path / "kept"))
    p = p.batch(4, last="keep")
    first, again = run(p, "parquet"), run(p, "parquet")
    assert first[0] == again[0]
    assert len(flat(first[0])) == ROWS * FILES - 10
    assert first[1].skipped_files == again[1].skipped_files != {}
    with pytest.raises(SourceError):
        run(p, "parquet", on_error=cedar.Skip())


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=6)
@given(data=st.data())
def test_any_damage_gives_the_same_batches_however_they_are_read(kind: str, data: Any, tmp_path_factory: Any):
    folder = tmp_path_factory.mktemp("damaged")
    paths = written(folder, kind)
    for number in sorted(data.draw(st.sets(st.integers(0, FILES - 1), min_size=1, max_size=2))):
        path, whole = paths[number], paths[number].read_bytes()
        place = int(data.draw(st.floats(0, 1, exclude_max=True)) * len(whole))
        if data.draw(st.booleans()):
            path.write_bytes(whole[:place])
        else:
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
    p = read(folder, kind)
    p = p.shuffle(seed=data.draw(st.integers(0, 9)), window=20) if data.draw(st.booleans()) else p
    p = p.batch(data.draw(st.integers(1, 9)), last="keep")
    see: Callable[[dict[str, Any]], list[Any]] = lambda batch: next(iter(batch.values())).tolist()

    def batches(state: Any = None, **options: Any) -> tuple[list[Any], Any]:
        with p.loader(**{"on_error": SKIP, "executor": "inline"} | options) as loader:
            if state is not None:
                loader.load_state_dict(state)
            return [see(batch) for batch in loader], loader.report().skipped

    try:
        first, skipped = batches()
    except (SourceError, PipelineError, RowError):  # damaged names of columns or types: each file is sound by itself
        return
    for options in ({"executor": "threads", "workers": 3}, {"plan": "off"}):
        assert batches(**options) == (first, skipped)
    step = int(data.draw(st.floats(0, 1)) * len(first))
    with p.loader(on_error=SKIP, executor="inline") as loader:
        iterator = iter(loader)
        for _ in range(step):
            next(iterator)
        state = loader.state_dict()
    if step < len(first):
        assert batches(state)[0] == first[step:]
    ranks = [batches(rank=rank, world=2)[0] for rank in (0, 1)]
    together = [str(x) for rank in ranks for batch in rank for x in batch]
    assert sorted(together) == sorted(str(x) for batch in first for x in batch)


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "tar"])
def test_worker_processes_skip_the_same(tmp_path: Path, kind: str):
    paths = written(tmp_path, kind)
    for path in paths[1:3]:
        data = path.read_bytes()
        half = len(data) // 3
        path.write_bytes(data[:half] + b"\xff" * 8 + data[half + 8 :] if kind != "tar" else data[:half])
    p = read(tmp_path, kind).batch(4, last="keep")
    one, two = (run(p, kind, executor=executor, workers=2) for executor in ("inline", "processes"))
    assert one[0] == two[0]
    assert one[1].skipped_files == two[1].skipped_files != {}
    assert np.isin(range(100, 100 + ROWS), flat(one[0])).mean() < 1
