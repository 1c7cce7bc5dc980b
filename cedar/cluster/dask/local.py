"""LocalHost: a Dask cluster on this machine, started when first needed and kept until this process ends."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import subprocess
from typing import Any, BinaryIO

from cedar.cluster.dask.clients import close_client_at, end_clients
from cedar.cluster.dask.host import KIND
from cedar.cluster.dask.keys import forget, know
from cedar.cluster.dask.remote import LOCAL_CLUSTER_VARIABLE
from cedar.core.errors import WorkerError
from cedar.core.process import Lock
from cedar.executors.processes.forkserver import python_command, thread_limits
from cedar.store.files import remove_tree

_CODE = """\
from {module} import main
main({text!r}, {parent}, {reported})
"""
_PATIENCE = 180.0  # max seconds to start, since three processes import Dask, perhaps on a busy machine
_hosts: dict[int, LocalHost] = {}
_lock = Lock()


class LocalHost:
    """A process that runs a scheduler, and one process per worker. By default they listen only on loopback,
    and accept only clients that have this cluster's key.

    These processes are new interpreters that never import the user's ``__main__``. They end with this process.

    Args:
        asked: the host's settings, as JSON-able values.
        module: the module whose ``main`` the process runs.

    Raises:
        WorkerError: the process does not start.
    """

    def __init__(self, asked: dict[str, Any], module: str = "cedar.cluster.dask.host") -> None:
        import dask

        heard, reported = os.pipe()  # not stdout, to which user functions may print
        named = {"module": module, "text": json.dumps(asked), "parent": os.getpid(), "reported": reported}
        config = dask.config.serialize(dask.config.global_config)
        added = thread_limits() | {LOCAL_CLUSTER_VARIABLE: "1", "DASK_INTERNAL_INHERIT_CONFIG": config}
        with open(heard, "rb") as pipe:
            try:
                self._process: subprocess.Popen[bytes] = subprocess.Popen(  # noqa: S603 - Python itself
                    python_command(_CODE.format(**named)),
                    stdin=subprocess.PIPE,
                    env=os.environ | added,
                    pass_fds=[reported],
                    process_group=0,  # so that Ctrl-C does not reach the new process
                )
            finally:
                os.close(reported)
            line = _first_line(pipe)
        self.pid = self._process.pid
        self.reported: dict[str, Any] = {}
        try:
            self.reported = json.loads(line or b"")
        except ValueError as error:
            self.close()
            ended = f"it ended with exit code {self._process.returncode}"
            why = f"it did not start within {_PATIENCE:g} s" if line is None else ended
            raise WorkerError(
                f"the local Dask cluster could not be started: {why}",
                done="nothing was run",
                fix='check the lines above, if any, or use executor="processes"',
            ) from error
        self.address: str = self.reported["address"]
        self.keys: dict[str, str] | None = self.reported.pop("keys")
        if self.keys is not None:
            know(self.address, self.keys)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """End the cluster: the host process and its workers."""
        address = self.reported.get("address", "")
        close_client_at(address)
        forget(address)
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]
        try:
            self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        remove_tree(self.reported.get("folder", ""), KIND)  # needed only if the process was killed


def _first_line(pipe: BinaryIO) -> bytes | None:
    """Return the first line from the process; None if it takes too long."""
    return pipe.readline() if select.select([pipe], [], [], _PATIENCE)[0] else None


def local_address(workers: int) -> str:
    """Return the scheduler address of the local cluster with this many workers; start the cluster if necessary.

    Raises:
        WorkerError: the cluster does not start.
    """
    import dask

    with _lock:
        host = _hosts.get(workers)
        if host is None or not host.alive:
            if host is not None:
                host.close()
            host = _hosts[workers] = LocalHost(
                {"workers": workers, "dashboard": dask.config.get("cedar.dask.dashboard", None)}
            )
        return host.address


def is_local(address: str) -> bool:
    """Return whether the scheduler belongs to a local cluster that this process started."""
    return any(host.address == address for host in list(_hosts.values()))  # a copy, as other threads may change _hosts


def close_hosts() -> None:
    """End all local clusters. The next run starts new ones."""
    with _lock:
        hosts = list(_hosts.values())
        _hosts.clear()
    for host in hosts:
        host.close()


def _end() -> None:
    """Clean up at exit. Close clients before clusters, regardless of the order of imports."""
    end_clients()
    close_hosts()


def _after_fork() -> None:
    """In a forked child, ignore the clusters, which belong to the parent."""
    _parents.extend(_hosts.values())
    _hosts.clear()


_parents: list[LocalHost] = []  # the parent's objects, so that their finalizers do not run in a forked child
atexit.register(_end)
os.register_at_fork(after_in_child=_after_fork)
