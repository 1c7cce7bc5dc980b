"""The fork server: a process that has imported what workers need, and forks one worker per request.

It runs no user code and starts no threads, so a forked worker is in the same state as a new interpreter.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import struct
import sys
import warnings
from contextlib import suppress

from cedar.executors.worker.main import main

REQUEST = struct.Struct("<i??")  # lowest log level to forward; whether stdout and stderr are open
REPLY = struct.Struct("<iii")  # kind of reply, process id, exit status
READY, FORKED, FAILED, ENDED = range(4)  # kinds of replies; FAILED has an errno instead of a process id
_MAX_DESCRIPTORS = 3  # maximum file descriptors per request: the worker's end of the wire, stdout, stderr

# The server imports the first module before the first fork, and one of the others whenever no request arrived for a
# second. It does not import polars, because that would start a thread.
_IMPORT_BEFORE_FORK = "cedar.operators.map"
_IMPORTS_WHEN_IDLE = ("pyarrow.compute", "pyarrow.parquet")
_CHECK_SECONDS = 1.0  # seconds between checks that the parent is alive


def serve(end: int, parent: int) -> None:
    """Fork workers until the parent exits or closes its end of the socket. The workers end with this process.

    Args:
        end: the file descriptor of the socket on which requests arrive.
        parent: the process id of the parent, which sends the requests.
    """
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
        os.set_inheritable(end, False)
        importlib.import_module(_IMPORT_BEFORE_FORK)
        _WorkerServer(socket.socket(fileno=end)).run(parent)
    except OSError:  # the parent is gone
        os._exit(0)


class _WorkerServer:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._woken, self._waker = socket.socketpair()
        for one in (self._woken, self._waker):
            one.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self, parent: int) -> None:
        idle_imports = list(_IMPORTS_WHEN_IDLE)
        gc.freeze()  # garbage collection in workers would write to memory pages shared by fork, and so copy them
        self._reply(READY)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        while os.getppid() == parent:
            ready = {end for end, _ in poll.poll(1000 * _CHECK_SECONDS)}
            if self._woken.fileno() in ready:
                self._report_ended()
            if self._control.fileno() in ready and not self._handle_request():
                break
            if not ready and idle_imports:
                importlib.import_module(idle_imports.pop(0))
                gc.freeze()
        os._exit(0)

    def _reply(self, what: int, number: int = 0, status: int = 0) -> None:
        self._control.sendall(REPLY.pack(what, number, status))

    def _report_ended(self) -> None:
        """Send an ENDED reply for each worker that has ended."""
        with suppress(BlockingIOError):
            while self._woken.recv(1 << 12):
                pass
        with suppress(ChildProcessError):  # no workers are left
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                self._reply(ENDED, pid, os.waitstatus_to_exitcode(status))

    def _handle_request(self) -> bool:
        """Handle one request: fork a worker. Return False if the parent has closed the socket."""
        request, descriptors, *_ = socket.recv_fds(self._control, REQUEST.size, _MAX_DESCRIPTORS)
        if not request:
            return False
        server = os.getpid()
        try:
            # Ignore Python's warning about forking with threads, which Arrow's allocator has; workers keep all filters.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
        except OSError as error:
            self._reply(FAILED, error.errno or 0)
        else:
            if pid == 0:
                level, *open_streams = REQUEST.unpack(request)
                self._become_worker(descriptors, server, level, open_streams)
            self._reply(FORKED, pid)
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _become_worker(self, descriptors: list[int], server: int, level: int, open_streams: list[bool]) -> None:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for one in (self._control, self._woken, self._waker):
                one.close()
            os.setpgid(0, 0)  # in its own process group, the worker receives no Ctrl-C before it ignores SIGINT
            end, *streams = descriptors
            for number, is_open in enumerate(open_streams, 1):
                if is_open:
                    os.dup2(streams[0], number)
                    os.close(streams.pop(0))
            if "numpy.random" in sys.modules:  # reseed after the fork; Python's ``random`` reseeds itself
                sys.modules["numpy.random"].seed()
            main(end, server, level)
        finally:
            os._exit(1)
