"""Instances of users' classes: constructed one at a time, with reproducible global random state, and reused."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from cedar.core.cursor import hash_ints
from cedar.core.errors import PipelineError
from cedar.core.numeric import NumericEnvironment, arrived
from cedar.core.packages import loaded
from cedar.core.process import Lock
from cedar.operators.determinism import preserve_generators

_constructor_lock = Lock()  # a pipeline that runs inside a constructor uses no threads, which would wait for this
_thread = threading.local()


def constructed(make: Callable[[], Any], name: str, numeric: NumericEnvironment | None) -> Any:
    """Call ``make`` and return the instance.

    The global generators of random, NumPy and torch are seeded from the class name and restored afterwards. Instances
    are therefore the same in every thread and process, and the caller's own draws are not affected. If the constructor
    is the first to import torch and draws from its still unseeded generator, it is called again.

    Args:
        make: the constructor.
        name: the class name. The seed depends on nothing else, because caches do not know the run's seed.
        numeric: the numeric environment of the run.
    """
    with _constructor_lock, nullcontext() if numeric is None else numeric.entered():
        outer = constructing()
        _thread.constructing = True
        try:
            before = arrived()
            with preserve_generators():
                _seed_generators(name)
                instance = make()
                fresh = arrived() == before or _torch_unused()
            if fresh:
                return instance
            if numeric is not None:
                numeric.set()
            with preserve_generators():
                _seed_generators(name)
                return make()
        finally:
            _thread.constructing = outer


def constructing() -> bool:
    """Return whether this thread runs a constructor, which must not wait for another thread's constructor."""
    return getattr(_thread, "constructing", False)


def _seed_generators(name: str) -> None:
    words = name.encode()
    seed = hash_ints(*(int.from_bytes(words[i : i + 8], "little") for i in range(0, len(words), 8)))
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - users draw from it
    torch = loaded("torch")
    if torch is not None:
        torch.random.default_generator.manual_seed(seed % 2**63)  # torch.manual_seed would also seed devices


def _torch_unused() -> bool:
    """Return True if torch is not imported or its generator is unused; otherwise reset the generator, return False."""
    torch = loaded("torch")
    if torch is None:
        return True
    fresh = torch.Generator().get_state()
    if torch.equal(torch.random.default_generator.get_state(), fresh):
        return True
    torch.random.default_generator.set_state(fresh)
    return False


class Instances:
    """Instances of the classes given to ``map``, reused between blocks and epochs.

    In the caller's process, instances are constructed one at a time and only while the caller waits for a batch, so
    that constructors do not disturb the trainer's global random state.
    """

    runs_concurrently_with_caller = True  # whether user functions in this process may run while the caller's code runs

    def __init__(self) -> None:
        self._changed = (
            threading.Condition()
        )  # reentrant: garbage collection may end an iteration in its owner's thread
        self._idle: dict[int, list[Any]] = {}
        self._constructing = False
        self._caller_thread: int | None = None  # the caller's thread while it works on a batch
        self._runs = 0

    @contextmanager
    def borrow(self, operator: int, make: Callable[[], Any]) -> Iterator[Any]:
        """Return a context manager for an instance that no other thread uses at the same time."""
        with self._changed:
            idle, run = self._idle.setdefault(operator, []), self._runs
            self._changed.wait_for(lambda: idle or run != self._runs or self._may_construct())
            if not idle and run != self._runs:
                raise PipelineError("the run ended while a worker waited for an instance of a class")
            instance = idle.pop() if idle else None
            self._constructing = self._constructing or instance is None
        if instance is None:
            try:
                instance = make()
            finally:
                with self._changed:
                    self._constructing = False
                    self._changed.notify_all()
        try:
            yield instance
        finally:
            with self._changed:
                idle.append(instance)
                self._changed.notify_all()

    def _may_construct(self) -> bool:
        return not self._constructing and self._caller_thread in (None, threading.get_ident())

    def leave(self) -> None:
        """Record that the caller now works on a batch; before that, wait for the end of a running constructor."""
        if not self.runs_concurrently_with_caller:
            return
        with self._changed:
            self._changed.wait_for(lambda: not self._constructing)
            self._caller_thread = threading.get_ident()

    def enter(self) -> None:
        """Record that the caller now waits for a batch, so that constructors may run."""
        if self._caller_thread is None:
            return
        with self._changed:
            self._caller_thread = None
            self._changed.notify_all()

    def end(self) -> None:
        """End the run: threads that wait for an instance stop waiting."""
        with self._changed:
            self._caller_thread = None
            self._runs += 1
            self._changed.notify_all()

    def __reduce__(self) -> tuple[Any, ...]:
        return Instances, ()  # each process constructs its own instances
