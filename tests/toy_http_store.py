"""An HTTP store on this machine that answers some requests with 503, 429, a reset, or fewer bytes than it announces."""

from __future__ import annotations

import hashlib
import socket
import struct
import threading
from collections import Counter
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

KINDS = ("503", "429", "reset", "cut", "short")


class Store(ThreadingHTTPServer):
    """Files by name, with ranges; a context.

    Args:
        files: bytes by path, without a leading slash. A folder is listed as a page of links.
        faults: share of requests that go wrong, all kinds alike.
        seed: another one fails other requests.
        statuses: by path, what is answered whatever is asked.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        files: Mapping[str, bytes],
        faults: float = 0.0,
        seed: int = 0,
        statuses: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.statuses = dict(statuses or {})
        self.hung: dict[str, int] = {}  # by path, how many requests get no answer
        self.files, self.share, self.seed = dict(files), faults, seed
        self.requests: Counter[str] = Counter()  # by method and path
        self.served: Counter[str] = Counter()  # of them, those that got what they asked for
        self.faults: Counter[str] = Counter()  # by kind
        self._open: set[socket.socket] = set()
        self._attempts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._serving = threading.Thread(target=self.serve_forever, args=(0.01,), name="toy-http-store")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def fault(self, method: str, path: str, span: str | None) -> str:
        """The fault of the next such request: the same, however many threads ask."""
        word = f"{self.seed} {method} {path.partition('?')[0]} {span}"
        with self._lock:
            self.requests[f"{method} {path}"] += 1
            attempt = self._attempts[word]
            self._attempts[word] += 1
            draw = hashlib.blake2b(f"{word} {attempt}".encode(), digest_size=8).digest()
            number = int.from_bytes(draw, "big")
            if number / 2.0**64 >= self.share:
                self.served[f"{method} {path}"] += 1
                return ""
            kind = KINDS[number % len(KINDS)]
            self.faults[kind] += 1
            return kind

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients hang up when they are told nonsense."""

    def __enter__(self) -> Self:
        self._serving.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self._serving.join()
        self.server_close()
        for connection in list(self._open):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Store

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        path = self.path.partition("?")[0].strip("/")
        span = self.headers.get("Range")
        fault = self.server.fault(self.command, self.path, span)
        if fault == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            return
        if fault in ("503", "429"):
            self._send(int(fault), b"go away", body, {"Retry-After": "0"} if fault == "429" else {})
            return
        if self.server.hung.get(path):
            self.server.hung[path] -= 1
            self.rfile.read(1)  # never comes
            return
        if path in self.server.statuses:
            self._send(self.server.statuses[path], b"no", body, {})
            return
        data = self.server.files.get(path)
        if data is None:
            names = sorted(n for n in self.server.files if n.startswith(f"{path}/" if path else ""))
            page = "".join(f'<a href="/{name}">{name}</a>\n' for name in names).encode()
            self._send(200 if names else 404, page, body, {"Content-Type": "text/html"})
            return
        status, headers = 200, {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
        if span is not None:
            first, _, last = span.removeprefix("bytes=").partition("-")
            start, stop = int(first), min(int(last or len(data) - 1) + 1, len(data))
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
            status, data = 206, data[start:stop]
        if fault == "short" and body and span is not None:
            data = data[: len(data) // 2]
        self._send(status, data, body, headers, cut=fault == "cut" and body)

    def _send(self, status: int, data: bytes, body: bool, headers: Mapping[str, str], cut: bool = False) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(data[: len(data) // 2] if cut else data)
        self.close_connection = self.close_connection or cut

    def log_message(self, format: str, *args: object) -> None:
        """Tests are quiet."""
