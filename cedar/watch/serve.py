"""A small read-only HTTP server for a run: a live page, ``/status`` as JSON, ``/metrics`` and ``/trace``."""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any

from cedar.control.timeline import Recording
from cedar.core import listen
from cedar.core.errors import Site
from cedar.engine.delivery.loader import Loader
from cedar.engine.delivery.options import Observer
from cedar.engine.metrics import Metrics
from cedar.watch import page, served
from cedar.watch.status import Collector, status
from cedar.watch.trace import MAX_RECORDED, TraceRecord

TOKEN = "CEDAR_SERVE_TOKEN"  # noqa: S105 - an environment variable's name
_MAX_TRACE_SECONDS = 60  # max seconds that a client may request a trace for
_NOT_INSTALLED = "prometheus-client is not installed: pip install 'cedar-data[metrics]'\n"


class StatusServer(Observer):
    """Answers requests that have the token, until the loader is closed.

    Args:
        address: host and port; port 0 picks a free port.
        site: the line of user code that made the loader.
    """

    def __init__(self, address: str, site: Site | None) -> None:
        self._address, self._site = address, site
        self._server: listen.Server | None = None
        self._address_file: str | None = None
        self._loader: Any = lambda: None

    def start(self, loader: Loader, metrics: Metrics | None) -> str:
        """Start listening and return the URL of ``/status``.

        Raises:
            PipelineError: the address is invalid or cannot be used.
        """
        token = os.environ.get(TOKEN) or secrets.token_urlsafe(16)
        known = {"loader": weakref.ref(loader), "token": token, "metrics": metrics, "recording": threading.Lock()}
        server = self._server = listen.listen(
            self._address, "serve=", type("Handler", (_StatusHandler,), known), self._site
        )
        threading.Thread(target=server.serve_forever, args=(0.1,), name="cedar-serve", daemon=True).start()
        self._loader = weakref.ref(loader)
        port = server.server_address[1]
        url = f"http://{self._address.rpartition(':')[0]}:{port}/status?token={token}"
        self._address_file = served.note(url, port)
        weakref.finalize(loader, _stop, server, os.getpid()).atexit = False  # its daemon thread ends at exit anyway
        weakref.finalize(loader, served.forget, self._address_file, os.getpid())
        return url

    def update(self, metrics: Metrics) -> None:
        """Compute the epoch's length here, in the loader's thread, so that requests only read it."""
        loader = self._loader()
        if loader is not None:
            loader.position()

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            _stop(self._server, os.getpid())
            served.forget(self._address_file, os.getpid())
            self._server = None


def _stop(server: listen.Server, process: int) -> None:
    """Stop the server. A forked child has no server thread, so it only closes the socket."""
    if process == os.getpid():
        server.shutdown()
    server.server_close()


class _StatusHandler(listen.TokenHandler):
    policy = (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:"
    )
    loader: Any
    metrics: Metrics
    recording: threading.Lock

    def get(self, path: str, asked: Mapping[str, str]) -> None:
        """Answer a request for a path."""
        loader = self.loader()
        if loader is None:
            self.answer(503, "the run is over\n")
        elif path == "/status":
            self.answer(200, json.dumps(status(loader)), "application/json")
        elif path == "/metrics":
            self._metrics(loader)
        elif path == "/":
            self.answer(200, page.live(loader.report()), listen.HTML)
        elif path == "/report":
            self.answer(200, page.view(loader.report()), listen.HTML)
        elif path == "/trace":
            self._trace(asked.get("seconds", "5"))
        else:
            self.answer(404, "there are /, /status, /metrics and /trace\n")

    def _trace(self, text: str) -> None:
        """Record tasks for the requested number of seconds, and answer with the trace."""
        if not text.isdecimal() or not 1 <= int(text) <= _MAX_TRACE_SECONDS:
            self.answer(400, f"seconds: 1 to {_MAX_TRACE_SECONDS}\n")
            return
        since, time_used = time.perf_counter(), self.metrics.time
        with self.recording:  # one recording at a time
            own_recording = time_used.recording is None
            if own_recording:
                time_used.recording = Recording(MAX_RECORDED)
            time.sleep(int(text))
            recorded = TraceRecord.of(self.metrics, since)
            if own_recording:
                time_used.recording = None
        loader = self.loader()
        self.answer(200, "".join(recorded.lines(None if loader is None else loader.report())), "application/json")

    def _metrics(self, loader: Loader) -> None:
        try:
            from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
        except ImportError:
            self.answer(501, _NOT_INSTALLED)
            return
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Collector(loader.report()))
        self.answer(200, generate_latest(registry).decode(), CONTENT_TYPE_LATEST)
