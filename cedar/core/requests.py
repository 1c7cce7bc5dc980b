"""Requests to storage: how often one is retried, and a budget that all share.

Every request to storage other than local files goes through ``Account.ask``, whatever reads or writes.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cedar.core.asking import RequestOwner, Stop, Use, asker
from cedar.core.errors import PipelineError, SourceError, user_site
from cedar.core.faults import Fault, fault_of
from cedar.core.redact import redacted

_T = TypeVar("_T")
_jitter = random.Random()  # the global generator is the user's

FLOOR = 50.0  # retries that need no earlier requests,
SHARE = 0.5  # and those that each request earns
_MOST = 200.0  # unused ones are kept up to here
_REFILL = 0.5  # a second, up to the floor: a job that starts after an outage is not punished for it

ATTEMPTS = "CEDAR_STORAGE_ATTEMPTS"
SECONDS = "CEDAR_STORAGE_SECONDS"


@dataclass(frozen=True)
class RequestPatience:
    """How long a request is tried.

    Args:
        attempts: of one request, the first one among them.
        seconds: for all of them together, waits included.
        first, most: seconds; before attempt n + 1 it waits a random time between 0 and first * 2^(n - 1), at most
            ``most``. That is "full jitter" (M. Brooker, "Exponential backoff and jitter", AWS Architecture Blog, 2015).
    """

    attempts: int = 12
    seconds: float = 120.0
    first: float = 0.05
    most: float = 8.0

    @staticmethod
    def of_environment() -> RequestPatience:
        """As CEDAR_STORAGE_ATTEMPTS and CEDAR_STORAGE_SECONDS say.

        Raises:
            PipelineError: one of them is not a number above 0.
        """
        default = RequestPatience()
        return RequestPatience(int(_number(ATTEMPTS, default.attempts)), _number(SECONDS, default.seconds))

    def wait(self, attempt: int, asked: float | None) -> float:
        """Seconds until the attempt after number ``attempt``; at least what the storage asks for."""
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
    """The requests of one source in one process, and its budget of retries.

    A request earns ``SHARE`` of a retry, and ``FLOOR`` are there from the start: a storage that is down gets few
    requests more than one that works. Where nothing else counts, ``metadata`` does: listings and footers.
    """

    patience: RequestPatience = field(default_factory=RequestPatience)
    metadata: Use = field(default_factory=Use)
    _tokens: float = FLOOR
    _seen: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:  # each process has its own budget, and counts its own requests
        return RequestStats, (self.patience,)

    def ask(self, url: str, request: Callable[[float], _T], on: RequestOwner | None = None) -> _T:
        """What a request returns, rebuilt while it fails in a way that passes.

        Args:
            url: the one that is asked, without credentials, for errors.
            request: is given the seconds that are left for it.
            on: on whose behalf; this thread's by default.

        Raises:
            SourceError: it failed too often, for too long, or no retry is left.
            Exception: what it raises that does not pass, such as FileNotFoundError.
        """
        on = on or asker()
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
                why = self._given_up(attempt, took, wait)
                if why is None and not self._pause(use, on.stop, wait):
                    why = "the loader was closed"
                if why is not None:
                    cause = redacted(error)
                    raise _gave_up(url, attempt, took, fault, why) from cause

    def _given_up(self, attempt: int, took: float, wait: float) -> str | None:
        if attempt >= self.patience.attempts:
            return f"{attempt} attempts are the most ({ATTEMPTS})"
        if took + wait > self.patience.seconds:
            return f"waiting {wait:.1f} s more would pass {self.patience.seconds:g} s ({SECONDS})"
        if not self._take():
            return "its retries are used up: too large a share of all requests failed"
        return None

    def _take(self) -> bool:
        with self._lock:
            now = time.monotonic()
            if self._tokens < FLOOR:
                self._tokens = min(FLOOR, self._tokens + _REFILL * (now - self._seen))
            self._seen = now
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True

    def _count(self, use: Use, attempt: int) -> None:
        with self._lock:
            if attempt == 1:
                self._tokens = min(_MOST, self._tokens + SHARE)
            use.add(Use(1, int(attempt > 1)))

    def _pause(self, use: Use, stop: Stop | None, seconds: float) -> bool:
        """Wait; False if the wait was ended."""
        began = time.monotonic()
        try:
            return not (stop or Stop()).wait(seconds)
        finally:
            with self._lock:
                use.add(Use(waited=time.monotonic() - began))


def _gave_up(url: str, attempts: int, took: float, fault: Fault, why: str) -> SourceError:
    return SourceError(
        f"{url}: the storage failed {attempts} time(s) in {took:.1f} s, last with {fault.kind}",
        done=f"given up: {why}",
        fix="check that the storage is available and its rate limits; a run can resume from its last state",
    )
