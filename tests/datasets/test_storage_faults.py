"""Storage that fails: what is tried again, for how long, on whose budget, and what is said in the end."""

from __future__ import annotations

import gzip
import io
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar.core.errors import SourceError
from cedar.datasets import requests
from cedar.datasets.asking import Stop, StopScope, Use, counting
from cedar.datasets.faults import Fault, fault_of, status_of
from cedar.datasets.listing import list_files
from cedar.datasets.remote import Remote, rename
from cedar.datasets.requests import FLOOR, SHARE, Account, Patience
from cedar.testing.storage import FlakyFileSystem, StorageFault, flaky
from tests.toy_http_store import Store

QUICK = Patience(attempts=12, seconds=60, first=0.0001, most=0.001)


@pytest.fixture
def memory() -> Iterator[Any]:
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]
    FlakyFileSystem.clear_instance_cache()
    yield fs
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits are short, so that many faults take no time."""
    monkeypatch.setattr(requests.Patience, "of_environment", staticmethod(lambda: QUICK))


def parquet(start: int, stop: int, group: int = 50) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": range(start, stop), "y": [f"row {i}" for i in range(start, stop)]}), sink, group)
    return sink.getvalue()


def lines(start: int, stop: int) -> bytes:
    return b"".join(json.dumps({"x": i}).encode() + b"\n" for i in range(start, stop))


# ---- which errors pass -----------------------------------------------------------------------------------------------


class Answer(Exception):
    def __init__(self, status: int, headers: dict[str, str] | None = None) -> None:
        super().__init__(status)
        self.status, self.headers = status, headers or {}


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_busy_or_broken_server_is_asked_again(status: int):
    fault = fault_of(Answer(status, {"retry-after": "7"}))
    assert fault is not None
    assert f"status {status}" in fault.kind
    assert fault.wait == 7


@pytest.mark.parametrize(
    "error", [Answer(404), Answer(403), Answer(401), FileNotFoundError(), PermissionError(), KeyError()]
)
def test_what_stays_is_not_asked_again(error: Exception):
    assert fault_of(error) is None


@pytest.mark.parametrize("error", [ConnectionResetError(), TimeoutError(), OSError(104, "reset"), BrokenPipeError()])
def test_broken_connections_and_timeouts_are_asked_again(error: Exception):
    assert fault_of(error) is not None


def test_the_cause_of_an_error_counts_too():
    def wrapped(cause: Exception) -> Exception:
        try:
            try:
                raise cause
            except Exception as inner:
                raise FileNotFoundError("http://host/x") from inner  # as fsspec does for whatever info() meets
        except FileNotFoundError as outer:
            return outer

    assert fault_of(wrapped(Answer(503))) == Fault("status 503")
    assert fault_of(wrapped(Answer(403))) is None
    assert status_of(wrapped(Answer(403))) == 403


def test_statuses_are_found_where_each_client_has_them():
    class Botocore(Exception):
        response = {"Error": {"Code": "SlowDown"}, "ResponseMetadata": {"HTTPStatusCode": 503, "HTTPHeaders": {}}}

    class Gcs(Exception):
        code = "429"

    class Requests(Exception):
        response = Answer(504, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"})

    assert [fault_of(kind()) is not None for kind in (Botocore, Gcs, Requests)] == [True, True, True]
    assert fault_of(Requests()).wait == 0  # long past


# ---- how often, for how long -----------------------------------------------------------------------------------------


def failing(times: int, error: Exception) -> Any:
    calls = []

    def request(left: float) -> str:
        calls.append(left)
        if len(calls) <= times:
            raise error
        return "done"

    vars(request)["calls"] = calls
    return request


def test_a_request_is_made_again_until_it_is_answered():
    account, request = Account(QUICK), failing(5, StorageFault(503))
    assert account.ask("x", request) == "done"
    assert (account.metadata.requests, account.metadata.retries) == (6, 5)


def test_a_missing_file_is_asked_for_once():
    account, request = Account(QUICK), failing(5, FileNotFoundError())
    with pytest.raises(FileNotFoundError):
        account.ask("x", request)
    assert len(request.calls) == 1


def test_the_last_error_names_url_attempts_status_and_what_to_do():
    account = Account(Patience(attempts=3, first=0.0001))
    with pytest.raises(SourceError) as caught:
        account.ask("s3://bucket/a.parquet", failing(9, StorageFault(503)))
    text = str(caught.value)
    assert "s3://bucket/a.parquet: the storage failed 3 time(s)" in text
    assert "status 503" in text
    assert "CEDAR_STORAGE_ATTEMPTS" in text
    assert isinstance(caught.value.__cause__, StorageFault)


def test_it_does_not_wait_beyond_the_time_for_a_request():
    account = Account(Patience(seconds=5, first=0.0001))
    began = time.monotonic()
    with pytest.raises(SourceError, match="storage failed 1 time") as caught:
        account.ask("x", failing(1, StorageFault(429, wait=3600)))
    assert time.monotonic() - began < 5
    assert "CEDAR_STORAGE_SECONDS" in str(caught.value)


def test_retry_after_is_waited_out():
    account = Account(Patience(first=0.0))
    with counting(Use()) as use:
        account.ask("x", failing(1, StorageFault(429, wait=0.05)))
    assert use.waited >= 0.05


@given(st.integers(1, 40), st.one_of(st.none(), st.floats(0, 100)))
def test_waits_grow_with_jitter_and_never_undercut_what_the_storage_asks(attempt: int, asked: float | None):
    patience = Patience()
    wait = patience.wait(attempt, asked)
    assert (asked or 0) <= wait <= (asked or 0) + min(patience.most, patience.first * 2 ** (attempt - 1))


@given(st.lists(st.integers(0, 14), max_size=120))
def test_retries_stay_within_the_budget_whatever_fails(failures: list[int]):
    account = Account(Patience(attempts=12, first=0.0, most=0.0))
    began = time.monotonic()
    for times in failures:
        try:
            assert account.ask("x", failing(times, StorageFault(503))) == "done"
        except SourceError:
            continue
    use = account.metadata
    first = use.requests - use.retries
    assert first == len(failures)
    assert use.retries <= FLOOR + SHARE * first + requests._REFILL * (time.monotonic() - began)


def test_a_storage_that_is_down_gets_few_requests_more():
    account = Account(Patience(attempts=12, first=0.0, most=0.0))
    for _ in range(1000):
        with pytest.raises(SourceError):
            account.ask("x", failing(99, StorageFault(503)))
    assert account.metadata.requests < 1000 + FLOOR + SHARE * 1000 + 50


def test_threads_share_a_budget():
    account = Account(Patience(attempts=1000, first=0.0, most=0.0))

    def ask() -> None:
        with pytest.raises(SourceError, match="storage failed"):
            account.ask("x", failing(1000, StorageFault(503)))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert account.metadata.requests - account.metadata.retries == 8
    assert account.metadata.retries <= FLOOR + SHARE * 8 + 10


def test_a_wait_ends_with_the_run():
    account, stop = Account(Patience(first=1000, most=1000, seconds=10_000)), Stop()
    caught: list[Exception] = []

    def ask() -> None:
        with StopScope(stop):
            try:
                account.ask("x", failing(99, StorageFault(503)))
            except SourceError as error:
                caught.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    while account.metadata.requests < 1:
        time.sleep(0.001)
    stop.set()
    thread.join(30)
    assert "the loader was closed" in str(caught[0])


@pytest.mark.parametrize("value", ["0", "-1", "many", "inf", "nan"])
def test_a_patience_that_is_none(value: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CEDAR_STORAGE_SECONDS", value)
    with pytest.raises(cedar.PipelineError, match="CEDAR_STORAGE_SECONDS"):
        Patience.of_environment()


# ---- files -----------------------------------------------------------------------------------------------------------


@given(
    st.binary(max_size=300),
    st.lists(st.tuples(st.integers(0, 320), st.integers(-1, 320)), max_size=12),
    st.integers(0, 9),
)
def test_a_file_reads_as_one_in_memory_does(data: bytes, reads: list[tuple[int, int]], seed: int):
    fsspec.filesystem("memory").pipe_file("/model", data)
    fs = FlakyFileSystem("memory", status=0.1, reset=0.1, short=0.2, seed=seed, skip_instance_cache=True)
    model = io.BytesIO(data)
    with Remote(fs, Account(QUICK)).open("/model", len(data)) as file:
        for position, size in reads:
            assert file.seek(position) == model.seek(position)
            assert file.read(size) == model.read(size)
            assert file.tell() == max(position, model.tell())
        assert file.seek(-len(data), io.SEEK_END) == 0
        assert file.readall() == data


class Unsized(FlakyFileSystem):
    """Says of no file how large it is."""

    cachable = False

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        return super().info(path, **kwargs) | {"size": None}


def test_a_file_of_unknown_size_goes_on_where_it_broke_off(memory: Any):
    data = np.random.default_rng(0).bytes(300_000)
    memory.pipe_file("/f", data)
    fs = Unsized("memory", reset=0.3, seed=2)
    with Remote(fs, Account(QUICK)).open("/f", None) as file:
        assert not file.seekable()
        parts = []
        while part := file.read(10_000):
            parts.append(part)
    assert b"".join(parts) == data
    assert fs.faults["reset"] > 3


def test_a_file_that_shrank_is_said_to_be_short(memory: Any):
    memory.pipe_file("/f", b"abc")
    with pytest.raises(SourceError, match=r"memory://f: .* short read \(3 of 5 bytes from byte 0; 5 when listed\)"):
        Remote(memory, Account(Patience(attempts=2, first=0.0))).fetch("/f", 0, 5, 5)


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
    # That no thread is left is looked at after every test.


# ---- sinks -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("impatient")
def test_a_sink_writes_all_rows_to_a_storage_that_fails(memory: Any):
    url = flaky("memory://out", status=0.15, reset=0.1, seed=4)
    written = cedar.from_items([{"x": i} for i in range(300)]).write_parquet(url)
    assert [u.rpartition("/")[2] for u in written] == ["part-00000.parquet"]
    assert [path for path in memory.find("/out") if "/_cedar/" not in path] == ["/out/part-00000.parquet"]
    assert cedar.read_parquet("memory://out").to_arrow()["x"].to_pylist() == list(range(300))


class Renaming(FlakyFileSystem):
    """Renames, and loses the first answer."""

    cachable = False
    lost = False

    def mv(self, path1: str, path2: str, **kwargs: Any) -> None:
        self.target.mv(path1, path2)
        if not self.lost:
            self.lost = True
            raise ConnectionResetError


def test_a_rename_whose_answer_was_lost_is_not_an_error(memory: Any):
    memory.pipe_file("/old", b"1")
    rename(Remote(Renaming("memory"), Account(QUICK)), "/old", "/new")
    assert memory.find("/") == ["/new"]


def test_nothing_is_sent_of_files_that_an_error_cut_short(memory: Any):
    def rows() -> Iterator[dict[str, int]]:
        yield from ({"x": i} for i in range(100_000))
        raise ValueError("enough")

    with pytest.raises(cedar.CedarError):
        cedar.from_iterable(rows).write_parquet("memory://out")
    assert memory.find("/out") == ["/out/_cedar/job.json"]


# ---- listing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_a_job_lists_its_storage_once(executor: str, tmp_path: Path):
    for i in range(3):
        (tmp_path / f"{i}.parquet").write_bytes(parquet(100 * i, 100 * (i + 1)))
    FlakyFileSystem.clear_instance_cache()
    url = flaky(tmp_path / "*.parquet", log=tmp_path / "log")
    p = cedar.read_parquet(url).shuffle(seed=1).batch(50)
    seen = []
    for rank in range(2):  # ranks of one process share the pipeline's listing
        with p.loader(executor=executor, workers=2, rank=rank, world=2) as loader:
            for _ in range(2):
                seen += [x for batch in loader for x in batch["x"].tolist()]
    assert sorted(seen) == sorted([*range(300), *range(300)])
    asked = [line.split()[1:3] for line in (tmp_path / "log").read_text().splitlines()]
    assert sum(operation == "list" for operation, _ in asked) == 1


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.usefixtures("impatient")
def test_no_folder_goes_missing_from_a_listing_that_fails_at_first(seed: int, memory: Any):
    paths = [f"/d/{a}/{b}/{c}.txt" for a in "xy" for b in "pq" for c in range(2)]
    for path in paths:
        memory.pipe_file(path, b"1")
    memory.pipe_file("/d/x/other.csv", b"1")
    for pattern in ("memory://d/**/*.txt", "memory://d/*/*/?.txt"):
        FlakyFileSystem.clear_instance_cache()
        listing = list_files([flaky(pattern, status=0.2, reset=0.2, seed=seed)])
        assert [file.path for file in listing] == paths
    memory.pipe_file("/t/deep/a.parquet", b"1")
    assert len(list_files([flaky("memory://t", status=0.3, seed=seed)], (".parquet",))) == 1


def test_a_folder_that_may_not_be_listed_is_an_error(memory: Any, monkeypatch: pytest.MonkeyPatch):
    memory.pipe_file("/d/x/a.txt", b"1")
    memory.pipe_file("/d/y/a.txt", b"1")

    def ls(self: Any, path: str, detail: bool = True, **kwargs: Any) -> Any:
        if path.endswith("/y"):
            raise PermissionError(path)
        return memory.ls(path, detail=detail)

    monkeypatch.setattr(FlakyFileSystem, "ls", ls)
    with pytest.raises(SourceError, match="no permission to list"):
        list_files([flaky("memory://d/*/*.txt")])


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


def test_a_server_that_never_answers_is_asked_again():
    with Store({"a.jsonl": lines(0, 100)}) as store:
        account = Account(Patience(seconds=4, first=0.0))
        fs = fsspec.filesystem("http")
        store.hung["a.jsonl"] = 1
        data = Remote(fs, account).fetch(f"{store.url}/a.jsonl", 0, 50, len(lines(0, 100)))
    assert data == lines(0, 100)[:50]
    assert account.metadata.retries == 1


def test_large_ranges_are_fetched_in_pieces(memory: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cedar.datasets.remote._PIECE", 100)
    data = np.random.default_rng(0).bytes(1050)
    memory.pipe_file("/f", data)
    fs = FlakyFileSystem("memory", short=0.3, reset=0.2, seed=1, skip_instance_cache=True)
    remote = Remote(fs, Account(QUICK))
    assert remote.fetch("/f", 0, None, 1050) == data
    assert remote.fetch("/f", 7, 999, 1050) == data[7:999]
    assert remote.account.metadata.requests - remote.account.metadata.retries == 11 + 10


def test_an_http_store_is_listed_and_read_with_globs():
    files = {f"data/{i}.parquet": parquet(10 * i, 10 * (i + 1)) for i in range(3)}
    with Store(files) as store:
        assert cedar.read_parquet(f"{store.url}/data/*.parquet").to_arrow()["x"].to_pylist() == list(range(30))


def test_an_http_file_that_is_not_there_is_asked_for_once():
    with Store({"a": b""}) as store:
        with pytest.raises(SourceError, match="no file matches"):
            cedar.read_text(f"{store.url}/missing.txt").count()
        assert store.requests["GET /missing.txt"] <= 2
