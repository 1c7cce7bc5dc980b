"""Distinguish errors that mean that a worker was lost from errors that the task itself raised."""

from __future__ import annotations

import threading
from concurrent.futures import BrokenExecutor, CancelledError
from concurrent.futures import thread as pools

# Names of the errors by which dask.distributed reports a lost worker; names avoid importing dask in this module.
_LOST = frozenset({"KilledWorker", "FutureCancelledError", "FuturesCancelledError", "CommClosedError"})


def is_lost(error: BaseException) -> bool:
    """Return whether an error means that a worker was lost, for any executor.

    Examples:
        >>> from concurrent.futures.process import BrokenProcessPool
        >>> is_lost(BrokenProcessPool("a process died")), is_lost(ValueError("the function's own"))
        (True, False)
    """
    if isinstance(error, (BrokenExecutor, CancelledError)):
        return True
    return any(kind.__name__ in _LOST and kind.__module__.startswith("distributed") for kind in type(error).__mro__)


def block_daemon_at_exit() -> None:
    """Block a daemon thread while the interpreter shuts down, so that it ends without a traceback."""
    ends = pools._shutdown or not threading.main_thread().is_alive()  # ``_shutdown`` is set slightly earlier
    if threading.current_thread().daemon and ends:
        threading.Event().wait()
