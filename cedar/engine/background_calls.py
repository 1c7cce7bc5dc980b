"""Calls of the user's functions for a plan that is being made, next to the run, and the end of them with the run."""

from __future__ import annotations

import atexit
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
_PATIENCE = 1.0  # seconds that the end of a run, or of the program, waits for a call
_GLANCE = 0.1  # seconds between two checks whether the program ends
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


class RunOver(Exception):
    """The run ended: the user's functions are not called any more."""


class Calls:
    """Those of one run, made by a thread next to it.

    Args:
        inline: only the run's own thread may call the user's functions, which may be tied to it; it looks in at
            ``serve`` between two batches.
    """

    def __init__(self, inline: bool) -> None:
        self._inline = inline
        self._busy = threading.Lock()
        self._over = threading.Event()
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()

    @property
    def over(self) -> bool:
        """The run, or the program, has ended."""
        return self._over.is_set() or not threading.main_thread().is_alive()

    def make(self, work: Callable[[], T]) -> T:
        """The result of ``work``, which calls functions of the user.

        Raises:
            RunOver: the run, or the program, has ended.
        """
        if self._inline:
            return self._wait(work)
        with self._busy:
            self.check()
            return work()

    def _wait(self, work: Callable[[], T]) -> T:
        done: Future[T] = Future()
        self._jobs.put((work, done))
        while True:
            self.check()
            try:
                return done.result(_GLANCE)
            except TimeoutError:
                if done.done():  # the work's own
                    raise

    def check(self) -> None:
        """Raises RunOver once the run, or the program, has ended."""
        if self.over:
            raise RunOver

    def serve(self) -> None:
        """Does what waits for the run's thread, to be called by it."""
        while self._inline and not self._jobs.empty():
            work, done = self._jobs.get()
            try:
                done.set_result(work())
            except Exception as error:  # noqa: BLE001 - raised where the plan is made
                done.set_exception(error)

    def end(self) -> None:
        """No call begins from now on; waits a moment for one in progress."""
        self._over.set()
        if self._busy.acquire(timeout=_PATIENCE):
            self._busy.release()


def beside(work: Callable[..., None], *args: Any) -> threading.Thread:
    """A thread that no program waits for longer than a moment, however long its work takes."""
    thread = threading.Thread(target=work, args=args, daemon=True, name="cedar-plan")
    _threads.add(thread)
    thread.start()
    return thread


@atexit.register
def _settle() -> None:
    """A daemon thread that is inside a library when the interpreter goes may take the process down with it."""
    for thread in list(_threads):
        thread.join(_PATIENCE)
