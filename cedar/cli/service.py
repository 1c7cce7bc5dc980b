"""``cedar service``: workers that several trainers share."""

from __future__ import annotations

import argparse
import contextlib
import time
from typing import TYPE_CHECKING, Any

import cedar
from cedar.cli import tables
from cedar.cli.arguments import command
from cedar.cli.top import page_of_service, watch

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cedar.cli.arguments import Adder

_POLL_SECONDS = 1.0  # seconds between two requests for the status


def add(adder: Adder) -> None:
    """Register the command."""
    service = adder.add_parser("service", help="workers that several trainers share", description=__doc__)
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
