"""ForkServer: a process of ours that forks workers, seen from here. There is one, started again where what workers
inherit has changed.

So a worker starts in milliseconds, and workers share the memory of what is imported.
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
from cedar.executors.worker.arena import forking
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
_LIMITS = dict.fromkeys(_VARIABLES, "1") | {"TOKENIZERS_PARALLELISM": "false"}
_PATIENCE = 60.0  # seconds for the server to start, and to fork a worker
_LAST = 5.0  # seconds for it to end
_MOMENT = 0.01  # seconds that a thread listens before others may


def thread_limits() -> dict[str, str]:
    """Of a worker's environment. polars' pool is as here: its number cannot be changed later, and shows in sums."""
    return _LIMITS | {"POLARS_MAX_THREADS": str(NumericEnvironment.of_caller().polars)}


def _inherited() -> dict[str, Any]:
    """What workers get from this process, as it is now."""
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
    """One such process.

    Args:
        inherited: what its workers get from this process.

    Raises:
        OSError: it does not start.
    """

    def __init__(self, inherited: dict[str, Any]) -> None:
        self.inherited = inherited
        self._lock = threading.Lock()
        self._answers: deque[tuple[int, int]] = deque()
        self._workers: set[int] = set()
        self._ended: dict[int, int] = {}  # exit codes of workers
        self._retired = self._gone = False
        with forking:  # a fork right now would keep the server's end open
            self._control, theirs = socket.socketpair()
            with theirs:
                code = _CODE.format(path=list(inherited["path"]), home=_HOME, end=theirs.fileno(), parent=os.getpid())
                try:
                    self._process = subprocess.Popen(  # noqa: S603 - Python itself
                        [inherited["executable"], "-P", "-c", code],
                        stdin=subprocess.DEVNULL,
                        pass_fds=[theirs.fileno()],
                        env=inherited["environment"],
                        process_group=0,  # a Ctrl-C that comes before the server ignores it does not reach it
                    )
                except OSError:
                    self._control.close()
                    raise
        try:
            self._answer()
        except OSError:
            self.close()
            raise

    def fork(self, end: int, level: int) -> Forked:
        """A worker.

        Args:
            end: the descriptor of its end of the wire.
            level: the least level of log lines that it passes on.

        Raises:
            OSError: no process can be started.
        """
        streams = [number for number in (1, 2) if _is_open(number)]
        with self._lock:
            socket.send_fds(self._control, [REQUEST.pack(level, 1 in streams, 2 in streams)], [end, *streams])
            what, number = self._answer()
            if what == FAILED:
                raise OSError(number, os.strerror(number))
            self._workers.add(number)
            self._ended.pop(number, None)  # of an earlier worker, whose number it has
        return Forked(number, self)

    def _answer(self) -> tuple[int, int]:
        """What the server says, but for news of workers that ended.

        Raises:
            OSError: it says nothing.
        """
        deadline = time.monotonic() + _PATIENCE
        while not self._answers:
            if self._hear(max(deadline - time.monotonic(), 0.0)):
                continue
            if self._gone:
                raise OSError(self._ending())
            self._process.kill()  # a late answer would be taken for that of the next request
            self._gone = True
            raise OSError(f"the process that forks workers did not answer within {_PATIENCE:g} s")
        return self._answers.popleft()

    def _ending(self) -> str:
        try:
            return ending(self._process.wait(_LAST), None)
        except subprocess.TimeoutExpired:
            return "the process that forks workers does not answer any more"

    def _hear(self, seconds: float) -> bool:
        """One thing that the server says, if it does in time."""
        said = b""
        with suppress(OSError, ValueError):  # closed
            poll = select.poll()
            poll.register(self._control, select.POLLIN)
            if not poll.poll(1000 * seconds):
                return False
            said = self._control.recv(REPLY.size, socket.MSG_WAITALL)
        if len(said) < REPLY.size:
            self._gone = True
            return False
        what, number, status = REPLY.unpack(said)
        if what == ENDED:
            self._ended[number] = status
        else:
            self._answers.append((what, number))
        return True

    def code_of(self, pid: int, seconds: float) -> int | None:
        """The exit code of a worker, or the signal below 0; None if it lives on for so long."""
        deadline = time.monotonic() + seconds
        while True:
            left = deadline - time.monotonic()
            with self._lock:  # only for a moment: another thread may ask for a worker
                while pid not in self._ended and self._hear(min(max(left, 0.0), _MOMENT)):
                    pass
                if pid in self._ended or self._gone:
                    return self._ended.get(pid, -signal.SIGKILL)  # those of a server that is gone went with it
            if left <= 0:
                return None

    @property
    def alive(self) -> bool:
        return not self._gone and self._process.poll() is None

    def retire(self) -> None:
        """Another one takes its place: it goes with the last of its workers."""
        self._retired = True
        self.forget(0)

    def forget(self, pid: int) -> None:
        """Nothing asks for this worker any more."""
        with self._lock:
            self._workers.discard(pid)
            self._ended.pop(pid, None)
            over = self._retired and not self._workers
        if over:
            self.close()

    def close(self) -> None:
        """End it, and all that it forked."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)  # who listens stops to
        with self._lock:
            self._gone = True
            self._control.close()
        try:
            self._process.wait(_LAST)  # it exits by itself when its socket closes
        except subprocess.TimeoutExpired:
            self._process.kill()

    def abandon(self) -> None:
        """In a process that was forked from the one whose server this is."""
        self._control.close()


class Forked:
    """A worker, as a ``subprocess.Popen`` of it would be."""

    def __init__(self, pid: int, server: ForkServer) -> None:
        self.pid = pid
        self._server = server
        self._code: int | None = None

    def poll(self) -> int | None:
        """Its exit code, or the signal below 0; None while it lives."""
        if self._code is None:
            self._code = self._server.code_of(self.pid, 0.0)
            if self._code is not None:
                self._server.forget(self.pid)
        return self._code

    def wait(self, seconds: float) -> int:
        """The same, once it has ended.

        Raises:
            TimeoutError: it lives on for so long.
        """
        if self._code is None:
            self._server.code_of(self.pid, seconds)
        code = self.poll()
        if code is None:
            raise TimeoutError
        return code

    def kill(self) -> None:
        """End it now, whatever it does."""
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
    """The one that forks workers as this process is now; another one is started if there is none.

    Raises:
        OSError: it does not start.
    """
    global _server  # noqa: PLW0603 - there is one in a process
    with _lock:
        inherited = _inherited()
        if _server is None or not _server.alive or _server.inherited != inherited:
            if _server is not None:
                _server.retire()
            _server = None
            _server = ForkServer(inherited)
        return _server


def close() -> None:
    """End the server, and with it all workers."""
    global _server
    with _lock:
        ended, _server = _server, None
    if ended is not None:
        ended.close()


def _after_fork() -> None:
    global _server  # noqa: PLW0603 - there is one in a process
    if _server is not None:
        _server.abandon()
        _parents.append(_server)
    _server = None


_parents: list[ForkServer] = []  # kept, so that nothing of them is collected here as if it were ours
os.register_at_fork(after_in_child=_after_fork)
