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
from cedar.core.numeric import NumericEnvironment
from cedar.core.process import Lock, group_files
from cedar.executors.worker.arena import fork_lock
from cedar.executors.worker.server import ENDED, FAILED, REPLY, REQUEST

_HOME = os.path.dirname(os.path.dirname(os.path.abspath(cedar.__file__)))
_CODE = """\
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


def python_command(code: str) -> list[str]:
    """Return the command that runs code in a new interpreter with the options and ``sys.path`` of this one."""
    path = [each for each in sys.path if isinstance(each, str)]  # as Python, ignore other entries
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined] # such as -O
    setup = f"import sys\nsys.path[:] = {[*path, _HOME]!r}\n"
    return [os.fsdecode(spawn.get_executable()), *flags, "-P", "-c", setup + code]


def _inherited() -> dict[str, Any]:
    """Return the current settings of this process that workers inherit."""
    limits = {name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
    return {
        "command": python_command(""),
        "environment": thread_limits() | os.environ,
        "limits": {name: resource.getrlimit(number) for name, number in limits.items()},
        "cores": os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None,
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
        "user": (os.geteuid(), os.getegid()),
    }


class ForkServer:
    """A running fork server process.

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
                *options, setup = inherited["command"]
                code = setup + _CODE.format(end=peer.fileno(), parent=os.getpid())
                try:
                    self._process = subprocess.Popen(  # noqa: S603 - Python itself
                        [*options, code],
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

    def fork(self, end: int, level: int) -> int:
        """Fork a worker, and return its process id.

        Args:
            end: the file descriptor of the worker's end of the wire.
            level: the lowest level of log records that the worker sends.
        """
        streams = []
        for number in (1, 2):
            with suppress(OSError):
                os.fstat(number)
                streams.append(number)
        with self._lock:
            socket.send_fds(self._control, [REQUEST.pack(level, 1 in streams, 2 in streams)], [end, *streams])
            what, number = self._next_reply()
            if what == FAILED:
                raise OSError(number, os.strerror(number))
            self._workers.add(number)
            self._ended.pop(number, None)  # an earlier worker may have had the same pid
        return number

    def _next_reply(self) -> tuple[int, int]:
        """Return the server's next reply to a request. Also record workers whose end the server reports."""
        deadline = time.monotonic() + _START_SECONDS
        while not self._replies:
            if self._receive_message(max(deadline - time.monotonic(), 0.0)):
                continue
            if self._lost:
                try:
                    raise OSError(ending(self._process.wait(_END_SECONDS), None))
                except subprocess.TimeoutExpired:
                    raise OSError("the process that forks workers no longer answers") from None
            self._process.kill()  # otherwise a late reply would be mistaken for the reply to the next request
            self._lost = True
            raise OSError(f"the process that forks workers did not answer within {_START_SECONDS:g} s")
        return self._replies.popleft()

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


# ---- the server of this process --------------------------------------------------------------------------------------

_server: ForkServer | None = None
_lock = Lock()


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


# ---- how a process ended ---------------------------------------------------------------------------------------------

_kills_lock = Lock()
_explained_kills = [0]  # number of the kernel's kills that were already matched to a dead worker


def kills_for_memory() -> int | None:
    """Return how many processes of this cgroup the kernel killed for lack of memory; None if it does not count them."""
    for path in _count_files():
        with suppress(OSError, ValueError):
            with open(path, encoding="ascii") as file:
                counts = dict(line.split()[:2] for line in file if len(line.split()) > 1)
            if "oom_kill" in counts:
                return int(counts["oom_kill"])
    return None


def _count_files() -> list[str]:
    """Return the files with the kernel's counts, for cgroup versions 2 and 1."""
    return [path for name in ("memory.events", "memory.oom_control") for path in group_files("/", "memory", name)]


def ending(code: int, kills_before: int | None) -> str:
    """Describe how a process ended.

    Args:
        code: exit code, or the negative signal number.
        kills_before: the kernel's count of kills for lack of memory when the process started; None if unknown. Each
            kill that it counts explains one death.
    """
    if code >= 0:
        return f"exit code {code}"
    if code != -signal.SIGKILL:
        known = -code in set(signal.Signals)
        return f"killed by {signal.Signals(-code).name}" if known else f"killed by signal {-code}"
    if kills_before is None:
        return "killed by SIGKILL (perhaps because memory ran out)"
    with _kills_lock:
        explained = max(kills_before, _explained_kills[0])
        if (kills_for_memory() or 0) <= explained:
            return "killed by SIGKILL"
        _explained_kills[0] = explained + 1
    return "killed by SIGKILL: out of memory, as the kernel reports"
