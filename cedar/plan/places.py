"""Places: where stages run, as plans name them. A saved plan names kinds alone; addresses come from the caller."""

from __future__ import annotations

import weakref
from typing import Any

from cedar.core import forks
from cedar.core.errors import PlanError

LOCAL = ("", "inline", "threads", "processes", "dask")  # "" is wherever the run works
CLUSTER = "cluster"
"""In a saved plan: the cluster that the caller names."""

_given: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_lock = forks.Lock()


def remember(client: Any) -> str:
    """The address of a user's Dask client, which stands for its cluster in plans from now on."""
    address: str = client.scheduler.address
    with _lock:
        _given[address] = client
    return address


def given(address: str) -> Any:
    """The user's client of a scheduler, or None."""
    with _lock:
        return _given.get(address)


def given_clients() -> list[Any]:
    """All of them that are still there."""
    with _lock:
        return list(_given.values())


def forget(address: str) -> None:
    """The user's client of a scheduler is closed."""
    with _lock:
        _given.pop(address, None)


def forget_all() -> list[Any]:
    """All of them; those that are still there."""
    with _lock:
        clients = list(_given.values())
        _given.clear()
    return clients


def kind(place: str) -> str:
    """What a saved plan calls a place.

    Examples:
        >>> kind("processes"), kind("tls://10.0.0.1:8786")
        ('processes', 'cluster')
    """
    return place if place in LOCAL else CLUSTER


def place(kind: Any, cluster: Any, field: str) -> str:
    """The place that a saved plan's kind means here.

    Args:
        kind: what the plan says.
        cluster: the address of a scheduler or a Dask client, from the caller; None if there is none.
        field: the part of the plan that says it, for messages.

    Raises:
        PlanError: it is not a kind of place, or a cluster that the caller did not name.
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
