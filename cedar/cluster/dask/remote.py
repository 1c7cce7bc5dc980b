"""The code that runs in the workers of a Dask cluster. A task gets a parcel and returns a parcel.

A parcel has pickled bytes, so that neither the scheduler nor Dask itself ever unpickles user objects.
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
from cedar.executors.worker.main import TaskFailed, unsendable_error
from cedar.executors.worker.wire import decode, encode
from cedar.tasks.code import Code

_MAX_CODE = 32  # max number of functions and programs whose code a worker caches
LOCAL_CLUSTER_VARIABLE = "CEDAR_LOCAL_CLUSTER"  # environment variable that cedar sets for workers of its own clusters


@dataclass(frozen=True)
class Parcel:
    """A pickled message and its large buffers, which Dask sends without copying."""

    parts: tuple[Any, ...]

    @staticmethod
    def of(message: Any) -> Parcel:
        # Use Arrow buffers: Python 3.11 may crash when it frees views of memoryviews, as after a broken connection.
        return Parcel(tuple(map(pa.py_buffer, encode(message))))

    def open(self) -> Any:
        return decode(self.parts)

    @property
    def nbytes(self) -> int:
        return sum(memoryview(part).nbytes for part in self.parts)

    def __sizeof__(self) -> int:
        """The size in bytes that Dask uses to track memory."""
        return object.__sizeof__(self) + self.nbytes

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        if protocol < 5:
            return Parcel, (tuple(bytes(part) for part in self.parts),)
        return _parcel, tuple(pickle.PickleBuffer(part) for part in self.parts)


def _parcel(*parts: Any) -> Parcel:
    return Parcel(parts)


@dataclass(frozen=True)
class CodeRef:
    """A placeholder for code in the arguments of a call; the worker looks up the code by its key."""

    key: str
    path: tuple[str, ...]


@dataclass(frozen=True)
class RemoteCall:
    """A function and its arguments.

    Args:
        folder: the caller's working directory if the workers are on the caller's machine; otherwise None.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    folder: str | None


@dataclass(frozen=True)
class Done:
    """The result of a call, and the seconds that it took in the worker."""

    value: Any
    seconds: float


@dataclass(frozen=True)
class MissingCode:
    """The worker does not have the code with this key: the client must send it and retry the call."""

    key: str
    worker: str


@cache
def stamp() -> str:
    """Return the versions that must be equal in client and worker, in a format that any version can compare."""
    return f"cedar {cedar.__version__}, Python {'.'.join(platform.python_version_tuple()[:2])}"


def keep(key: str, pickled: bytes) -> None:
    """Store code for later calls. As a Dask result it would be dropped on most workers, and fetched repeatedly."""
    while len(_code) >= _MAX_CODE:
        _code.pop(next(iter(_code)), None)
    _code[key] = pickled


_code: dict[str, bytes] = {}


def run(theirs: str, call: Parcel, *before: Any) -> Parcel:
    """Run a call and return the answer.

    Args:
        theirs: the result of ``stamp()`` in the caller.
        call: the parcel of a ``RemoteCall``.
        before: arguments to insert before those in the call.
    """
    _set_up_worker()
    start = time.perf_counter()
    if theirs != stamp():
        return Parcel.of(TaskFailed(_other_versions(theirs)))
    answer: Done | TaskFailed
    try:
        asked: RemoteCall = call.open()
        code = {a.key: _code.get(a.key) for a in asked.args if isinstance(a, CodeRef)}  # before new code evicts it
        missing = next((key for key, pickled in code.items() if pickled is None), None)
        if missing is not None:
            return Parcel.of(MissingCode(missing, _address()))
        if asked.folder is not None and asked.folder != os.getcwd():
            os.chdir(asked.folder)  # so that relative paths refer to the same files as in the caller
        args = tuple(Code(a.key, code[a.key], a.path) if isinstance(a, CodeRef) else a for a in asked.args)
        answer = Done(asked.fn(*before, *args, **asked.kwargs), time.perf_counter() - start)
    except BaseException as error:  # noqa: BLE001 - any error is sent to the caller
        answer = TaskFailed(error if isinstance(error, CedarError) else portable(error))
    return _pack_answer(answer)


def _address() -> str:
    from distributed import get_worker

    return str(get_worker().address)


def _pack_answer(answer: Done | TaskFailed) -> Parcel:
    try:
        return Parcel.of(answer)
    except Exception as error:  # noqa: BLE001 - pickling an object may raise anything
        if isinstance(answer, TaskFailed):
            return Parcel.of(TaskFailed(WorkerError(f"a task failed: {type(answer.error).__name__}: {answer.error}")))
        return Parcel.of(TaskFailed(unsendable_error(answer.value, "the result of a task", error)))


def _other_versions(theirs: str) -> WorkerError:
    return WorkerError(
        f"a worker of the Dask cluster has {stamp()}, but the client has {theirs}",
        done="nothing was run there",
        fix="install the same versions everywhere, then start the worker again",
    )


@cache
def _set_up_worker() -> None:
    """Set up the worker process; runs once."""
    import pyarrow as pa

    pa.set_cpu_count(1)  # a worker already runs one task per thread
    if LOCAL_CLUSTER_VARIABLE in os.environ and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # so that complete lines are not lost if this process is killed
    if LOCAL_CLUSTER_VARIABLE in os.environ and sys.platform == "linux":
        import ctypes
        import signal

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: this process is killed when its parent ends
