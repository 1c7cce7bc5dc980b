"""Time limits, from ``cedar.dask`` in Dask's configuration: in seconds, or as strings such as "5s"."""

from __future__ import annotations

_SECONDS = {
    "connect": 5.0,  # max time for an address to answer
    "workers": 30.0,  # max time that a cluster may have no workers
    "worker-silent": 5.0,  # silence of a worker after which another worker also runs its tasks
    "scheduler-silent": 30.0,  # silence of the scheduler after which it counts as lost
    "stuck": 30.0,  # max time for a finished block to arrive before it is recomputed; doubled with every try
}


def seconds(name: str) -> float:
    """Return the limit of this name in seconds.

    Examples:
        >>> seconds("connect")
        5.0
    """
    import dask
    from dask.utils import parse_timedelta

    return float(parse_timedelta(dask.config.get(f"cedar.dask.{name}", _SECONDS[name]), "s"))
