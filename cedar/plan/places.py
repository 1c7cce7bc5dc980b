"""Names of the executors that plans assign to stages. Saved plans contain only the kind; callers supply addresses."""

from __future__ import annotations

import weakref
from typing import Any

from cedar.core.errors import PlanError
from cedar.core.process import Lock

LOCAL = ("", "inline", "threads", "processes", "dask")  # "" is the run's own executor
REMOTE = "processes"  # the executor to and from which rows are copied
CLUSTER = "cluster"
"""In a saved plan: the cluster that the caller names."""

_given: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_lock = Lock()


def remember(client: Any) -> str:
    """Register a user's Dask client, and return its scheduler's address, by which plans refer to the cluster."""
    address: str = client.scheduler.address
    with _lock:
        _given[address] = client
    return address


def given(address: str) -> Any:
    """Return the Dask client that the user registered for a scheduler's address; None if there is none."""
    with _lock:
        return _given.get(address)


def given_clients() -> list[Any]:
    """Return all registered clients that were not garbage collected."""
    with _lock:
        return list(_given.values())


def forget(address: str) -> None:
    """Unregister the client of a scheduler after it was closed."""
    with _lock:
        _given.pop(address, None)


def forget_all() -> list[Any]:
    """Unregister all clients, and return those that were not garbage collected."""
    with _lock:
        clients = list(_given.values())
        _given.clear()
    return clients


def kind(place: str) -> str:
    """Return the kind of an executor, which is its name in saved plans.

    Examples:
        >>> kind("processes"), kind("tls://10.0.0.1:8786")
        ('processes', 'cluster')
    """
    return place if place in LOCAL else CLUSTER


def place(kind: Any, cluster: Any, field: str) -> str:
    """Return the executor in this process that corresponds to a kind of executor in a saved plan.

    Args:
        kind: the kind in the plan.
        cluster: the caller's Dask client or scheduler address; None if the caller uses no cluster.
        field: the part of the plan that contains the kind, for messages.

    Raises:
        PlanError: the kind is unknown, or it is a cluster and ``cluster`` is None.
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
