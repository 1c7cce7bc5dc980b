"""``cedar top``, ``trace``, ``view`` and ``merge``: show running jobs and their traces; ``service``: shared workers."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import sys
import time
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit
from urllib.request import urlopen

import cedar
from cedar.cli import tables
from cedar.cli.arguments import command
from cedar.core import listen
from cedar.core.errors import CedarError, PipelineError, writing
from cedar.core.printable import escape, printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cedar.cli.arguments import Adder


_MAX_PARTS = 12
_MAX_TRACE_SECONDS = 60
_REFRESH_SECONDS = 2  # seconds between refreshes of a page in the browser
_MAX_ERROR_BYTES = 200  # max bytes of an error response to show
ADDRESS = 'loader.url of a loader with serve="127.0.0.1:0", or the id of its process on this machine'


def add(adder: Adder) -> None:
    """Register the commands."""
    about = "Show runs with a status server, such as the ranks of a job: live in a terminal, once in a pipe."
    examples = ['"http://127.0.0.1:41234/status?token=..."   # loader.url', "4711   # one of your local processes"]
    made = command(adder, "top", "show the status of a run", top, examples, about)
    made.add_argument("urls", metavar="URL|PID", nargs="+", help=ADDRESS)
    made.add_argument("--page", metavar="HOST:PORT", help="serve a page of all runs, such as at 127.0.0.1:0")

    view = command(adder, "view", "show a trace as a self-contained page", _view, ["run.json --open"])
    view.add_argument("file", metavar="FILE", help="a trace from loader(trace=FILE) or cedar trace")
    view.add_argument("--out", metavar="PAGE", help="the page to write (default: FILE with the extension .html)")
    view.add_argument("--open", action="store_true", help="show it in a browser")
    examples = ['"http://127.0.0.1:41234/?token=..."', "4711   # one of your processes on this machine"]
    trace = command(adder, "trace", "record a trace of a running job", _trace, examples)
    trace.add_argument("url", metavar="URL|PID", help=ADDRESS)
    trace.add_argument("--seconds", type=_span, default=5, metavar="S", help=f"1 to {_MAX_TRACE_SECONDS} (default: 5)")
    trace.add_argument("--out", default="run.json", metavar="FILE", help="default: run.json")
    examples = ["both.json run.json torch.json"]
    merge = command(adder, "merge", "merge traces into one file for Perfetto, with aligned clocks", _merge, examples)
    merge.add_argument("out", metavar="OUT", help="the file to write")
    merge.add_argument("traces", metavar="TRACE", nargs="+", help="a trace from cedar or torch.profiler")

    _add_service(adder)


def top(chosen: argparse.Namespace) -> None:
    """``cedar top``."""
    chosen.urls = [url for text in chosen.urls for url in addresses(text)]
    statuses = [_fetch_status(url) for url in chosen.urls]
    if chosen.page is not None:
        watch(chosen.page, lambda: page_of(chosen.urls, headline(_reachable_statuses(chosen.urls))))
    if not sys.stdout.isatty():
        print(describe_all(statuses, statuses))
        return
    from rich.live import Live
    from rich.text import Text

    with Live(Text(describe_all(statuses, statuses)), refresh_per_second=4) as live:
        while True:
            time.sleep(1)
            before, statuses = statuses, [_fetch_status(url) for url in chosen.urls]
            live.update(Text(describe_all(statuses, before)))


def addresses(text: str) -> list[str]:
    """Return the URLs for a command-line argument, which is a URL or a process id."""
    if text.isdecimal():
        return cedar.served_by(int(text))
    try:
        known = urlsplit(text).scheme in ("http", "https")
    except ValueError:
        known = False
    if not known:
        raise PipelineError(f"{text!r} is not the address of a run", fix="use loader.url")
    return [text]


def _reachable_statuses(urls: Sequence[str]) -> list[dict[str, Any]]:
    """Return the statuses of all runs that answer requests."""
    statuses = []
    for url in urls:
        with suppress(PipelineError):
            statuses.append(_fetch_status(url))
    return statuses


def _fetch_status(url: str) -> dict[str, Any]:
    answer = ask(urlunsplit(urlsplit(url)._replace(path="/status")))
    try:
        status = dict(json.loads(answer))
        describe_all([status] * 2, [status] * 2)
    except Exception as error:  # some other server may listen at this address
        said = f"{type(error).__name__}: {error}"
        raise PipelineError(f"the server at this address is not a run: {said}", fix="use loader.url") from error
    return status


def ask(url: str, seconds: float = 10) -> bytes:
    """Return a run's answer to a request."""
    fix = "check that the run is still active, and use loader.url, with the token"
    try:
        try:
            with urlopen(url, timeout=seconds) as answer:  # noqa: S310 - its scheme was checked
                return bytes(answer.read())
        except HTTPError as error:
            with error:
                said = error.read(_MAX_ERROR_BYTES).decode("utf-8", "replace").strip()
            raise PipelineError(f"the server at this address refused the request: {error}: {said}", fix=fix) from error
    except (OSError, HTTPException, ValueError) as error:
        raise PipelineError(f"no run answers at this address: {str(error).strip()}", fix=fix) from error


