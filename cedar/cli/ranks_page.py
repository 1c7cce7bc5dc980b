"""Live pages for ``--page`` of ``cedar top`` and ``cedar service``: all ranks of a job, or a service."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from cedar.core import listen
from cedar.core.errors import CedarError, PipelineError
from cedar.core.printable import escape

_REFRESH_SECONDS = 2  # seconds between refreshes in the browser


def page_of(urls: Sequence[str], head: str, ask: Callable[[str], bytes]) -> str:
    """Return a page with the reports of several runs, or an error for each run that does not answer.

    Args:
        urls: addresses of the runs.
        head: a line to show above all reports.
        ask: requests an address and returns its answer.
    """
    parts = []
    for number, url in enumerate(urls):
        try:
            shown = ask(urlunsplit(urlsplit(url)._replace(path="/report"))).decode("utf-8", "replace")
        except PipelineError as error:
            shown = f"<p>{escape(str(error.what))}</p>"
        where = urlsplit(url).netloc
        parts.append(f"<details{' open' if number == 0 else ''}><summary>{escape(where)}</summary>{shown}</details>")
    return _page(f"{len(urls)} ranks", head, "".join(parts))


def page_of_service(status: Any) -> str:
    """Return a page with a service's jobs and workers.

    Args:
        status: a ``ServiceStatus``.
    """
    tables = []
    for header, *rows in (status.job_cells(), status.worker_cells()):
        lines = [_cells("th", header), *(_cells("td", row) for row in rows)]
        tables.append(f'<table style="font:14px system-ui">{"".join(lines)}</table>')
    return _page("service", status.summary(), "".join(tables))


def _cells(kind: str, strings: Sequence[str]) -> str:
    style = ' style="text-align:left;padding:1px 12px 1px 0"'
    return f"<tr>{''.join(f'<{kind}{style}>{escape(text)}</{kind}>' for text in strings)}</tr>"


def _page(title: str, head: str, shown: str) -> str:
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="{_REFRESH_SECONDS}">'
        f'<title>cedar: {title}</title><link rel="icon" href="data:,"><main><p style="font:16px system-ui">'
        f"{escape(head)}</p>{shown}</main></html>"
    )


def watch(address: str, shown: Callable[[], str]) -> None:
    """Serve a page until Ctrl-C, and print its URL."""
    url, server = serve(address, shown)
    print(f"{url}   # Ctrl-C ends it", flush=True)
    with server:
        server.serve_forever()


def serve(address: str, shown: Callable[[], str]) -> tuple[str, listen.Server]:
    """Serve a page to clients that have the token. Return its URL, and a server that the caller must start.

    Args:
        address: host and port; port 0 selects a free port.
        shown: renders the page.

    Raises:
        PipelineError: the address is invalid or cannot be listened on.
    """
    token = secrets.token_urlsafe(16)
    server = listen.listen(
        address, "--page ", type("Handler", (_Handler,), {"token": token, "shown": staticmethod(shown)})
    )
    return f"http://{address.rpartition(':')[0]}:{server.server_address[1]}/?token={token}", server


class _Handler(listen.TokenHandler):
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"  # blocks scripts that a rank may inject
    shown: Callable[[], str]

    def get(self, path: str, asked: Mapping[str, str]) -> None:
        """Answer any path with the page."""
        try:
            page = self.shown()
        except CedarError as error:
            page = _page("no answer", str(error.what), "")
        self.answer(200, page, listen.HTML)
