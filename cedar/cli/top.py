"""``cedar top``: shows the live status of runs that have a status server."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import urlsplit, urlunsplit
from urllib.request import urlopen

import cedar
from cedar.cli.arguments import command
from cedar.cli.ranks_page import page_of, watch
from cedar.core.errors import PipelineError
from cedar.core.printable import printable

if TYPE_CHECKING:
    from cedar.cli.arguments import Adder

_MAX_PARTS = 12
_MAX_ERROR_BYTES = 200  # max bytes of an error response to show
ADDRESS = 'loader.url of a loader with serve="127.0.0.1:0", or the id of its process on this machine'


def add(adder: Adder) -> None:
    """Register the command."""
    about = "Show runs with a status server, such as the ranks of a job: live in a terminal, once in a pipe."
    examples = ['"http://127.0.0.1:41234/status?token=..."   # loader.url', "4711   # one of your local processes"]
    made = command(adder, "top", "show the status of a run", top, examples, about)
    made.add_argument("urls", metavar="URL|PID", nargs="+", help=ADDRESS)
    made.add_argument("--page", metavar="HOST:PORT", help="serve a page of all runs, such as at 127.0.0.1:0")


def top(chosen: argparse.Namespace) -> None:
    """``cedar top``."""
    chosen.urls = [url for text in chosen.urls for url in addresses(text)]
    statuses = [_fetch_status(url) for url in chosen.urls]
    if chosen.page is not None:
        watch(chosen.page, lambda: page_of(chosen.urls, headline(_reachable_statuses(chosen.urls)), ask))
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
    """Return a run's answer to a request.

    Raises:
        PipelineError: no run answers, or the run rejects the request.
    """
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
        waited = _seconds_waited(now) - _seconds_waited(before)
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


def _seconds_waited(status: dict[str, Any]) -> float:
    return float(status["stall"] * status["seconds"])
