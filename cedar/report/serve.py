"""A small read-only HTTP server beside a run: a live page, ``/status`` as JSON, ``/metrics``, ``/trace``."""

from __future__ import annotations

import hmac
import json
import logging
import os
import secrets
import threading
import time
import weakref
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cedar.control.timeline import Recording
from cedar.core.errors import PipelineError, Site
from cedar.engine.delivery.loader import Loader
from cedar.engine.delivery.options import Observer
from cedar.engine.metrics import Metrics
from cedar.report import page, served
from cedar.report.status import Collector, status
from cedar.report.trace import MOST, Recorded

_log = logging.getLogger("cedar")
TOKEN = "CEDAR_SERVE_TOKEN"  # noqa: S105 - the name of a variable
_LONGEST = 60  # seconds of a trace
_HTML = "text/html; charset=utf-8"
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:"
_ABSENT = "prometheus-client is not installed: pip install 'cedar-data[metrics]'\n"


class Server(Observer):
    """Answers who has the token, as long as the loader is open.

    Args:
        address: host and port; port 0 is any that is free.
        site: the user's line.

    Raises:
        PipelineError: an address that is none, or cannot be listened on.
    """

    def __init__(self, address: str, site: Site | None) -> None:
        host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise PipelineError(f"serve={address!r:.80} is no address", site=site, fix='such as "127.0.0.1:0"')
        self._host, self._port, self._site = host, int(port), site
        self._server: ThreadingHTTPServer | None = None
        self._noted: str | None = None
        self._loader: Any = lambda: None

    def start(self, loader: Loader, metrics: Metrics | None) -> str:
        """Listen; returns the URL of the status."""
        token = os.environ.get(TOKEN) or secrets.token_urlsafe(16)
        known = {"loader": weakref.ref(loader), "token": token, "metrics": metrics, "recording": threading.Lock()}
        handler = type("Handler", (_Handler,), known)
        try:
            server = self._server = _Server((self._host.strip("[]"), self._port), handler)
        except OSError as error:
            raise PipelineError(
                f"serve={self._host}:{self._port} cannot be listened on: {error}",
                site=self._site,
                fix="port 0 takes any that is free; several ranks on one machine need one each",
            ) from error
        threading.Thread(target=server.serve_forever, args=(0.1,), name="cedar-serve", daemon=True).start()
        self._loader = weakref.ref(loader)
        port = server.server_address[1]
        url = f"http://{self._host}:{port}/status?token={token}"
        self._noted = served.note(url, port)
        weakref.finalize(loader, _stop, server, os.getpid()).atexit = False  # its thread ends with the process
        weakref.finalize(loader, served.forget, self._noted, os.getpid())
        return url

    def update(self, metrics: Metrics) -> None:
        """An epoch's length is worked out by the thread that runs it."""
        loader = self._loader()
        if loader is not None:
            loader.position()

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            _stop(self._server, os.getpid())
            served.forget(self._noted, os.getpid())
            self._server = None


def _stop(server: ThreadingHTTPServer, process: int) -> None:
    """In a fork there is no thread to wait for, and the parent's goes on."""
    if process == os.getpid():
        server.shutdown()
    server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who asks may have gone; whatever else it is, the run goes on."""
        _log.debug("a question about the run was not answered", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    loader: Any
    token: str
    metrics: Metrics
    recording: threading.Lock
    timeout = 10  # seconds for one who asks and says nothing
    server_version = "cedar"

    def do_GET(self) -> None:
        """What the path names."""
        url = urlsplit(self.path)
        asked = parse_qs(url.query)
        given = asked.get("token", [""])[0]
        loader = self.loader()
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            self._answer(403, "the token is missing, or wrong\n")
        elif loader is None:
            self._answer(503, "the run is over\n")
        elif url.path == "/status":
            self._answer(200, json.dumps(status(loader)), "application/json")
        elif url.path == "/metrics":
            self._metrics(loader)
        elif url.path == "/":
            self._answer(200, page.live(loader.report()), _HTML)
        elif url.path == "/report":
            self._answer(200, page.view(loader.report()), _HTML)
        elif url.path == "/trace":
            self._trace(asked.get("seconds", ["5"])[0])
        else:
            self._answer(404, "there are /, /status, /metrics and /trace\n")

    def _trace(self, text: str) -> None:
        """The tasks of the next seconds."""
        if not text.isdecimal() or not 1 <= int(text) <= _LONGEST:
            self._answer(400, f"seconds: 1 to {_LONGEST}\n")
            return
        since, kept = time.perf_counter(), self.metrics.time
        with self.recording:  # one at a time
            mine = kept.recording is None
            if mine:
                kept.recording = Recording(MOST)
            time.sleep(int(text))
            found = Recorded.of(self.metrics, since)
            if mine:
                kept.recording = None
        loader = self.loader()
        self._answer(200, "".join(found.lines(None if loader is None else loader.report())), "application/json")

    def _metrics(self, loader: Loader) -> None:
        try:
            from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
        except ImportError:
            self._answer(501, _ABSENT)
            return
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Collector(loader.report()))
        self._answer(200, generate_latest(registry).decode(), CONTENT_TYPE_LATEST)

    def _answer(self, code: int, text: str, kind: str = "text/plain; charset=utf-8") -> None:
        body = text.encode()
        self.send_response(code)
        for name, value in (
            ("Content-Type", kind), ("Content-Length", str(len(body))), ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"), ("Referrer-Policy", "no-referrer"),
            ("Content-Security-Policy", _POLICY),
        ):  # fmt: skip
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the address holds the token."""