def describe_all(statuses: Sequence[dict[str, Any]], before: Sequence[dict[str, Any]]) -> str:
    """Describe all ranks. If there are several, a first line summarizes them, and names the one that waits most."""
    each = [describe(now, then) for now, then in zip(statuses, before, strict=True)]
    return printable(each[0] if len(statuses) == 1 else "\n\n".join([headline(statuses), *each]))


def headline(statuses: Sequence[dict[str, Any]]) -> str:
    """Return a line that summarizes all ranks, and names the one that waits most."""
    if not statuses:
        return "no rank answers"
    most = max(statuses, key=lambda rank: rank["stall"])
    rate = sum(rank["rows_per_second"] for rank in statuses)
    return f"{len(statuses)} ranks, {rate:,.0f} rows/s; rank {most['rank']} waits most: {most['stall']:.0%} of its time"


def describe(now: dict[str, Any], before: dict[str, Any]) -> str:
    """Describe a status. ``before``: an earlier status, from which rates are computed."""
    passed = now["seconds"] - before["seconds"]
    rate, stall = now["rows_per_second"], now["stall"]
    if passed > 0:
        rate = (now["rows"] - before["rows"]) / passed
        waited = now["stall"] * now["seconds"] - before["stall"] * before["seconds"]
        stall = min(max(waited / passed, 0.0), 1.0)
    step = f"{now['step']:,}" + (f" of {now['steps']:,}" if now["steps"] else "")
    total = sum(now["worker_seconds"].values()) or 1.0
    parts = sorted(now["worker_seconds"].items(), key=lambda each: -each[1])[:_MAX_PARTS]
    plan = f"{now['executor']}, {now['workers']} worker(s), plan {now['plan']}, {now['restarts']} restart(s)"
    skipped = sum(now["skipped_rows"].values())
    return "\n".join(
        [
            f"rank {now['rank']} of {now['world']}, epoch {now['epoch']}, step {step}, {now['rows']:,} rows",
            f"{rate:,.0f} rows/s, waited for data {stall:.0%}",
            now["summary"],
            f"{plan}, {skipped:,} row(s) skipped",
            *(f"  {seconds:8.2f} s {seconds / total:5.0%}  {label}" for label, seconds in parts),
        ]
    )


def page_of(urls: Sequence[str], head: str) -> str:
    """Return a page with the reports of several runs, or an error for each run that does not answer."""
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
    """Return a page with a service's jobs and workers."""
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


