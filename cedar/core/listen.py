"""A small HTTP server that answers questions of who has its token, and of no other client."""

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
    """Answers a GET that has the token; the address holds it, so nothing is logged."""

    token: str
    policy: str  # what a browser may load and run
    timeout = 10  # seconds for one who asks and says nothing
    server_version = "cedar"

    def do_GET(self) -> None:
        """What the path names, if the token is right."""
        url = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(url.query).items()}
        if hmac.compare_digest(asked.get("token", "").encode(), self.token.encode()):
            self.get(url.path, asked)
        else:
            self.answer(403, "the token is missing, or wrong\n")

    def get(self, path: str, asked: Mapping[str, str]) -> None:
        """Answer a question: a path, and what stood behind it by name."""
        raise NotImplementedError

    def answer(self, code: int, text: str, kind: str = "text/plain; charset=utf-8") -> None:
        """Send a text of a MIME type."""
        body = text.encode(errors="xmlcharrefreplace" if kind == HTML else "backslashreplace")  # names of files
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
        """Nothing."""


class Server(ThreadingHTTPServer):
    """Its threads end with the process."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who asks may have gone; whatever else it is, the run continues."""
        _log.debug("a question was not answered", exc_info=True)


def listen(address: object, option: str, handler: type[TokenHandler], site: Site | None = None) -> Server:
    """A server that listens, and is not started.

    Args:
        address: host and port as text; port 0 is any that is free.
        option: where the user wrote it, for errors: ``serve=``, ``--page``.
        handler: with its token.
        site: the user's line.

    Raises:
        PipelineError: an invalid address, or cannot be listened on.
    """
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    said = f"{option}{address!r:.80}"
    if not host or not port.isdecimal() or int(port) > 65535:
        raise PipelineError(f"{said} is not an address", site=site, fix='such as "127.0.0.1:0"')
    try:
        return Server((host.strip("[]"), int(port)), handler)
    except OSError as error:
        fix = "port 0 takes any that is free; several ranks on one machine need one each"
        raise PipelineError(f"{said} cannot be listened on: {error}", site=site, fix=fix) from error
