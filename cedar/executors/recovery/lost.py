"""Lost: which failures of a future say that its process is gone, and not that the task itself failed."""

from __future__ import annotations

import threading
from concurrent.futures import BrokenExecutor, CancelledError
from concurrent.futures import thread as pools

# dask.distributed's, by name: nothing here imports it. What a worker that was lost leaves is one of these.
_LOST = frozenset({"KilledWorker", "FutureCancelledError", "FuturesCancelledError", "CommClosedError"})


def is_lost(error: BaseException) -> bool:
    """True for the death of a worker, whatever the executor calls it.

    Examples:
        >>> from concurrent.futures.process import BrokenProcessPool
        >>> is_lost(BrokenProcessPool("a process died")), is_lost(ValueError("the function's own"))
        (True, False)
    """
    if isinstance(error, (BrokenExecutor, CancelledError)):
        return True
    return any(kind.__name__ in _LOST and kind.__module__.startswith("distributed") for kind in type(error).__mro__)


def rest_at_exit() -> None:
    """A daemon thread that iterates while the program ends does so with it, without its own traceback."""
    ends = pools._shutdown or not threading.main_thread().is_alive()  # pools take nothing more a moment before
    if threading.current_thread().daemon and ends:
        threading.Event().wait()
