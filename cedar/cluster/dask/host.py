"""Host: the process that holds a cluster of this machine, so that its scheduler takes no time of the trainer's."""

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
from typing import Any

from cedar.cluster.dask.keys import new_keys, publish, security, withdraw
from cedar.store.ownership import remove_tree, temporary_folder

LOOPBACK = "127.0.0.1"
KIND = "dask"  # of the folder of its workers
_LAST = 1.0  # seconds for the workers to end by themselves
_LOOK = 1.0  # seconds between two looks at whether the parent lives
_CONFIG: dict[str, Any] = {
    "distributed.deploy.lost-worker-timeout": "8s",  # then its nanny is given up, and another may be started
    "distributed.scheduler.allowed-failures": 0,  # report a task whose worker died at once; the run recovers it
    # No pickled block on disk: blocks are taken by the run as they finish, and its look-ahead bounds them.
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    "distributed.nanny.http.routes": [],
}


def main(text: str, parent: int, reported: int, begun: Callable[[Any, dict[str, Any]], None] | None = None) -> None:
    """Hold a cluster until standard input ends; its address, folder and keys are a line of JSON.

    Args:
        text: JSON: ``workers``, ``dashboard`` (an address, or None), and where given ``host`` and ``port``. Another
            host than a loopback one takes the certificates of Dask's configuration; on loopback, keys are created.
            ``publish``: other processes of this user are to find them, as long as this one runs.
        parent: the process to end with.
        reported: the end of the pipe to write that line to: the parent alone has the other one.
        begun: called with the cluster and what ``text`` says.
    """
    asked = json.loads(text)
    folder = temporary_folder(KIND)
    left = _Left(folder)
    threading.Thread(target=_end_with, args=(parent, left), daemon=True).start()
    warnings.simplefilter("ignore")
    os.environ["PYTHONWARNINGS"] = "ignore:resource_tracker"  # which unlinks what is left when this process is killed
    keys = new_keys() if asked.get("host", LOOPBACK) == LOOPBACK else None
    cluster = _cluster(asked, folder, keys)
    if begun is not None:
        begun(cluster, asked)
    else:
        threading.Thread(target=_restore, args=(cluster, asked["workers"]), daemon=True).start()
    if keys is not None and asked.get("publish"):
        left.key_file, left.keys = publish(cluster.scheduler_address, keys), keys
    facts = {"address": cluster.scheduler_address, "folder": folder, "keys": keys, "key_file": left.key_file}
    with open(reported, "w", encoding="utf-8") as pipe:
        pipe.write(json.dumps(facts) + "\n")
    sys.stdin.buffer.read()
    threading.Timer(_LAST, _end, (left,)).start()
    with contextlib.suppress(Exception):
        cluster.close(timeout=_LAST)
    _end(left)


def _cluster(asked: dict[str, Any], folder: str, keys: dict[str, str] | None) -> Any:
    import dask
    from distributed import LocalCluster
    from distributed.node import ServerNode
    from distributed.security import Security

    config, dashboard = dict(_CONFIG), asked["dashboard"]
    if dashboard:
        config = {name: value for name, value in config.items() if "http" not in name}
    else:
        ServerNode.start_http_server = _no_http  # type: ignore[method-assign]
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
        **({} if dashboard else {"worker_class": _quiet_worker()}),
    )


def _no_http(*_: Any, **__: Any) -> None:
    """No HTTP server: Dask's would answer anyone who connects, and has nothing to show without a dashboard."""


def _quiet_worker() -> Any:
    """A worker, in its own process, without an HTTP server."""
    from functools import partial

    from distributed import Nanny

    from cedar.cluster.dask.worker import QuietWorker

    return partial(Nanny, worker_class=QuietWorker)


def _restore(cluster: Any, workers: int) -> None:
    """A nanny whose worker dies before it has started gives up: start others for those that are missing."""
    while cluster.status.name == "running":
        time.sleep(_LOOK)
        if len(cluster.workers) < workers:
            cluster.scale(workers)


@dataclass
class _Left:
    """What this process is to leave nothing of: a folder, and the file that other processes find the keys in."""

    folder: str
    key_file: str | None = None
    keys: dict[str, str] | None = None


def _end_with(parent: int, left: _Left) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK)
    _end(left)


def _end(left: _Left) -> None:
    """At once, whatever hangs: the workers end with this process."""
    withdraw(left.key_file, left.keys)
    remove_tree(left.folder, KIND)
    os._exit(0)
