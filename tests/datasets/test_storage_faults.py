"""Storage that fails: every reader delivers the same rows, or says in the end what failed."""

from __future__ import annotations

import gzip
import threading
from pathlib import Path
from typing import Any

import pytest

import cedar
from cedar.core.errors import SourceError
from cedar.core.requests import FLOOR, SHARE
from cedar.testing.storage import FlakyFileSystem, StorageFault, flaky
from tests.datasets.failing_storage import lines, parquet
from tests.toy_http_store import Store

# ---- every reader ----------------------------------------------------------------------------------------------------

FORMATS: dict[str, tuple[Any, Any]] = {
    "parquet": (cedar.read_parquet, parquet),
    "jsonl": (cedar.read_jsonl, lines),
    "jsonl.gz": (cedar.read_jsonl, lambda a, b: gzip.compress(lines(a, b))),
    "csv": (cedar.read_csv, lambda a, b: b"x\n" + b"".join(b"%d\n" % i for i in range(a, b))),
    "txt": (cedar.read_text, lines),
    "bin": (cedar.read_files, lines),
}


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.usefixtures("impatient")
def test_readers_deliver_the_same_rows_from_a_storage_that_fails(kind: str, memory: Any):
    read, make = FORMATS[kind]
    for i in range(4):
        memory.pipe_file(f"/data/{i}.{kind}", make(100 * i, 100 * (i + 1)))
    sound = read(f"memory://data/*.{kind}").to_arrow()
    url = flaky(f"memory://data/*.{kind}", status=0.1, busy=0.1, reset=0.1, short=0.2, seed=5)
    with read(url).loader(executor="threads", workers=2, format="arrow") as loader:
        rows = list(loader)
        report = loader.report()
    wanted = sound.to_pylist()
    for row in [*rows, *wanted]:
        row.pop("path", None)
    assert rows == wanted
    assert report.retries > 0
    assert report.requests > report.retries
    assert f"storage: {report.requests:,} requests" in str(report)


def test_local_files_ask_nothing(tmp_path: Path):
    (tmp_path / "a.jsonl").write_bytes(lines(0, 10))
    with cedar.read_jsonl(str(tmp_path) + "/*.jsonl").loader() as loader:
        assert len(list(loader)) == 10
        assert loader.report().requests == 0
        assert "storage: " not in str(loader.report())


@pytest.mark.usefixtures("impatient")
def test_worker_processes_count_their_requests_too(memory: Any, tmp_path: Path):
    for i in range(8):
        (tmp_path / f"{i}.parquet").write_bytes(parquet(100 * i, 100 * (i + 1)))
    url = flaky(tmp_path / "*.parquet", status=0.2, seed=1, log=tmp_path / "log")
    with cedar.read_parquet(url).batch(50).loader(executor="processes", workers=2, plan="off") as loader:
        rows = [x for batch in loader for x in batch["x"].tolist()]
        report = loader.report()
    assert rows == list(range(800))
    logged = [line.split()[:2] for line in (tmp_path / "log").read_text().splitlines()]
    processes = {pid for pid, _ in logged}
    assert len(processes) > 1
    assert report.retries > 0
    # Opening a file asks for its size as well, in the one request that is counted.
    assert report.requests <= len(logged) <= 3 * report.requests


def test_a_storage_that_is_down_is_an_error_that_names_it(memory: Any, monkeypatch: pytest.MonkeyPatch):
    memory.pipe_file("/data/a.parquet", parquet(0, 10))
    monkeypatch.setenv("CEDAR_STORAGE_ATTEMPTS", "2")
    url = flaky("memory://data/a.parquet", status=0.999999)
    with pytest.raises(SourceError, match=r"flaky://memory/data/a.parquet.*failed 2 time\(s\).*status 503"):
        cedar.read_parquet(url).count()


def test_a_loader_that_is_closed_leaves_no_thread_waiting_for_storage(memory: Any, monkeypatch: pytest.MonkeyPatch):
    for i in range(4):
        memory.pipe_file(f"/data/{i}.jsonl", lines(100 * i, 100 * (i + 1)))
    monkeypatch.setenv("CEDAR_STORAGE_SECONDS", "100000")
    whole, asked = FlakyFileSystem.cat_file, threading.Event()

    def cat_file(self: Any, path: str, **kwargs: Any) -> bytes:
        if path.endswith("0.jsonl"):
            return whole(self, path, **kwargs)
        asked.set()
        raise StorageFault(429, wait=3600)

    monkeypatch.setattr(FlakyFileSystem, "cat_file", cat_file)
    with cedar.read_jsonl(flaky("memory://data/*.jsonl")).batch(100).loader(executor="threads", workers=5) as loader:
        assert next(iter(loader))["x"].tolist() == list(range(100))
        assert asked.wait(60)
    # That no thread is left is inspected after every test.


# ---- over HTTP -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("faults", [0.05, 0.3])
@pytest.mark.usefixtures("impatient")
def test_an_http_store_that_fails_delivers_the_same_rows_within_the_budget(faults: float):
    files = {f"data/{i}.parquet": parquet(300 * i, 300 * (i + 1)) for i in range(6)}
    files |= {f"data/{i}.jsonl": lines(300 * i, 300 * (i + 1)) for i in range(6)}
    with Store(files, faults, seed=3) as store:
        p = cedar.read_parquet([f"{store.url}/data/{i}.parquet" for i in range(6)]).select("x")
        q = cedar.read_jsonl([f"{store.url}/data/{i}.jsonl" for i in range(6)])
        with cedar.concat(p, q).batch(100).loader(executor="threads", workers=4) as loader:
            rows = [x for batch in loader for x in batch["x"].tolist()]
            report = loader.report()
    assert rows == [*range(1800), *range(1800)]
    assert report.retries > 0
    assert sum(store.faults.values()) > 0
    assert report.retries <= 2 * FLOOR + SHARE * (report.requests - report.retries)
    assert sum(store.requests.values()) <= 2 * report.requests  # info asks by HEAD, and by GET where that fails


def test_an_http_store_is_listed_and_read_with_globs():
    files = {f"data/{i}.parquet": parquet(10 * i, 10 * (i + 1)) for i in range(3)}
    with Store(files) as store:
        assert cedar.read_parquet(f"{store.url}/data/*.parquet").to_arrow()["x"].to_pylist() == list(range(30))


def test_an_http_file_that_is_not_there_is_asked_for_once():
    with Store({"a": b""}) as store:
        with pytest.raises(SourceError, match="no file matches"):
            cedar.read_text(f"{store.url}/missing.txt").count()
        assert store.requests["GET /missing.txt"] <= 2
