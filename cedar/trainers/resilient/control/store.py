"""The store of a run, in a process of its own: it outlives workers, and ends with the one who started it."""

from __future__ import annotations

import datetime as dt
import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection
from typing import Any

from cedar.errors import CedarError

_LOOK = 0.2
_START = 60.0  # seconds


def start(host: str, port: int) -> tuple[Any, int]:
    """The process, and the port where the store listens.

    Args:
        host: an address of this machine.
        port: 0 for any.

    Raises:
        CedarError: the port is taken, or the host is not this one.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(host, port, theirs, os.getpid()), name="store")
    process.start()
    theirs.close()
    try:
        answer = ours.recv() if ours.poll(_START) else f"it did not begin within {_START:g} s"
    except EOFError:
        answer = "it ended at once"
    if isinstance(answer, str):
        process.kill()
        process.join()
        raise CedarError(f"no store can listen at {host}:{port}: {answer}", fix="give another HOST:PORT to --listen")
    return process, int(answer)


def _serve(host: str, port: int, told: Connection, parent: int) -> None:
    from torch._C._distributed_c10d import TCPStore

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        store = TCPStore(host, port, is_master=True, wait_for_workers=False)
        told.send(store.port)
    except RuntimeError as error:
        told.send(str(error).splitlines()[0])
        return
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os._exit(0)


def connect(host: str, port: int, seconds: float = 60.0) -> Any:
    """A client.

    Raises:
        CedarError: nobody listens there.
    """
    from torch._C._distributed_c10d import TCPStore

    try:
        return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=dt.timedelta(seconds=seconds))
    except RuntimeError as error:
        raise CedarError(
            f"no run can be reached at {host}:{port}: {str(error).splitlines()[0]}",
            fix="give the address that the first supervisor printed",
        ) from error
