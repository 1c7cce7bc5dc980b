"""Executor "dask": a cluster's workers, given as a client, as an address, or made on the spot on this machine."""

from __future__ import annotations

import threading
from concurrent.futures import Executor
from typing import Any


def open_cluster(where: Any, workers: int | None, limit: float = 0.0) -> Executor:
    """The executor of a cluster: of a client, of an address, or, for "dask", of a local one with so many workers.

    Args:
        limit: seconds to wait for a scheduler that was at this address and is gone.

    Raises:
        PipelineError: an asynchronous client.
        WorkerError: no answer, versions differ, or there is no worker.
    """
    from cedar.cluster.dask.clients import check, client_again, client_at
    from cedar.cluster.dask.executor import DaskExecutor
    from cedar.cluster.dask.local import is_local, local_address
    from cedar.core.errors import WorkerError
    from cedar.plan.places import remember

    if not isinstance(where, str):
        address = remember(where)
        check(where, address)
        return DaskExecutor(where, workers)
    if where != "dask":
        local = is_local(where)
        limit = 0.0 if local else limit  # it ended with this program, or was ended by it
        try:
            client = client_at(where)
        except WorkerError as error:
            client = client_again(where, error, limit, threading.Event())
        return DaskExecutor(client, workers, local=local, limit=limit)
    try:
        return DaskExecutor(client_at(local_address(workers or 1)), workers, local=True)
    except WorkerError:  # it was just ended: make another one
        return DaskExecutor(client_at(local_address(workers or 1)), workers, local=True)


def cluster_figures(where: Any) -> tuple[str, int, float, float]:
    """What it costs to work on a cluster, measured once: see ``ship_costs``.

    Raises:
        CedarError: as of ``open_cluster``.
    """
    from cedar.cluster.dask.costs import ship_costs

    return ship_costs(where)


def close() -> None:
    """End the clusters made here, and the clients of others; the next run makes others."""
    from cedar.cluster.dask.clients import close_clients
    from cedar.cluster.dask.local import close_hosts

    close_clients()
    close_hosts()
