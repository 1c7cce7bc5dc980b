"""Signals: figures that a loader reports to a service once a second."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from functools import cache

_STALL_SHARE = 0.05  # a trainer counts as stalled if it waits for more than this share of its time


@dataclass(frozen=True)
class Signal:
    """A loader's figures since its last signal.

    Args:
        run: id of the loader's run of an epoch.
        job, rank: the job and rank of the loader.
        buffered: number of finished results that the trainer has not consumed yet.
        ahead: max number of buffered results and tasks in progress together.
        waiting: share of time during which the trainer waited for a result, 0 to 1.
        rows_per_second: rows that arrived per second.
        busy: number of workers that the loader keeps busy, as worker seconds per second.
    """

    run: str
    job: str
    rank: int
    buffered: int
    ahead: int
    waiting: float
    rows_per_second: float
    busy: float

    @property
    def stalls(self) -> bool:
        """Whether the trainer waits for its next result, even if later results are already buffered."""
        return self.waiting > _STALL_SHARE


@cache
def _script() -> str:
    return os.path.basename(sys.argv[0] or "python") or "python"


def job_of_ranks() -> str:
    """Return this process's job, equal on all machines: ``cedar.job`` in Dask's configuration, or the script's name."""
    import dask

    return str(dask.config.get("cedar.job", None) or _script())


def job_and_rank() -> tuple[str, int]:
    """Return this process's job (``cedar.job`` in Dask's configuration, or script and machine) and its rank."""
    import dask

    from cedar.core.errors import CedarError
    from cedar.core.process import find_rank

    try:
        rank = find_rank(None, None, False, None).rank
    except CedarError:  # the environment's ranks are ambiguous; the loader got its rank as an argument
        rank = 0
    return str(dask.config.get("cedar.job", None) or f"{_script()}@{socket.gethostname()}"), rank
