"""Host: a process that runs a local cluster, so that the scheduler does not slow down the trainer's process."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from cedar.cluster.dask.keys import new_keys, publish, security, withdraw
from cedar.store.files import remove_tree, temporary_folder

LOOPBACK = "127.0.0.1"
KIND = "dask"  # label in the name of the workers' temporary folder
_END_SECONDS = 1.0  # max seconds for the workers to end by themselves
_CHECK_SECONDS = 1.0  # seconds between checks that the parent is alive
_CONFIG: dict[str, Any] = {
    "distributed.deploy.lost-worker-timeout": "8s",  # after this time a lost worker can be replaced
    "distributed.scheduler.allowed-failures": 0,  # report a lost task immediately; the run retries it
    # Do not spill blocks to disk: the run fetches them as they finish, and limits how many are in flight.
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    "distributed.nanny.http.routes": [],
}


def main(text: str, parent: int, reported: int, on_start: Callable[[Any, dict[str, Any]], None] | None = None) -> None:
    """Run a cluster until standard input is closed. Report its address, folder and keys as a line of JSON.

    Args:
        text: JSON with ``workers``, ``dashboard`` (an address or null), and optionally ``host`` and ``port``. A cluster
            on loopback gets new keys; on another host it uses the certificates of Dask's configuration. With
            ``publish``, other processes of this user can find the keys as long as this process runs.
        parent: id of the parent process; the cluster ends when it exits.
        reported: file descriptor of the pipe for the line of JSON; only the parent has the other end.
        on_start: called with the cluster and the parsed ``text``.
    """
    asked = json.loads(text)
    folder = temporary_folder(KIND)
    leftovers = _Leftovers(folder)
    threading.Thread(target=_end_with_parent, args=(parent, leftovers), daemon=True).start()
    warnings.simplefilter("ignore")
    os.environ["PYTHONWARNINGS"] = "ignore:resource_tracker"  # the tracker would warn if this process is killed
    keys = new_keys() if asked.get("host", LOOPBACK) == LOOPBACK else None
    cluster = _cluster(asked, folder, keys)
    if on_start is not None:
        on_start(cluster, asked)
    else:
        threading.Thread(target=_restore, args=(cluster, asked["workers"]), daemon=True).start()
    if keys is not None and asked.get("publish"):
        leftovers.key_file, leftovers.keys = publish(cluster.scheduler_address, keys), keys
    facts = {"address": cluster.scheduler_address, "folder": folder, "keys": keys, "key_file": leftovers.key_file}
    with open(reported, "w", encoding="utf-8") as pipe:
        pipe.write(json.dumps(facts) + "\n")
    sys.stdin.buffer.read()
    threading.Timer(_END_SECONDS, _end, (leftovers,)).start()
    with contextlib.suppress(Exception):
        cluster.close(timeout=_END_SECONDS)
    _end(leftovers)


def _cluster(asked: dict[str, Any], folder: str, keys: dict[str, str] | None) -> Any:
    import dask
    from distributed import LocalCluster, Nanny
    from distributed.node import ServerNode
    from distributed.security import Security

    from cedar.cluster.dask.worker import QuietWorker

    config, dashboard = dict(_CONFIG), asked["dashboard"]
    if dashboard:
        config = {name: value for name, value in config.items() if "http" not in name}
    else:
        ServerNode.start_http_server = QuietWorker.start_http_server  # type: ignore[assignment, method-assign]
    dask.config.set(config)
    return LocalCluster(  # type: ignore[no-untyped-call]
        n_workers=asked["workers"],
        threads_per_worker=1,
        processes=True,
        host=asked.get("host", LOOPBACK),
        scheduler_port=asked.get("port", 0),
        protocol="tls://",
        security=security(keys) if keys else Security(require_encryption=True),  # type: ignore[no-untyped-call]
        dashboard_address=dashboard,
        worker_dashboard_address=f"{LOOPBACK}:0" if dashboard else None,
        silence_logs=logging.CRITICAL,
        local_directory=folder,
        **({} if dashboard else {"worker_class": partial(Nanny, worker_class=QuietWorker)}),
    )


def _restore(cluster: Any, workers: int) -> None:
    """Replace missing workers, since a nanny does not restart a worker that died while starting."""
    while cluster.status.name == "running":
        time.sleep(_CHECK_SECONDS)
        if len(cluster.workers) < workers:
            cluster.scale(workers)


@dataclass
class _Leftovers:
    """Files to remove when this process ends: its temporary folder, and the file with published keys."""

    folder: str
    key_file: str | None = None
    keys: dict[str, str] | None = None


def _end_with_parent(parent: int, leftovers: _Leftovers) -> None:
    while os.getppid() == parent:
        time.sleep(_CHECK_SECONDS)
    _end(leftovers)


def _end(leftovers: _Leftovers) -> None:
    """Exit immediately, even if a thread hangs. The workers end with this process."""
    withdraw(leftovers.key_file, leftovers.keys)
    remove_tree(leftovers.folder, KIND)
    os._exit(0)
