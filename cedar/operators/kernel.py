"""Kernels, which do an operator's work on one block, and the information about the run that they receive."""

from __future__ import annotations

import pickle
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Literal, Protocol

from cedar.core.block import Block
from cedar.core.buffers import BatchPlace
from cedar.core.cursor import hash_ints
from cedar.core.errors import PipelineError
from cedar.core.limits import DEFAULT, Limits
from cedar.core.numeric import NumericEnvironment
from cedar.operators.marks import Marks


class Instances:
    """Instances of the classes given to ``map``, reused between blocks and epochs.

    In the caller's process, instances are constructed one at a time and only while the caller waits for a batch, so
    that constructors do not disturb the trainer's global random state.
    """

    runs_concurrently_with_caller = True  # whether user functions in this process may run while the caller's code runs

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: garbage collection may end an iteration in a thread that holds it
        self._changed = threading.Condition(self._lock)
        self._idle: dict[int, list[Any]] = {}
        self._constructing = False
        self._waiting = 0  # number of threads that wait on the condition
        self._caller_thread: int | None = None  # the caller's thread while it works on a batch
        self._runs = 0

    @contextmanager
    def borrow(self, operator: int, make: Callable[[], Any]) -> Iterator[Any]:
        """Return a context manager for an instance that no other thread uses at the same time.

        Raises:
            PipelineError: the run ended before an instance could be constructed.
        """
        with self._lock:
            idle, run = self._idle.setdefault(operator, []), self._runs
            self._wait_for(lambda: idle or run != self._runs or self._may_construct())
            if not idle and run != self._runs:
                raise PipelineError("the run ended while a worker waited for an instance of a class")
            instance = idle.pop() if idle else None
            self._constructing = self._constructing or instance is None
        if instance is None:
            try:
                instance = make()
            finally:
                with self._lock:
                    self._constructing = False
                    self._notify_waiting()
        try:
            yield instance
        finally:
            with self._lock:
                idle.append(instance)
                self._notify_waiting()

    def _wait_for(self, change: Callable[[], object]) -> None:
        self._waiting += 1
        self._changed.wait_for(change)
        self._waiting -= 1

    def _notify_waiting(self) -> None:
        if self._waiting:
            self._changed.notify_all()

    def _may_construct(self) -> bool:
        return not self._constructing and self._caller_thread in (None, threading.get_ident())

    def leave(self) -> None:
        """Record that the caller now works on a batch; before that, wait for the end of a running constructor."""
        if not self.runs_concurrently_with_caller:
            return
        with self._lock:
            if self._constructing:
                self._wait_for(lambda: not self._constructing)
            self._caller_thread = threading.get_ident()

    def enter(self) -> None:
        """Record that the caller now waits for a batch, so that constructors may run."""
        if self._caller_thread is None:
            return
        with self._lock:
            self._caller_thread = None
            self._notify_waiting()

    def end(self) -> None:
        """End the run: threads that wait for an instance stop waiting."""
        with self._lock:
            self._caller_thread = None
            self._runs += 1
            self._notify_waiting()

    def __reduce__(self) -> tuple[Any, ...]:
        return Instances, ()  # each process constructs its own instances


@dataclass(frozen=True)
class Env:
    """The information about the run that a kernel receives. Results must not depend on workers or block size."""

    seed: int = 0
    epoch: int = 0
    instances: Instances = field(default_factory=Instances)
    sampling: bool = False  # True during type inference, which ignores failing rows silently
    watch: Literal["", "detail", "whole", "audit"] = ""  # how the task measures ("whole": all rows) or audits operators
    marks: Marks | None = None  # records the task's current operator and row, in case its process crashes
    call_in_subprocess: Callable[..., Any] | None = None  # runs calls on sample rows that may crash (see Call.run)
    numeric: NumericEnvironment | None = None  # for user functions; None if the pipeline has none
    limits: Limits = DEFAULT  # memory limits of a task
    place: BatchPlace | None = None  # the memory in the batch for the task's rows, to which kernels may write directly
    unsteady: dict[int, str] | None = None  # collects warnings of nondeterministic operators on samples; None: off

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle for another process; fields that are equal for all tasks are pickled and unpickled only once."""
        common = _packed(self.seed, self.epoch, self.sampling, self.numeric, self.limits)
        return _unpickled_env, (common, self.watch, self.marks)  # other fields stay in this process

    def draw_seed(self, operator_seed: int) -> int:
        """Return the 64-bit seed of a random operator's draws, to be combined with each row's key."""
        return hash_ints(self.seed, self.epoch, operator_seed)


@lru_cache(maxsize=16)
def _packed(*common: Any) -> bytes:
    return pickle.dumps(common)


@lru_cache(maxsize=16)
def _unpacked(common: bytes) -> Any:
    return pickle.loads(common)  # noqa: S301 - pickled by the parent process


def _unpickled_env(common: bytes, watch: Any, marks: Marks | None) -> Env:
    seed, epoch, sampling, numeric, limits = _unpacked(common)
    return Env(seed, epoch, Instances(), sampling, watch, marks, None, numeric, limits)


class Kernel(Protocol):
    """A function that applies an operator to one block. It can be pickled, and keeps no state between calls."""

    def __call__(self, block: Block, env: Env, /) -> Block: ...


class BlockKernel(ABC):
    """Everything that cedar asks of a kernel. The defaults hold for a kernel that is only a function of a block."""

    encodes: ClassVar[bool] = False  # encodes batches to bytes, an expensive step

    @abstractmethod
    def __call__(self, block: Block, env: Env, /) -> Block:
        """Apply the operator to a block."""

    @property
    def row_wise(self) -> bool:
        """Whether splitting a block does not change results."""
        return False

    @property
    def pooled(self) -> bool:
        """Whether a library does the work in its own threads."""
        return False

    @property
    def inexact(self) -> bool:
        """Whether results may differ from those of running the fused ``parts`` of the step separately."""
        return False

    @property
    def samples_parts(self) -> bool:
        """Whether its fused parts are measured on a few rows, and it runs on all; otherwise only the parts run."""
        return False

    @property
    def row_bytes(self) -> int:
        """The number of bytes per row that it can write directly into the batch's memory; 0 if it cannot."""
        return 0

    @property
    def timeout(self) -> float | None:
        """The time limit of one call of the user's function, in seconds; None if there is none."""
        return None

    def fuse(self, above: BlockKernel) -> BlockKernel | None:
        """Return a kernel that does the work of this one and of the next; None if they cannot be fused."""
        return None

    def describe(self, block: Block, env: Env) -> list[dict[str, Any]]:
        """Return each live row's random choices by name; [] if nothing is random."""
        return []


@dataclass(frozen=True)
class FunctionKernel(BlockKernel):
    """A kernel that is only a function, such as that of a user's operator; it may have a method ``describe``."""

    function: Kernel

    def __call__(self, block: Block, env: Env, /) -> Block:
        return self.function(block, env)

    def describe(self, block: Block, env: Env) -> list[dict[str, Any]]:
        describe = getattr(self.function, "describe", None)
        return [] if describe is None else describe(block, env)


def block_kernel(kernel: Kernel) -> BlockKernel:
    """Return a kernel that has everything that cedar asks of one."""
    return kernel if isinstance(kernel, BlockKernel) else FunctionKernel(kernel)
