"""Which errors of storage pass, and which stay."""

from __future__ import annotations

import pytest

from cedar.core.faults import Fault, fault_of, install, status_of


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
