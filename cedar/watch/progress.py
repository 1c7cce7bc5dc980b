"""Show a progress line in a terminal or notebook, for runs longer than a second. Elsewhere, write occasional lines."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from cedar.control.timeline import STALLED, TRAINER
from cedar.core.printable import one_line
from cedar.engine.delivery.options import Observer
from cedar.engine.metrics import Metrics
from cedar.profile.figures import cut

_QUIET_SECONDS = 1.0
_REDRAW_SECONDS = 0.2
_PLAIN_SECONDS = 30.0
_WIDTH = 78  # max characters of a line: 80 columns of a terminal, less a spinner and a space
_BAR = 12  # number of characters of the bar
_MIN_NAME = 8  # min characters for the bottleneck's name
_RATE_SECONDS = 5.0  # seconds over which a rate is averaged


class RecentRate:
    """Computes rows per second, and the share of time during which the trainer waited, over recent seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, float]] = deque()

    def of(self, metrics: Metrics) -> tuple[float, float]:
        """Return rows per second and the share of waiting, 0 to 1. Each call also records the current values."""
        now = metrics.time.elapsed, metrics.rows, metrics.time.waited
        while len(self._seen) > 1 and now[0] - self._seen[1][0] >= _RATE_SECONDS:
            self._seen.popleft()
        since = self._seen[0] if self._seen else (0.0, 0, 0.0)
        if not self._seen or now[0] > self._seen[-1][0]:
            self._seen.append(now)
        passed = now[0] - since[0]
        if passed <= 0:
            return metrics.time.rate(metrics.rows), metrics.time.stall
        return (now[1] - since[1]) / passed, min((now[2] - since[2]) / passed, 1.0)


class Remaining:
    """Estimate the progress and remaining time of an epoch from its speed so far."""

    def __init__(self) -> None:
        self._epoch, self._began = 0, (0.0, 0)

    def of(self, elapsed: float, epoch: int, done: int, total: int | None) -> tuple[float, float | None] | None:
        """Return the completed share, 0 to 1, and the seconds left; None if the total is unknown.

        Examples:
            >>> Remaining().of(50.0, 0, 25, 100)
            (0.25, 150.0)
        """
        if epoch != self._epoch or done < self._began[1]:
            self._epoch, self._began = epoch, (elapsed, done)
        if not total:
            return None
        done = min(done, total)
        new = done - self._began[1]
        return done / total, (elapsed - self._began[0]) / new * (total - done) if new > 0 else None


class Progress(Observer):
    """Shows a line of at most 78 characters: the epoch, a bar with the time left (if the total is unknown, the rows so
    far), rows/s, the share of time that the trainer waited, and what it waited for.

    Args:
        title: start of the line, unless ``epoch`` is set.
        position: returns how many steps of this epoch are done, and their total number or None.
        epoch: returns the current epoch.
        plain: also write occasional lines if stderr is not a terminal or notebook.
    """

    def __init__(
        self,
        title: str,
        position: Callable[[], tuple[int, int | None]] | None = None,
        epoch: Callable[[], int] | None = None,
        plain: bool = False,
    ) -> None:
        self._title = title
        self.position, self.epoch = position, epoch
        self._line: Any = None
        self._is_interactive = sys.stderr.isatty() or _in_notebook()
        self._draws = self._is_interactive or plain
        self._next = time.perf_counter() + (_QUIET_SECONDS if self._is_interactive else _PLAIN_SECONDS)
        self._recent_rate, self._left = RecentRate(), Remaining()

    def update(self, metrics: Metrics) -> None:
        """Redraw the line if enough time has passed."""
        now = time.perf_counter()
        if not self._draws or now < self._next:
            return
        self._next = now + (_REDRAW_SECONDS if self._is_interactive else _PLAIN_SECONDS)
        text = self.text(metrics)
        if not self._is_interactive:
            sys.stderr.write(text + "\n")
            return
        if self._line is None:
            self._line = _Notebook() if _in_notebook() else _Terminal()
        self._line.update(text)

    def text(self, metrics: Metrics) -> str:
        """Return the current line."""
        rate, stall = self._recent_rate.of(metrics)
        epoch = 0 if self.epoch is None else self.epoch()
        done, total = (0, None) if self.position is None else self.position()
        left = self._left.of(metrics.time.elapsed, epoch, done, total)
        if left is None:
            shown = f"{metrics.rows:,} rows"
        else:
            bar, remaining = "#" * round(left[0] * _BAR), "" if left[1] is None else f" {clock(left[1])} left"
            shown = f"[{bar:-<{_BAR}}] {left[0]:.0%}{remaining}"
        head = f"{self._title}:" if self.epoch is None else f"epoch {epoch}"
        shown = f"{head} {shown}, {rate:,.0f} rows/s, waited {stall:.0%}"
        (name, why), room = metrics.bottleneck, _WIDTH - len(shown) - len(" for ")
        known = why and name != TRAINER and stall > STALLED and room >= _MIN_NAME
        return one_line(shown + (f" for {cut(name, room)}" if known else ""))

    def ended(self) -> None:
        """Remove the line."""
        if self._line is not None:
            self._line.stop()
            self._line = None

    def close(self) -> None:
        """Remove the line."""
        self.ended()


def clock(seconds: float) -> str:
    """Format seconds as minutes and seconds, with hours if needed.

    Examples:
        >>> clock(75.2), clock(7384)
        ('1:15', '2:03:04')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _in_notebook() -> bool:
    return "ipykernel" in sys.modules and "IPython" in sys.modules


class _Terminal:
    """Draws a line in a terminal, after a spinner."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.text import Text

        self._text, self._status = Text, Console(stderr=True).status("")
        self._status.start()

    def update(self, text: str) -> None:
        self._status.update(self._text(text))  # wrapped, so that rich does not parse brackets as markup

    def stop(self) -> None:
        """Remove the line."""
        self._status.stop()


class _Notebook:
    """Draws a line in a notebook, by overwriting an output of the cell."""

    def __init__(self) -> None:
        from IPython.display import display  # type: ignore[import-not-found]

        self._handle = display({"text/plain": ""}, raw=True, display_id=True)

    def update(self, text: str) -> None:
        self._handle.update({"text/plain": text}, raw=True)

    def stop(self) -> None:
        """Do nothing: the last line stays in the cell's output."""
