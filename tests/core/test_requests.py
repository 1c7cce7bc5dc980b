"""Which errors of storage pass, and which stay."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar.core import requests
from cedar.core.errors import SourceError
from cedar.core.requests import (
    FLOOR,
    SHARE,
    Fault,
    OwnedRequests,
    RequestPatience,
    RequestStats,
    Stop,
    Use,
    fault_of,
    install,
    status_of,
)
from cedar.testing.storage import StorageFault
from tests.datasets.failing_storage import QUICK, failing


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


@pytest.mark.parametrize(
    ("text", "package"),
    [
        ("Install s3fs to access S3", "s3fs"),
        ("Please install gcsfs to access Google Storage", "gcsfs"),
        ('SFTPFileSystem requires "paramiko" to be installed', "paramiko"),
        ("no module", "the package that it names"),
    ],
)
def test_what_to_install_for_a_filesystem(text: str, package: str) -> None:
    assert install(ImportError(text)) == f"pip install {package}"
    assert install(OSError(text)) is None


def test_a_request_is_made_again_until_it_is_answered():
    account, request = RequestStats(QUICK), failing(5, StorageFault(503))
    assert account.ask("x", request) == "done"
    assert (account.metadata.requests, account.metadata.retries) == (6, 5)


def test_a_missing_file_is_asked_for_once():
    account, request = RequestStats(QUICK), failing(5, FileNotFoundError())
    with pytest.raises(FileNotFoundError):
        account.ask("x", request)
    assert len(request.calls) == 1


def test_the_last_error_names_url_attempts_status_and_what_to_do():
    account = RequestStats(RequestPatience(attempts=3, first=0.0001))
    with pytest.raises(SourceError) as caught:
        account.ask("s3://bucket/a.parquet", failing(9, StorageFault(503)))
    text = str(caught.value)
    assert "s3://bucket/a.parquet: the storage failed 3 time(s)" in text
    assert "status 503" in text
    assert "CEDAR_STORAGE_ATTEMPTS" in text
    assert isinstance(caught.value.__cause__, StorageFault)


def test_it_does_not_wait_beyond_the_time_for_a_request(monkeypatch):
    monkeypatch.setattr(requests.Stop, "wait", lambda *_: pytest.fail("it waits"))
    account = RequestStats(RequestPatience(seconds=5, first=0.0001))
    with pytest.raises(SourceError, match="storage failed 1 time") as caught:
        account.ask("x", failing(1, StorageFault(429, wait=3600)))
    assert "CEDAR_STORAGE_SECONDS" in str(caught.value)


@given(st.integers(1, 40), st.one_of(st.none(), st.floats(0, 100)))
def test_waits_grow_with_jitter_and_never_undercut_what_the_storage_asks(attempt: int, asked: float | None):
    patience = RequestPatience()
    wait = patience.wait(attempt, asked)
    assert (asked or 0) <= wait <= (asked or 0) + min(patience.most, patience.first * 2 ** (attempt - 1))


@given(st.lists(st.integers(0, 14), max_size=120))
def test_retries_stay_within_the_budget_whatever_fails(failures: list[int]):
    account = RequestStats(RequestPatience(attempts=12, first=0.0, most=0.0))
    began = time.monotonic()
    for times in failures:
        try:
            assert account.ask("x", failing(times, StorageFault(503))) == "done"
        except SourceError:
            continue
    use = account.metadata
    first = use.requests - use.retries
    assert first == len(failures)
    assert use.retries <= FLOOR + SHARE * first + requests._RETRIES_PER_SECOND * (time.monotonic() - began)


def test_a_storage_that_is_down_gets_few_requests_more():
    account = RequestStats(RequestPatience(attempts=12, first=0.0, most=0.0))
    for _ in range(1000):
        with pytest.raises(SourceError):
            account.ask("x", failing(99, StorageFault(503)))
    assert account.metadata.requests < 1000 + FLOOR + SHARE * 1000 + 50


def test_threads_share_a_budget():
    account = RequestStats(RequestPatience(attempts=1000, first=0.0, most=0.0))

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


@pytest.mark.parametrize("value", ["0", "-1", "many", "inf", "nan"])
def test_a_patience_that_is_none(value: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CEDAR_STORAGE_SECONDS", value)
    with pytest.raises(cedar.PipelineError, match="CEDAR_STORAGE_SECONDS"):
        RequestPatience.of_environment()


def test_retry_after_is_waited_out():
    account = RequestStats(RequestPatience(first=0.0))
    use = Use()
    with OwnedRequests(use):
        account.ask("x", failing(1, StorageFault(429, wait=0.05)))
    assert use.waited >= 0.05


def test_a_wait_ends_with_the_run():
    account, stop = RequestStats(RequestPatience(first=1000, most=1000, seconds=10_000)), Stop()
    caught: list[Exception] = []

    def ask() -> None:
        with OwnedRequests(stop=stop):
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
