"""Executor "dask": runs tasks on a Dask cluster that the user names or that cedar starts on this machine."""

from __future__ import annotations

import threading
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any

_TRIES = 4  # how often to connect to a local cluster; on a busy machine, one attempt may take too long


def open_cluster(where: Any, workers: int | None, limit: float = 0.0) -> Executor:
    """Return an executor for a client or an address; for "dask", start a local cluster with ``workers`` workers.

    Args:
        limit: seconds to wait for a scheduler that was reachable at this address and no longer is.

    Raises:
        PipelineError: the client is asynchronous.
        WorkerError: the cluster does not answer, has other versions of libraries, or has no workers.
    """
    from cedar.cluster.dask.clients import check, client_again, client_at
    from cedar.cluster.dask.executor import DaskExecutor
    from cedar.cluster.dask.local import is_local, local_address
    from cedar.core.errors import WorkerError
    from cedar.core.packages import library
    from cedar.plan.places import remember

    library("distributed", "dask", "a Dask cluster")
    if not isinstance(where, str):
        address = remember(where)
        check(where, address)
        return DaskExecutor(where, workers)
    if where != "dask":
        local = is_local(where)
        limit = 0.0 if local else limit  # a local cluster that has ended does not come back
        try:
            client = client_at(where)
        except WorkerError as error:
            client = client_again(where, error, limit, threading.Event())
        return DaskExecutor(client, workers, local=local, limit=limit)
    for _ in range(_TRIES - 1):
        address = local_address(workers or 1)
        with suppress(WorkerError):  # it has just ended, and another one is started; or the machine is busy
            return DaskExecutor(client_at(address), workers, local=True)
    return DaskExecutor(client_at(local_address(workers or 1)), workers, local=True)


def close() -> None:
    """End the clusters and close the clients that this process created. The next run creates new ones."""
    from cedar.cluster.dask.clients import close_clients
    from cedar.cluster.dask.local import close_hosts

    close_clients()
    close_hosts()
