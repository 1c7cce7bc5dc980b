"""LocalHost: a Dask cluster on this machine, made on the spot and kept warm until this process ends."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import subprocess
import sys
import threading
from multiprocessing import spawn
from typing import Any, BinaryIO

import cedar
from cedar.cluster.dask.clients import close_client_at, end_clients
from cedar.cluster.dask.host import KIND
from cedar.cluster.dask.keys import forget, know
from cedar.cluster.dask.remote import OURS
from cedar.core.errors import WorkerError
from cedar.executors.processes.forkserver import thread_limits
from cedar.store.ownership import remove_tree

_HOME = os.path.dirname(os.path.dirname(os.path.abspath(cedar.__file__)))
_CODE = """\
import sys
sys.path[:] = {path!r}
sys.path.append({home!r})
from {module} import main
main({text!r}, {parent}, {reported})
"""
_PATIENCE = 180.0  # seconds for it to start: it imports Dask three times, on a machine that may be busy
_hosts: dict[int, LocalHost] = {}
_lock = threading.Lock()


class LocalHost:
    """A process that holds a scheduler, and one process for each worker; all of them listen on loopback alone,
    and answer those alone who hold the key made for this cluster.

    They are fresh interpreters that never see the user's ``__main__``, and end with this process.

    Args:
        asked: the host's settings, plain JSON.
        module: whose ``main`` runs in it.

    Raises:
        WorkerError: it does not start.
    """

    def __init__(self, asked: dict[str, Any], module: str = "cedar.cluster.dask.host") -> None:
        import dask

        heard, reported = os.pipe()  # of its own: what user functions print goes where this process prints
        named = {"module": module, "text": json.dumps(asked), "parent": os.getpid(), "reported": reported}
        config = dask.config.serialize(dask.config.global_config)
        added = thread_limits() | {OURS: "1", "DASK_INTERNAL_INHERIT_CONFIG": config}
        with open(heard, "rb") as pipe:
            try:
                self._process: subprocess.Popen[bytes] = subprocess.Popen(  # noqa: S603 - Python itself
                    [os.fsdecode(spawn.get_executable()), "-P", "-c", _CODE.format(path=sys.path, home=_HOME, **named)],
                    stdin=subprocess.PIPE,
                    env=os.environ | added,
                    pass_fds=[reported],
                    process_group=0,  # a Ctrl-C is for us
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
                f"no Dask cluster can be started on this machine: {why}",
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
        """End it and its workers."""
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
        remove_tree(self.reported.get("folder", ""), KIND)  # it does that itself, unless it was killed


def _first_line(pipe: BinaryIO) -> bytes | None:
    """None if it takes too long."""
    return pipe.readline() if select.select([pipe], [], [], _PATIENCE)[0] else None


def local_address(workers: int) -> str:
    """The scheduler of a warm cluster of so many workers on this machine; started if there is none.

    Raises:
        WorkerError: it does not start.
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
    """Whether the workers of a scheduler are ours, on this machine."""
    return any(host.address == address for host in list(_hosts.values()))  # another thread may start one


def close_hosts() -> None:
    """End all; the next run starts others."""
    with _lock:
        hosts = list(_hosts.values())
        _hosts.clear()
    for host in hosts:
        host.close()


def _end() -> None:
    """As Python ends: clients first, whichever module was imported first."""
    end_clients()
    close_hosts()


def _after_fork() -> None:
    """They belong to the parent."""
    global _lock  # noqa: PLW0603 - another thread may have held it
    _lock = threading.Lock()
    _parents.extend(_hosts.values())
    _hosts.clear()


_parents: list[LocalHost] = []  # kept, so that nothing of them is collected here as if it were ours
atexit.register(_end)
os.register_at_fork(after_in_child=_after_fork)
