"""Places where stages run, as plans name them. A saved plan names only kinds; the caller supplies addresses."""

from __future__ import annotations

import weakref
from typing import Any

from cedar.core import forks
from cedar.core.errors import PlanError

LOCAL = ("", "inline", "threads", "processes", "dask")  # "" is the run's own executor
CLUSTER = "cluster"
"""In a saved plan: the cluster that the caller names."""

_given: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_lock = forks.Lock()


def remember(client: Any) -> str:
    """Register a user's Dask client, and return its address, which names the cluster in plans from now on."""
    address: str = client.scheduler.address
    with _lock:
        _given[address] = client
    return address


def given(address: str) -> Any:
    """Return the user's client of a scheduler, or None."""
    with _lock:
        return _given.get(address)


def given_clients() -> list[Any]:
    """Return all registered clients that still exist."""
    with _lock:
        return list(_given.values())


def forget(address: str) -> None:
    """Unregister the client of a scheduler, because it was closed."""
    with _lock:
        _given.pop(address, None)


def forget_all() -> list[Any]:
    """Unregister all clients, and return those that still exist."""
    with _lock:
        clients = list(_given.values())
        _given.clear()
    return clients


def kind(place: str) -> str:
    """Return a place's name in saved plans.

    Examples:
        >>> kind("processes"), kind("tls://10.0.0.1:8786")
        ('processes', 'cluster')
    """
    return place if place in LOCAL else CLUSTER


def place(kind: Any, cluster: Any, field: str) -> str:
    """Return the place that a saved plan's kind of place refers to here.

    Args:
        kind: the kind in the plan.
        cluster: a scheduler's address or a Dask client from the caller; None without one.
        field: the part of the plan with the kind, for messages.

    Raises:
        PlanError: not a kind of place, or a cluster although the caller named none.
    """
    if isinstance(kind, str) and kind in LOCAL:
        return kind
    if kind != CLUSTER:
        raise PlanError(
            f"{field} is {kind!r:.80}, which is not a kind of place",
            fix=f"a plan names one of {', '.join(map(repr, (*LOCAL[1:], CLUSTER)))}; an address is the caller's: "
            "Plan.load(path, pipeline, cluster=address)",
        )
    if cluster is None:
        raise PlanError(
            f"{field} is a cluster, and a saved plan does not say which",
            fix="Plan.load(path, pipeline, cluster=...), with the address of its scheduler or a Dask client",
        )
    return cluster if isinstance(cluster, str) else remember(cluster)
