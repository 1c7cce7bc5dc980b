"""Trouble: what a function may do to the process that runs it, for tests of how a pipeline bears it."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from typing import Literal, NoReturn

from cedar.core.errors import PipelineError, user_site

How = Literal["segfault", "exit", "kill", "memory"]


def crash(how: How = "segfault") -> NoReturn:
    """End this process, as a function of a pipeline may: only for one that runs in a worker.

    Args:
        how: "segfault" reads address 0; "exit" calls ``os._exit(3)``; "kill" is SIGKILL; "memory" takes what memory a
            limit of its own leaves, and is killed, as the kernel does it.

    Raises:
        PipelineError: there is no such way.

    Example:
        >>> import cedar, cedar.testing
        >>> def decode(x: int) -> int:
        ...     return cedar.testing.crash("exit") if x == 7 else x
        >>> some = cedar.from_items([{"x": i} for i in range(10)]).map(decode, "x", on_error=cedar.Skip())
        >>> with some.batch(10).loader(executor="processes", workers=1, plan="off") as loader:
        ...     print([batch["x"].tolist() for batch in loader])
        [[0, 1, 2, 3, 4, 5, 6, 8, 9]]
    """
    if how == "segfault":
        ctypes.string_at(0)
    elif how == "exit":
        os._exit(3)
    elif how == "memory":
        _take_all_memory()
    elif how != "kill":
        raise PipelineError(
            f"crash({how!r}): there is no such way", site=user_site(), fix="segfault, exit, kill or memory"
        )
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a process does not live on")


def hang(how: Literal["sleep", "spin", "lock"] = "sleep") -> NoReturn:
    """Never return: asleep, in a loop of Python, or in C with the lock of the interpreter held.

    Raises:
        PipelineError: there is no such way.
    """
    if how == "lock":
        ctypes.PyDLL(None).pause()  # a PyDLL call keeps the lock
    if how not in ("sleep", "spin", "lock"):
        raise PipelineError(f"hang({how!r}): there is no such way", site=user_site(), fix="sleep, spin or lock")
    while True:
        if how == "sleep":
            time.sleep(1000)


def _take_all_memory() -> None:
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), most))
    held = []
    try:
        while True:
            held.append(bytearray(8 << 20))
    except MemoryError:
        return
