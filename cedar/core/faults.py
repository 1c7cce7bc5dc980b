"""Storage faults: which errors may disappear after a retry, and how long the storage asks to wait."""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

_TEMPORARY = {408: "timeout", 429: "too many requests", 500: "", 502: "", 503: "", 504: ""}
_ERRNOS = frozenset(
    getattr(errno, name)
    for name in (
        "ECONNRESET", "ECONNABORTED", "ECONNREFUSED", "EPIPE", "ETIMEDOUT", "EBUSY", "EAGAIN", "ENETUNREACH",
        "EHOSTUNREACH", "ENETRESET", "ENETDOWN",
    )
    if hasattr(errno, name)
)  # fmt: skip
_CODES = {"SlowDown": 503, "Throttling": 429, "ThrottlingException": 429, "RequestTimeout": 408, "InternalError": 500}
_CLIENT_ERRORS = {  # by HTTP client module: its errors for connections that broke or could not be opened
    "aiohttp": ("ClientConnectionError", "ClientPayloadError", "ServerTimeoutError"),
    "requests.exceptions": ("ConnectionError", "Timeout", "ChunkedEncodingError"),
    "urllib3.exceptions": ("ProtocolError", "TimeoutError"),
    "botocore.exceptions": ("ConnectionError", "HTTPClientError", "IncompleteReadError", "ResponseStreamingError"),
    "http.client": ("IncompleteRead", "RemoteDisconnected"),
}
_DEPTH = 6  # how many levels of chained exceptions (``__cause__``) are examined


class ShortRead(Exception):
    """Raised if the storage sent fewer bytes than the file's listed size."""


@dataclass(frozen=True)
class Fault:
    """A failure that may disappear after a retry.

    Args:
        kind: one or two words, such as ``status 503``.
        wait: seconds that the storage asks to wait; None if it does not say.
    """

    kind: str
    wait: float | None = None


def fault_of(error: BaseException) -> Fault | None:
    """Return the fault if a retry may help; None for permanent errors: a missing file, no permission, a bad request.

    Statuses 408, 429, 500, 502, 503 and 504, short reads, and connections that are reset or time out are often
    temporary. The error's causes are examined too, since filesystems wrap the errors of their clients.

    Examples:
        >>> fault_of(ConnectionResetError())
        Fault(kind='connection reset', wait=None)
        >>> fault_of(FileNotFoundError("a.parquet"))
    """
    chain = list(_chain(error))
    temporary = [status for status in map(_status, chain) if status is not None and status in _TEMPORARY]
    if temporary:
        word = f" ({_TEMPORARY[temporary[0]]})" if _TEMPORARY[temporary[0]] else ""
        return Fault(f"status {temporary[0]}{word}", next((w for w in map(_retry_after, chain) if w is not None), None))
    return next(filter(None, map(_fault_from_error, chain)), None)


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of an error or of one of its causes; None without a status."""
    return next((s for each in _chain(error) if (s := _status(each)) is not None), None)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(_DEPTH):
        if error is None:
            return
        yield error
        error = error.__cause__


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of one error. Client libraries store it under different names."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # botocore
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if status is None:
            status = _CODES.get(response.get("Error", {}).get("Code", ""))
        return status if isinstance(status, int) else None
    for holder in (error, response):
        for name in ("status", "status_code", "code"):
            value = getattr(holder, name, None)
            if isinstance(value, str) and value.isdigit():  # gcsfs stores the status as a string
                value = int(value)
            if isinstance(value, int) and not isinstance(value, bool) and 100 <= value < 600:
                return value
    return None


def _retry_after(error: BaseException) -> float | None:
    """Return the seconds of a Retry-After header, whose value is a number or a date."""
    response = getattr(error, "response", None)
    headers: Any = getattr(error, "headers", None) or getattr(response, "headers", None)
    if headers is None and isinstance(response, Mapping):
        headers = response.get("ResponseMetadata", {}).get("HTTPHeaders")
    try:
        text = next((str(v) for k, v in dict(headers or {}).items() if str(k).lower() == "retry-after"), None)
    except (TypeError, ValueError):
        return None
    if text is None:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):
        return None


def _fault_from_error(error: BaseException) -> Fault | None:
    if isinstance(error, ShortRead):
        return Fault(f"short read ({error})")
    if isinstance(error, ConnectionResetError):
        return Fault("connection reset")
    if isinstance(error, TimeoutError):  # asyncio and fsspec raise this class too
        return Fault("timeout")
    if isinstance(error, ConnectionError):
        return Fault(type(error).__name__)
    if isinstance(error, OSError) and error.errno is not None and error.errno in _ERRNOS:
        return Fault(errno.errorcode[error.errno])
    for module, names in _CLIENT_ERRORS.items():
        kinds = tuple(filter(None, (getattr(sys.modules.get(module), name, None) for name in names)))
        if kinds and isinstance(error, kinds):
            return Fault(type(error).__name__)
    return None


def install(error: Exception) -> str | None:
    """Return what to install if a filesystem's library is missing, as in "Install s3fs to access S3"; else None."""
    if not isinstance(error, ImportError):
        return None
    named = re.search(r"""[Ii]nstall ([\w-]+)|requires ["']([\w-]+)""", str(error))
    return f"pip install {named[1] or named[2] if named else error.name or 'the package that it names'}"
