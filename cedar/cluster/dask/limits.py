"""Limits on waiting, as Dask's configuration has them under ``cedar.dask``, in seconds or as text such as "5s"."""

from __future__ import annotations

_SECONDS = {
    "connect": 5.0,  # until an address that does not answer is given up
    "workers": 30.0,  # that a cluster may be without any worker
    "worker-silent": 5.0,  # after which the tasks of a worker that is not heard of are given to another one, too
    "scheduler-silent": 30.0,  # after which the scheduler is taken to be gone
    "stuck": 30.0,  # that a finished block may take to arrive before it is computed once more; then twice as long
}


def seconds(name: str) -> float:
    """The limit of that name.

    Examples:
        >>> seconds("connect")
        5.0
    """
    import dask
    from dask.utils import parse_timedelta

    return float(parse_timedelta(dask.config.get(f"cedar.dask.{name}", _SECONDS[name]), "s"))
