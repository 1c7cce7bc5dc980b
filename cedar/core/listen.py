"""A small HTTP server that only answers clients that send its token."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cedar.core.errors import PipelineError, Site

HTML = "text/html; charset=utf-8"
_log = logging.getLogger("cedar")


class TokenHandler(BaseHTTPRequestHandler):
    """Answers GET requests that contain the token. Requests are not logged, since their URLs contain the token."""

    token: str
    policy: str  # what a browser may load and run
    timeout = 10  # seconds to wait for a client's request
    server_version = "cedar"

    def do_GET(self) -> None:
        """Answer the request if its token is valid."""
        url = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(url.query).items()}
        if hmac.compare_digest(asked.get("token", "").encode(), self.token.encode()):
            self.get(url.path, asked)
        else:
            self.answer(403, "the token is missing, or wrong\n")

    def get(self, path: str, asked: Mapping[str, str]) -> None:
        """Answer a request for ``path`` with the query parameters ``asked``."""
        raise NotImplementedError

    def answer(self, code: int, text: str, kind: str = "text/plain; charset=utf-8") -> None:
        """Send a text of a MIME type."""
        body = text.encode(errors="xmlcharrefreplace" if kind == HTML else "backslashreplace")  # for surrogates
        self.send_response(code)
        for name, value in (
            ("Content-Type", kind), ("Content-Length", str(len(body))), ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"), ("Referrer-Policy", "no-referrer"),
            ("Content-Security-Policy", self.policy),
        ):  # fmt: skip
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


class Server(ThreadingHTTPServer):
    """An HTTP server whose threads end with the process."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log the error at debug level only. A client may have disconnected, and the run must continue."""
        _log.debug("a question was not answered", exc_info=True)


def listen(address: object, option: str, handler: type[TokenHandler], site: Site | None = None) -> Server:
    """Return a server that listens on an address but is not started.

    Args:
        address: "host:port"; port 0 picks a free port.
        option: the option that the user set, for errors: ``serve=``, ``--page``.
        handler: the handler class, with its token.
        site: the user's line.

    Raises:
        PipelineError: the address is invalid, or the server cannot listen on it.
    """
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    shown = f"{option}{address!r:.80}"
    if not host or not port.isdecimal() or int(port) > 65535:
        raise PipelineError(f"{shown} is not an address", site=site, fix='such as "127.0.0.1:0"')
    try:
        return Server((host.strip("[]"), int(port)), handler)
    except OSError as error:
        fix = "port 0 takes any that is free; several ranks on one machine need one each"
        raise PipelineError(f"cannot listen on {shown}: {error}", site=site, fix=fix) from error
