"""Client of the fork server, which forks workers. Each process has one, restarted when inherited settings change.

A forked worker starts in milliseconds and shares the memory of imported modules with the other workers.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from multiprocessing import spawn
from typing import Any

import cedar
from cedar.core import forks
from cedar.core.numeric import NumericEnvironment
from cedar.executors.processes.memory import ending
from cedar.executors.worker.arena import fork_lock
from cedar.executors.worker.server import ENDED, FAILED, REPLY, REQUEST

_HOME = os.path.dirname(os.path.dirname(os.path.abspath(cedar.__file__)))
_CODE = """\
import sys
sys.path[:] = {path!r}
sys.path.append({home!r})
from cedar.executors.worker.server import serve
serve({end}, {parent})
"""
_VARIABLES = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS", "OPENCV_FOR_THREADS_NUM",
)  # fmt: skip
_THREAD_LIMITS = dict.fromkeys(_VARIABLES, "1") | {"TOKENIZERS_PARALLELISM": "false"}
_START_SECONDS = 60.0  # maximum seconds for the server to start, or to fork a worker
_END_SECONDS = 5.0  # maximum seconds for the server to end
_LISTEN_SECONDS = 0.01  # seconds for which a thread listens before it lets other threads use the socket


def thread_limits() -> dict[str, str]:
    """Return the environment variables that limit threads in a worker.

    polars uses as many threads as in this process, because it cannot change the number later, and sums depend on it.
    """
    return _THREAD_LIMITS | {"POLARS_MAX_THREADS": str(NumericEnvironment.of_caller().polars)}


def _inherited() -> dict[str, Any]:
    """Return the current settings of this process that workers inherit."""
    limits = {name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
    return {
        "executable": os.fsdecode(spawn.get_executable()),
        "path": tuple(sys.path),
        "environment": thread_limits() | os.environ,
        "limits": {name: resource.getrlimit(number) for name, number in limits.items()},
        "cores": os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None,
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
        "user": (os.geteuid(), os.getegid()),
    }


class ForkServer:
    """A running fork server process.

    Args:
        inherited: settings of this process that the workers inherit.

    Raises:
        OSError: the server does not start.
    """

    def __init__(self, inherited: dict[str, Any]) -> None:
        self.inherited = inherited
        self._lock = threading.Lock()
        self._replies: deque[tuple[int, int]] = deque()
        self._workers: set[int] = set()
        self._ended: dict[int, int] = {}  # exit codes of ended workers, by pid
        self._retired = self._lost = False
        with fork_lock:  # a child that is forked here would keep the server's end open
            self._control, peer = socket.socketpair()
            with peer:
                code = _CODE.format(path=list(inherited["path"]), home=_HOME, end=peer.fileno(), parent=os.getpid())
                try:
                    self._process = subprocess.Popen(  # noqa: S603 - Python itself
                        [inherited["executable"], "-P", "-c", code],
                        stdin=subprocess.DEVNULL,
                        pass_fds=[peer.fileno()],
                        env=inherited["environment"],
                        process_group=0,  # in its own process group, it receives no Ctrl-C before it ignores SIGINT
                    )
                except OSError:
                    self._control.close()
                    raise
        try:
            self._next_reply()
        except OSError:
            self.close()
            raise

    def fork(self, end: int, level: int) -> ForkedWorker:
        """Fork a worker.

        Args:
            end: the file descriptor of the worker's end of the wire.
            level: the lowest level of log records that the worker sends.

        Raises:
            OSError: no process could be started.
        """
        streams = [number for number in (1, 2) if _is_open(number)]
        with self._lock:
            socket.send_fds(self._control, [REQUEST.pack(level, 1 in streams, 2 in streams)], [end, *streams])
            what, number = self._next_reply()
            if what == FAILED:
                raise OSError(number, os.strerror(number))
            self._workers.add(number)
            self._ended.pop(number, None)  # an earlier worker may have had the same pid
        return ForkedWorker(number, self)

    def _next_reply(self) -> tuple[int, int]:
        """Return the server's next reply to a request. Also record workers whose end the server reports.

        Raises:
            OSError: the server does not answer in time.
        """
        deadline = time.monotonic() + _START_SECONDS
        while not self._replies:
            if self._receive_message(max(deadline - time.monotonic(), 0.0)):
                continue
            if self._lost:
                raise OSError(self._describe_ending())
            self._process.kill()  # otherwise a late reply would be mistaken for the reply to the next request
            self._lost = True
            raise OSError(f"the process that forks workers did not answer within {_START_SECONDS:g} s")
        return self._replies.popleft()

    def _describe_ending(self) -> str:
        try:
            return ending(self._process.wait(_END_SECONDS), None)
        except subprocess.TimeoutExpired:
            return "the process that forks workers no longer answers"

    def _receive_message(self, seconds: float) -> bool:
        """Receive one message from the server; return False if none arrived within ``seconds``."""
        data = b""
        with suppress(OSError, ValueError):  # the socket was closed
            poll = select.poll()
            poll.register(self._control, select.POLLIN)
            if not poll.poll(1000 * seconds):
                return False
            data = self._control.recv(REPLY.size, socket.MSG_WAITALL)
        if len(data) < REPLY.size:
            self._lost = True
            return False
        what, number, status = REPLY.unpack(data)
        if what == ENDED:
            self._ended[number] = status
        else:
            self._replies.append((what, number))
        return True

    def exit_code_of(self, pid: int, seconds: float) -> int | None:
        """Return a worker's exit code, or the negative signal number; None if it is still alive after ``seconds``."""
        deadline = time.monotonic() + seconds
        while True:
            remaining = deadline - time.monotonic()
            with self._lock:  # release it soon, since another thread may request a worker
                while pid not in self._ended and self._receive_message(min(max(remaining, 0.0), _LISTEN_SECONDS)):
                    pass
                if pid in self._ended or self._lost:
                    return self._ended.get(pid, -signal.SIGKILL)  # if the server is lost, its workers were killed
            if remaining <= 0:
                return None

    @property
    def alive(self) -> bool:
        return not self._lost and self._process.poll() is None

    def retire(self) -> None:
        """Called when a new server replaces this one: close this server once its last worker has ended."""
        self._retired = True
        self.forget(0)

    def forget(self, pid: int) -> None:
        """Forget an ended worker. If it was the last worker of a retired server, close the server."""
        with self._lock:
            self._workers.discard(pid)
            self._ended.pop(pid, None)
            finished = self._retired and not self._workers
        if finished:
            self.close()

    def close(self) -> None:
        """End the server and all workers that it forked."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)  # wakes up a thread that is waiting for a message
        with self._lock:
            self._lost = True
            self._control.close()
        try:
            self._process.wait(_END_SECONDS)  # the server exits when its socket closes
        except subprocess.TimeoutExpired:
            self._process.kill()

    def abandon(self) -> None:
        """In a forked child of the process that started the server, close the copied socket."""
        self._control.close()


class ForkedWorker:
    """A forked worker, with methods like those of ``subprocess.Popen``."""

    def __init__(self, pid: int, server: ForkServer) -> None:
        self.pid = pid
        self._server = server
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or the negative signal number; None while the worker is alive."""
        if self._code is None:
            self._code = self._server.exit_code_of(self.pid, 0.0)
            if self._code is not None:
                self._server.forget(self.pid)
        return self._code

    def wait(self, seconds: float) -> int:
        """Wait for the worker to end, and return what ``poll`` returns.

        Raises:
            TimeoutError: the worker is still alive after ``seconds``.
        """
        if self._code is None:
            self._server.exit_code_of(self.pid, seconds)
        code = self.poll()
        if code is None:
            raise TimeoutError
        return code

    def kill(self) -> None:
        """Kill the worker immediately."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


# ---- the server of this process --------------------------------------------------------------------------------------

_server: ForkServer | None = None
_lock = forks.Lock()


def server() -> ForkServer:
    """Return the fork server for this process's current settings; start one if necessary.

    Raises:
        OSError: the server does not start.
    """
    global _server  # noqa: PLW0603 - one per process
    with _lock:
        inherited = _inherited()
        if _server is None or not _server.alive or _server.inherited != inherited:
            if _server is not None:
                _server.retire()
            _server = None
            _server = ForkServer(inherited)
        return _server


def close() -> None:
    """End the server and all its workers."""
    global _server
    with _lock:
        ended, _server = _server, None
    if ended is not None:
        ended.close()


def _after_fork() -> None:
    global _server  # noqa: PLW0603 - one per process
    if _server is not None:
        _server.abandon()
        _parents.append(_server)
    _server = None


_parents: list[ForkServer] = []  # references to the parent's objects, so that their finalizers do not run in this child
os.register_at_fork(after_in_child=_after_fork)
