"""Storage requests: retries with a time limit, and a retry budget that all requests of a source share.

Every read or write request to storage other than local files goes through ``RequestStats.ask``.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cedar.core.errors import PipelineError, SourceError, user_site
from cedar.core.faults import Fault, fault_of
from cedar.core.redact import redacted
from cedar.core.request_owner import RequestOwner, Stop, Use, request_owner

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
        raise PipelineError(f"{name}={text!r}: a number, 1 or more, is expected", site=user_site())
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
                    cause = redacted(error)
                    raise _failure(url, attempt, took, fault, why) from cause

    def _why_give_up(self, attempt: int, took: float, wait: float) -> str | None:
        if attempt >= self.patience.attempts:
            return f"{attempt} attempts is the limit ({ATTEMPTS})"
        if took + wait > self.patience.seconds:
            return f"waiting {wait:.1f} s more would exceed {self.patience.seconds:g} s ({SECONDS})"
        if not self._take_retry():
            return "its retry budget is used up: too many of its requests failed"
        return None

    def _take_retry(self) -> bool:
        with self._lock:
            now = time.monotonic()
            if self._retries < FLOOR:
                self._retries = min(FLOOR, self._retries + _RETRIES_PER_SECOND * (now - self._refilled_at))
            self._refilled_at = now
            if self._retries < 1:
                return False
            self._retries -= 1
            return True

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


def _failure(url: str, attempts: int, took: float, fault: Fault, why: str) -> SourceError:
    return SourceError(
        f"{url}: the storage failed {attempts} time(s) in {took:.1f} s, last with {fault.kind}",
        done=f"given up: {why}",
        fix="check that the storage is available and its rate limits; a run can resume from its last state",
    )
