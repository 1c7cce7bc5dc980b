"""A progress line in a terminal, for anything longer than a second; nothing in a pipe."""

from __future__ import annotations

import sys
import time
from typing import Any, Self

from cedar.execution.metrics import Metrics

_QUIET_SECONDS = 1.0
_REDRAW_SECONDS = 0.2


class Progress:
    """Rows, rows/s and the busiest operator."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._start = time.perf_counter()
        self._drawn = 0.0
        self._status: Any = None
        self._terminal = sys.stderr.isatty()

    def update(self, metrics: Metrics) -> None:
        """Redraw, if it is time to."""
        now = time.perf_counter()
        if not self._terminal or now - self._start < _QUIET_SECONDS or now - self._drawn < _REDRAW_SECONDS:
            return
        self._drawn = now
        if self._status is None:
            from rich.console import Console

            self._status = Console(stderr=True).status("")
            self._status.start()
        rate = metrics.rows / (now - self._start)
        busiest = max(metrics.labels.items(), key=lambda kv: metrics.seconds.get(kv[0], 0.0), default=(0, "?"))[1]
        self._status.update(f"{self._what}: {metrics.rows:,} rows, {rate:,.0f} rows/s, bottleneck: {busiest}")

    def close(self) -> None:
        """Take the line away."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
