"""A progress line in a terminal or a notebook, for anything longer than a second; nothing in a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Self

from cedar.engine.metrics import Metrics

_QUIET_SECONDS = 1.0
_REDRAW_SECONDS = 0.2


class Progress:
    """Rows, percent and time left where counts are known, rows/s and the busiest operator.

    Args:
        what: the line begins with it.
        position: what of the epoch is done, and all of it or None, in one unit.
    """

    def __init__(self, what: str, position: Callable[[], tuple[int, int | None]] | None = None) -> None:
        self._what = what
        self.position = position
        self._start = time.perf_counter()
        self._drawn = 0.0
        self._line: Any = None
        self._draws = sys.stderr.isatty() or _in_notebook()

    def update(self, metrics: Metrics) -> None:
        """Redraw, if it is time to."""
        now = time.perf_counter()
        if not self._draws or now - self._start < _QUIET_SECONDS or now - self._drawn < _REDRAW_SECONDS:
            return
        self._drawn = now
        if self._line is None:
            self._line = _Notebook() if _in_notebook() else _terminal()
        took = now - self._start
        rate = f"{metrics.time.rate(metrics.rows):,.0f} rows/s"
        parts = [f"{metrics.rows:,} rows", *self._left(metrics.time.elapsed or took), rate]
        self._line.update(f"{self._what}: {', '.join(parts)}, bottleneck: {metrics.bottleneck[0]}")

    def _left(self, took: float) -> list[str]:
        """Percent and time left, where the whole is known."""
        if self.position is None:
            return []
        done, total = self.position()
        if not total:
            return []
        done = min(done, total)
        return [f"{done / total:.0%}", *([f"{clock(took / done * (total - done))} left"] if done else [])]

    def close(self) -> None:
        """Take the line away."""
        if self._line is not None:
            self._line.stop()
            self._line = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def clock(seconds: float) -> str:
    """Minutes and seconds, hours where there are some.

    Example:
        >>> clock(75.2), clock(7384)
        ('1:15', '2:03:04')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _in_notebook() -> bool:
    return "ipykernel" in sys.modules and "IPython" in sys.modules


def _terminal() -> Any:
    from rich.console import Console

    line = Console(stderr=True).status("")
    line.start()
    return line


class _Notebook:
    """One output of a cell, written over."""

    def __init__(self) -> None:
        from IPython.display import display  # type: ignore[import-not-found]

        self._handle = display({"text/plain": ""}, raw=True, display_id=True)

    def update(self, text: str) -> None:
        self._handle.update({"text/plain": text}, raw=True)

    def stop(self) -> None:
        """The last line stays, as output of a cell does."""
