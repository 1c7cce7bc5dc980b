"""Observers of a run, which are notified when batches are delivered and when iterations end."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from typing import Any

from cedar.core.errors import PipelineError, Site
from cedar.core.process import resident
from cedar.engine.delivery.loader import Loader
from cedar.engine.delivery.options import Observer
from cedar.engine.metrics import Metrics
from cedar.watch.otlp import Otlp, collector_variable
from cedar.watch.progress import Progress
from cedar.watch.serve import StatusServer
from cedar.watch.status import status
from cedar.watch.trace import TraceWriter

_UPDATE_SECONDS = 0.1  # min seconds between two updates of the observers
_CALLBACK_SECONDS = 10.0  # min seconds between two calls of on_metrics
_MAX_POINTS = 512  # max points in a run's history


class History(Observer):
    """Records the progress of a run at regular intervals. A full history drops half and doubles the interval."""

    def __init__(self) -> None:
        self._next, self._every = 0.0, _UPDATE_SECONDS

    def update(self, metrics: Metrics) -> None:
        """Add a point if the interval has passed."""
        elapsed = metrics.time.elapsed
        if elapsed < self._next:
            return
        self._next = elapsed + self._every
        metrics.history.append((elapsed, metrics.rows, metrics.time.waited, resident()))
        if len(metrics.history) >= _MAX_POINTS:
            del metrics.history[1::2]
            self._every *= 2


class Callback(Observer):
    """Calls ``on_metrics`` every ten seconds and at the end of an iteration."""

    def __init__(self, call: Callable[[dict[str, Any]], object]) -> None:
        self._call, self._next = call, time.perf_counter() + _CALLBACK_SECONDS
        self.loader: Loader | None = None

    def update(self, metrics: Metrics) -> None:
        """Call ``on_metrics`` if ten seconds have passed."""
        if time.perf_counter() >= self._next:
            self.ended()

    def ended(self) -> None:
        """Call ``on_metrics``."""
        self._next = time.perf_counter() + _CALLBACK_SECONDS
        if self.loader is not None:
            self._call(status(self.loader))


class Observers(Observer):
    """All observers of one loader.

    Args:
        progress, trace, serve, on_metrics: the arguments of ``Pipeline.loader``.
        site: the line of user code that made the loader.
    """

    def __init__(self, progress: bool, trace: Any, serve: str | None, on_metrics: Any, site: Site | None) -> None:
        if on_metrics is not None and not callable(on_metrics):
            raise PipelineError(f"on_metrics={on_metrics!r:.80}: expected a function that takes a dict", site=site)
        if trace is not None and not isinstance(trace, str | os.PathLike):
            raise PipelineError(f"trace={trace!r:.80}: expected a path", site=site, fix='such as trace="run.json"')
        if trace is not None and not os.path.isdir(folder := os.path.dirname(os.fspath(trace)) or "."):
            raise PipelineError(f"trace={os.fspath(trace)!r}: folder {folder!r} does not exist", site=site)
        self._progress = Progress("loader", plain=True) if progress else None
        self._trace = None if trace is None else TraceWriter(os.fspath(trace))
        self._callback = None if on_metrics is None else Callback(on_metrics)
        self._server = None if serve is None else StatusServer(serve, site)
        self._otlp = Otlp() if collector_variable() else None
        self._metrics: Metrics | None = None
        some = [self._progress, self._trace, self._callback, self._server, self._otlp]
        self._all: list[Observer] = [each for each in some if each is not None]
        self._all += [History()] if self._all else []
        self._pid, self._next = os.getpid(), 0.0

    def __bool__(self) -> bool:
        return bool(self._all)

    def attach(self, loader: Loader) -> None:
        """Connect the observers to a loader."""
        if self._progress is not None:
            self._progress.position, self._progress.epoch = loader.position, lambda: loader.epoch
        if self._callback is not None:
            self._callback.loader = loader
        if self._trace is not None:
            name, dot = os.path.splitext(self._trace.path)
            self._trace.path = f"{name}.{loader.rank.rank}{dot}" if loader.rank.world > 1 else self._trace.path
            self._trace.report = weakref.WeakMethod(loader.report)
        if self._server is not None:
            loader.url = self._server.start(loader, self._metrics)
        if self._otlp is not None:
            self._otlp.attach(loader)

    def begin(self, metrics: Metrics) -> None:
        """Notify the observers that a loader with these metrics was created."""
        self._metrics = metrics
        for each in self._all:
            each.begin(metrics)

    def update(self, metrics: Metrics) -> None:
        """Notify the observers of a delivered batch, at most every 0.1 seconds."""
        now = time.perf_counter()
        if now >= self._next:
            self._next = now + _UPDATE_SECONDS
            for each in self._all:
                each.update(metrics)

    def ended(self) -> None:
        """Notify the observers that an iteration ended, except in a forked child."""
        if os.getpid() == self._pid:
            for each in self._all:
                each.ended()

    def close(self) -> None:
        """Notify the observers that the loader was closed, except in a forked child."""
        if os.getpid() == self._pid:
            for each in self._all:
                each.close()
