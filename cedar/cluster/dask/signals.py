"""Signals: what a trainer's loader tells a service about itself, once a second."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Signal:
    """How one loader did since its last signal.

    Args:
        run: stands for the loader's run of an epoch.
        job, rank: whose it is.
        buffered: finished results that the trainer has not taken yet.
        ahead: how many it would have at most, those in progress included.
        waiting: share of the time in which the trainer waited for a result, 0 to 1.
        rows_per_second: that arrived.
        busy: seconds of workers per second that its results took: how many workers it keeps busy.
    """

    run: str
    job: str
    rank: int
    buffered: int
    ahead: int
    waiting: float
    rows_per_second: float
    busy: float


@cache
def _script() -> str:
    return os.path.basename(sys.argv[0] or "python") or "python"


def job_of_ranks() -> str:
    """The job of this process, the same on all machines: ``cedar.job`` in Dask's configuration, or the script."""
    import dask

    return str(dask.config.get("cedar.job", None) or _script())


def whose() -> tuple[str, int]:
    """The job and the rank of this process: the former as ``cedar.job`` in Dask's configuration, or by the script."""
    import dask

    from cedar.core.errors import CedarError
    from cedar.core.ranks import find_rank

    try:
        rank = find_rank(None, None, False, None).rank
    except CedarError:  # the environment is ambiguous; the loader was given the rank
        rank = 0
    return str(dask.config.get("cedar.job", None) or f"{_script()}@{socket.gethostname()}"), rank
