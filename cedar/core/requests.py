"""Storage requests: which faults are retried, time limits, and a retry budget that all requests of a source share.

Every read or write request to storage other than local files goes through ``RequestStats.ask``. It has an owner: the
counter to which it is added, and the event that ends waits for retries.
"""

from __future__ import annotations

import errno
import os
import random
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import compress
from typing import Any, TypeVar

from cedar.core.errors import SourceError, invalid_call
from cedar.core.printable import redacted

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


# ---- who sends a request ---------------------------------------------------------------------------------------------


@dataclass
class Use:
    """The number of storage requests, the retries among them, and the seconds waited between attempts."""

    requests: int = 0
    retries: int = 0
    waited: float = 0.0

    def add(self, other: Use) -> None:
        self.requests += other.requests
        self.retries += other.retries
        self.waited += other.waited


class Stop:
    """An event that ends the waits between attempts. Unpickling it gives a new, unset event."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._active_rows: dict[int, bytearray] = {}

    def set(self) -> None:
        self._event.set()
        for rows in list(self._active_rows.values()):
            rows.clear()

    def enter(self, rows: bytearray) -> None:
        """Clear ``rows`` when the event is set, so that a loop over ``rows`` ends."""
        self._active_rows[id(rows)] = rows
        if self._event.is_set():
            rows.clear()

    def leave(self, rows: bytearray) -> None:
        """Stop tracking ``rows``: the loop over them has ended."""
        self._active_rows.pop(id(rows), None)

    def wait(self, seconds: float) -> bool:
        """Return True once the event is set, or False after ``seconds``."""
        return self._event.wait(seconds)

    @property
    def over(self) -> bool:
        """Whether the event is set."""
        return self._event.is_set()

    def __reduce__(self) -> tuple[Any, ...]:
        return Stop, ()


@dataclass(frozen=True)
class RequestOwner:
    """Who sends a request: the counter that it is added to, and the event that ends its waits."""

    use: Use | None = None
    stop: Stop | None = None

    @property
    def over(self) -> bool:
        """Whether the run that this thread works for has been cancelled."""
        return self.stop is not None and self.stop.over

    def check(self) -> None:
        """Raise CancelledError if the run has been cancelled. Readers call this between two rows."""
        if self.over:
            from concurrent.futures import CancelledError  # slow to import, and workers do not need it

            raise CancelledError


_owner: ContextVar[RequestOwner] = ContextVar("cedar_request_owner", default=RequestOwner())  # noqa: B039 - frozen


def request_owner() -> RequestOwner:
    """Return the owner of this thread's requests. Files store it, since libraries may read them in other threads."""
    return _owner.get()


class OwnedRequests:
    """In this ``with`` block, this thread's requests are counted in ``use``, and setting ``stop`` ends its waits."""

    __slots__ = ("_stop", "_token", "_use")

    def __init__(self, use: Use | None = None, stop: Stop | None = None) -> None:
        self._use, self._stop = use, stop

    def __enter__(self) -> None:
        outer = _owner.get()
        self._token = _owner.set(RequestOwner(self._use or outer.use, self._stop or outer.stop))

    def __exit__(self, *_: object) -> None:
        _owner.reset(self._token)


class CancellableArguments:
    """Iterates over the arguments of ``n`` calls, and ends early once the run is cancelled, at no cost per call.

    Examples:
        >>> with CancellableArguments([range(3), "abc"], 3) as arguments:
        ...     list(map(lambda i, letter: i * letter, *arguments))
        ['', 'b', 'cc']
    """

    __slots__ = ("_arguments", "_rows", "_stop")

    def __init__(self, arguments: Sequence[Iterable[Any]], n: int) -> None:
        self._arguments, self._stop = arguments, _owner.get().stop
        self._rows = bytearray(b"\1" * n if self._stop is not None else b"")

    def __enter__(self) -> Sequence[Iterable[Any]]:
        if self._stop is None:
            return self._arguments
        self._stop.enter(self._rows)
        first, *others = self._arguments
        return [compress(first, self._rows), *others]

    def __exit__(self, *_: object) -> None:
        if self._stop is not None:
            self._stop.leave(self._rows)


# ---- faults and retries ----------------------------------------------------------------------------------------------


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
    with suppress(ValueError):
        return max(0.0, float(text))
    from email.utils import parsedate_to_datetime  # most workers never need it

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


_T = TypeVar("_T")
_jitter = random.Random()  # not the global generator, whose state belongs to the user

FLOOR = 50.0  # retries available from the start
SHARE = 0.5  # retries that each request earns
_MAX_RETRIES = 200.0  # upper bound of unused retries
_RETRIES_PER_SECOND = 0.5  # retries earned per second, up to FLOOR, so that a job can continue after an outage

ATTEMPTS = "CEDAR_STORAGE_ATTEMPTS"
SECONDS = "CEDAR_STORAGE_SECONDS"


