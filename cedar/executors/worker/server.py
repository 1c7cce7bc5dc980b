"""The fork server: a process without threads that has imported what workers need, and forks one when asked to.

None of the user's code runs in it, so that what it forks is as fresh as a new interpreter.
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

REQUEST = struct.Struct("<i??")  # the least level of log lines, and whether there are stdout and stderr
REPLY = struct.Struct("<iii")  # what it says, of which process, and its status
READY, FORKED, FAILED, ENDED = range(4)  # FAILED: with the error's number in place of a process
_DESCRIPTORS = 3  # come with a request, at most: the worker's end of its wire, its stdout, its stderr

# Imported before the first worker is forked, and whenever nothing has asked for one for a second. Not polars, which
# starts a thread when it is imported.
_AT_ONCE = ("cedar.tasks.shipped", "cloudpickle", "cedar.operators.map")
_LATER = ("pyarrow.compute", "pyarrow.parquet")
_LOOK = 1.0  # seconds between two looks at whether the parent lives


def serve(end: int, parent: int) -> None:
    """Fork workers until the parent is gone, or has closed its end; they end with this process.

    Args:
        end: the file descriptor that requests come by.
        parent: the process id of who asks.
    """
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
        os.set_inheritable(end, False)
        for module in _AT_ONCE:
            importlib.import_module(module)
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
        later = list(_LATER)
        gc.freeze()  # what is shared is not written to by collections
        self._say(READY)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        while os.getppid() == parent:
            ready = {end for end, _ in poll.poll(1000 * _LOOK)}
            if self._woken.fileno() in ready:
                self._report()
            if self._control.fileno() in ready and not self._answer():
                break
            if not ready and later:
                importlib.import_module(later.pop(0))
                gc.freeze()
        os._exit(0)

    def _say(self, what: int, number: int = 0, status: int = 0) -> None:
        self._control.sendall(REPLY.pack(what, number, status))

    def _report(self) -> None:
        """Say which workers have ended."""
        with suppress(BlockingIOError):
            while self._woken.recv(1 << 12):
                pass
        with suppress(ChildProcessError):  # there are none
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                self._say(ENDED, pid, os.waitstatus_to_exitcode(status))

    def _answer(self) -> bool:
        """Fork a worker; False if nothing will ask again."""
        request, descriptors, *_ = socket.recv_fds(self._control, REQUEST.size, _DESCRIPTORS)
        if not request:
            return False
        server = os.getpid()
        try:
            # of forks next to threads of Arrow's allocator; workers have what users set
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
        except OSError as error:
            self._say(FAILED, error.errno or 0)
        else:
            if pid == 0:
                level, *there = REQUEST.unpack(request)
                self._become_worker(descriptors, server, level, there)
            self._say(FORKED, pid)
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _become_worker(self, descriptors: list[int], server: int, level: int, there: list[bool]) -> None:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for one in (self._control, self._woken, self._waker):
                one.close()
            os.setpgid(0, 0)  # a Ctrl-C that comes before the worker ignores it does not reach it
            end, *streams = descriptors
            for number, given in enumerate(there, 1):
                if given:
                    os.dup2(streams[0], number)
                    os.close(streams.pop(0))
            if "numpy.random" in sys.modules:  # as a new interpreter would; Python's own does so by itself
                sys.modules["numpy.random"].seed()
            main(end, server, level)
        finally:
            os._exit(1)