def _span(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MAX_TRACE_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer from 1 to {_MAX_TRACE_SECONDS}")
    return int(text)


def _view(chosen: argparse.Namespace) -> None:
    out = cedar.view_trace(chosen.file, chosen.out)
    print(f"wrote {out}")
    if chosen.open:
        webbrowser.open(Path(out).resolve().as_uri())


def _trace(chosen: argparse.Namespace) -> None:
    url, *others = addresses(chosen.url)
    if others:
        raise cedar.PipelineError(f"process {chosen.url} serves {1 + len(others)} loaders", fix=f"name one: {url}, ...")
    parts = urlsplit(url)
    query = {"token": parse_qs(parts.query).get("token", [""])[0], "seconds": str(chosen.seconds)}
    place = chosen.out if os.path.exists(chosen.out) else os.path.dirname(chosen.out) or os.curdir
    with writing(chosen.out):
        if not os.access(place, os.W_OK):  # check this before recording for a while
            raise OSError(f"{place} is not writable")
        trace = ask(urlunsplit(parts._replace(path="/trace", query=urlencode(query))), chosen.seconds + 60)
        with open(chosen.out, "wb") as file:
            file.write(trace)
    print(f"wrote {chosen.out}")


def _merge(chosen: argparse.Namespace) -> None:
    cedar.merge_traces(chosen.out, chosen.traces)
    print(f"wrote {chosen.out}")


# ---- cedar service ---------------------------------------------------------------------------------------------------


_POLL_SECONDS = 1.0  # seconds between two requests for the status


def _add_service(adder: Adder) -> None:
    service = adder.add_parser(
        "service", help="workers that several trainers share", description="Workers that several trainers share."
    )
    actions = service.add_subparsers(title="actions", metavar="ACTION", required=True)
    start = command(actions, "start", "run a service on this machine until Ctrl-C", run_service)
    start.add_argument("--workers", type=int, default=1, metavar="N", help="minimum number of workers (default: 1)")
    start.add_argument("--max-workers", type=int, metavar="N", help="maximum, while trainers wait (default: N)")
    start.add_argument("--host", default="127.0.0.1", help="address to listen on; requires TLS beyond loopback")
    start.add_argument("--port", type=int, default=8786, help="scheduler port; 0 selects a free one (default: 8786)")
    start.add_argument("--keep", default="1GiB", metavar="SIZE", help="memory for shared results (default: 1GiB)")
    status = command(actions, "status", "show jobs, buffers, workers and stalls", show_status)
    status.add_argument("address", metavar="ADDRESS", help="address of the scheduler, such as tls://127.0.0.1:8786")
    status.add_argument("--follow", action="store_true", help="update every second, until Ctrl-C")
    status.add_argument("--page", metavar="HOST:PORT", help="serve a live page at this address, such as 127.0.0.1:0")


def run_service(chosen: argparse.Namespace) -> None:
    """``cedar service start``."""
    with cedar.Service(
        chosen.workers, chosen.max_workers, host=chosen.host, port=chosen.port, keep=chosen.keep
    ) as service:
        print(f"listening at {service.address}", flush=True)
        print(f'trainers: loader(executor="{service.address}"); status: cedar service status {service.address}')
        with contextlib.suppress(KeyboardInterrupt):
            while service.alive:
                time.sleep(_POLL_SECONDS)


def show_status(chosen: argparse.Namespace) -> None:
    """``cedar service status``."""
    status = cedar.Service.at(chosen.address)
    if chosen.page is not None:
        watch(chosen.page, lambda: page_of_service(cedar.Service.at(chosen.address)))
    tables.show(status, _tables)
    while chosen.follow:
        time.sleep(_POLL_SECONDS)
        tables.show(cedar.Service.at(chosen.address), _tables)


def _tables(status: Any) -> RenderableType:
    """Return tables of jobs and workers, and a summary; stalled jobs are red."""
    from rich.console import Group
    from rich.text import Text

    cells = (status.job_cells(), status.worker_cells())
    made = [
        tables.table(header, rows, ["red" if row[-1] == "stalls" else "" for row in rows]) for header, *rows in cells
    ]
    return Group(*made, Text(status.summary()))
