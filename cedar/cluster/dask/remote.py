"""What runs in the workers of a Dask cluster: one task, from a parcel to a parcel.

A parcel holds pickled bytes, so that neither the scheduler nor Dask itself ever unpickles what belongs to the user.
"""

from __future__ import annotations

import io
import os
import pickle
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa

import cedar
from cedar.core.errors import CedarError, WorkerError, portable
from cedar.executors.worker.main import TaskFailed, unsendable
from cedar.executors.worker.wire import decode, encode
from cedar.tasks.code import Code

_MOST_CODE = 32  # pieces that a worker keeps
OURS = "CEDAR_LOCAL_CLUSTER"  # set in the environment of the workers of a cluster that this library made


@dataclass(frozen=True)
class Parcel:
    """A message: its pickle, and its large buffers, which Dask sends without a copy."""

    parts: tuple[Any, ...]

    @staticmethod
    def of(message: Any) -> Parcel:
        # of Arrow: Python 3.11 crashes where views of memoryviews are garbage, as of a connection that broke
        return Parcel(tuple(map(pa.py_buffer, encode(message))))

    def open(self) -> Any:
        return decode(self.parts)

    @property
    def nbytes(self) -> int:
        return sum(memoryview(part).nbytes for part in self.parts)

    def __sizeof__(self) -> int:
        """What Dask's accounts of memory see."""
        return object.__sizeof__(self) + self.nbytes

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        if protocol < 5:
            return Parcel, (tuple(bytes(part) for part in self.parts),)
        return _parcel, tuple(pickle.PickleBuffer(part) for part in self.parts)


def _parcel(*parts: Any) -> Parcel:
    return Parcel(parts)


@dataclass(frozen=True)
class Slot:
    """Stands for code among the arguments of a call: the worker has it by its key."""

    key: str
    path: tuple[str, ...]


@dataclass(frozen=True)
class RemoteCall:
    """A function and its arguments.

    Args:
        folder: that the caller is in, where the workers are on the same machine; else None.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    folder: str | None


@dataclass(frozen=True)
class Done:
    """A call returned; ``seconds`` of a worker went into it."""

    value: Any
    seconds: float


@dataclass(frozen=True)
class Wanted:
    """The code of that key is not in this worker: it is to be sent, and the call is retried."""

    key: str
    worker: str


@cache
def stamp() -> str:
    """What has to be equal at both ends for results to be equal, as text that any version can read."""
    return f"cedar {cedar.__version__}, Python {'.'.join(platform.python_version_tuple()[:2])}"


def keep(key: str, pickled: bytes) -> None:
    """Code, for calls to come. Dask's own replicas would be thinned out to one, and fetched repeatedly."""
    while len(_code) >= _MOST_CODE:
        _code.pop(next(iter(_code)), None)
    _code[key] = pickled


_code: dict[str, bytes] = {}


def run(theirs: str, call: Parcel, *before: Any) -> Parcel:
    """Make a call.

    Args:
        theirs: the caller's ``stamp()``.
        call: holds a ``RemoteCall``.
        before: arguments that come before its own.
    """
    _begin()
    start = time.perf_counter()
    if theirs != stamp():
        return Parcel.of(TaskFailed(_other_versions(theirs)))
    answer: Done | TaskFailed
    try:
        asked: RemoteCall = call.open()
        code = {a.key: _code.get(a.key) for a in asked.args if isinstance(a, Slot)}  # what else comes may push it out
        missing = next((key for key, pickled in code.items() if pickled is None), None)
        if missing is not None:
            return Parcel.of(Wanted(missing, _address()))
        if asked.folder is not None and asked.folder != os.getcwd():
            os.chdir(asked.folder)  # relative paths mean the same as in the caller
        args = tuple(Code(a.key, code[a.key], a.path) if isinstance(a, Slot) else a for a in asked.args)
        answer = Done(asked.fn(*before, *args, **asked.kwargs), 0.0)
    except BaseException as error:  # noqa: BLE001 - the caller gets whatever was raised
        answer = TaskFailed(error if isinstance(error, CedarError) else portable(error))
    return _sealed(answer, time.perf_counter() - start)


def _address() -> str:
    from distributed import get_worker

    return str(get_worker().address)


def _sealed(answer: Done | TaskFailed, seconds: float) -> Parcel:
    try:
        return Parcel.of(Done(answer.value, seconds) if isinstance(answer, Done) else answer)
    except Exception as error:  # noqa: BLE001 - an object may raise anything when it is pickled
        if isinstance(answer, TaskFailed):
            return Parcel.of(TaskFailed(WorkerError(f"a task failed: {type(answer.error).__name__}: {answer.error}")))
        return Parcel.of(TaskFailed(unsendable(answer.value, "what a task made", error)))


def _other_versions(theirs: str) -> WorkerError:
    return WorkerError(
        f"a worker of the Dask cluster has {stamp()}, and the client {theirs}",
        done="nothing was run there",
        fix="install the same versions everywhere, then start the worker again",
    )


@cache
def _begin() -> None:
    """Once in each worker process."""
    import pyarrow as pa

    pa.set_cpu_count(1)  # a worker has as many tasks at once as it has threads: more would be too many
    if OURS in os.environ and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # it is that of the trainer, and this process may be killed
    if OURS in os.environ and sys.platform == "linux":
        import ctypes
        import signal

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with the process that started it