@dataclass(frozen=True)
class RequestPatience:
    """How often and how long a request is retried.

    Args:
        attempts: number of attempts of one request, including the first.
        seconds: time for all attempts together, including waits.
        first, most: seconds; the wait after attempt n is random between 0 and first * 2^(n - 1), and at most ``most``:
            "full jitter" (M. Brooker, "Exponential backoff and jitter", AWS Architecture Blog, 2015).
    """

    attempts: int = 12
    seconds: float = 120.0
    first: float = 0.05
    most: float = 8.0

    @staticmethod
    def of_environment() -> RequestPatience:
        """Read CEDAR_STORAGE_ATTEMPTS and CEDAR_STORAGE_SECONDS.

        Raises:
            PipelineError: one of them is not a number of at least 1.
        """
        default = RequestPatience()
        return RequestPatience(int(_number(ATTEMPTS, default.attempts)), _number(SECONDS, default.seconds))

    def wait(self, attempt: int, asked: float | None) -> float:
        """Return the seconds to wait after attempt number ``attempt``, at least as many as the storage asks for."""
        drawn = _jitter.uniform(0.0, min(self.most, self.first * 2.0 ** min(attempt - 1, 30)))
        return drawn if asked is None else asked + drawn


def _number(name: str, default: float) -> float:
    text = os.environ.get(name)
    try:
        value = default if text is None else float(text)
    except ValueError:
        value = 0.0
    if not value >= 1 or value == float("inf"):
        raise invalid_call(f"{name}={text!r}: a number, 1 or more, is expected")
    return value


# ---- requests --------------------------------------------------------------------------------------------------------


@dataclass
class RequestStats:
    """The requests of one source in one process, and its retry budget.

    Each request earns ``SHARE`` of a retry, and ``FLOOR`` retries are available from the start, so a storage that is
    down gets few extra requests. Requests whose owner has no counter, such as listings, are counted in ``metadata``.
    """

    patience: RequestPatience = field(default_factory=RequestPatience)
    metadata: Use = field(default_factory=Use)
    _retries: float = FLOOR
    _refilled_at: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:  # every process starts with its own budget and counts
        return RequestStats, (self.patience,)

    def ask(self, url: str, request: Callable[[float], _T], on: RequestOwner | None = None) -> _T:
        """Send a request, retry it after temporary failures, and return its result.

        Args:
            url: the URL without credentials, for errors.
            request: a function that sends the request; its argument is the number of seconds left.
            on: the owner of the request; this thread's by default.

        Raises:
            SourceError: the request failed too often or for too long, or the retry budget is used up.
            Exception: a permanent failure, such as FileNotFoundError, is raised unchanged.
        """
        on = on or request_owner()
        use = on.use or self.metadata
        began = time.monotonic()
        attempt = 0
        while True:
            attempt += 1
            self._count(use, attempt)
            try:
                return request(max(0.1, self.patience.seconds - (time.monotonic() - began)))
            except Exception as error:
                fault = fault_of(error)
                if fault is None:
                    raise
                took = time.monotonic() - began
                wait = self.patience.wait(attempt, fault.wait)
                why = self._why_give_up(attempt, took, wait)
                if why is None and not self._pause(use, on.stop, wait):
                    why = "the loader was closed"
                if why is not None:
                    problem = f"{url}: the storage failed {attempt} time(s) in {took:.1f} s, last with {fault.kind}"
                    fix = (
                        "check that the storage is available and its rate limits; a run can resume from its last state"
                    )
                    raise SourceError(problem, done=f"given up: {why}", fix=fix) from redacted(error)

    def _why_give_up(self, attempt: int, took: float, wait: float) -> str | None:
        """Return why not to retry; None takes a retry from the budget."""
        if attempt >= self.patience.attempts:
            return f"{attempt} attempts is the limit ({ATTEMPTS})"
        if took + wait > self.patience.seconds:
            return f"waiting {wait:.1f} s more would exceed {self.patience.seconds:g} s ({SECONDS})"
        with self._lock:
            now = time.monotonic()
            if self._retries < FLOOR:
                self._retries = min(FLOOR, self._retries + _RETRIES_PER_SECOND * (now - self._refilled_at))
            self._refilled_at = now
            if self._retries < 1:
                return "its retry budget is used up: too many of its requests failed"
            self._retries -= 1
        return None

    def _count(self, use: Use, attempt: int) -> None:
        with self._lock:
            if attempt == 1:
                self._retries = min(_MAX_RETRIES, self._retries + SHARE)
            use.add(Use(1, int(attempt > 1)))

    def _pause(self, use: Use, stop: Stop | None, seconds: float) -> bool:
        """Wait before the next attempt; return False if the run was stopped."""
        began = time.monotonic()
        try:
            return not (stop or Stop()).wait(seconds)
        finally:
            with self._lock:
                use.add(Use(waited=time.monotonic() - began))
