"""A run that is watched from inside: every call timed, a block of each operator kept, and an end when time is up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any

from cedar.block import Block
from cedar.columns import nbytes
from cedar.errors import Passing
from cedar.execution.binding import Binding
from cedar.execution.cached import Store
from cedar.execution.chain import Reader, Timing
from cedar.execution.compile import Compiler
from cedar.execution.metrics import Metrics
from cedar.execution.observing import observe
from cedar.execution.runner import Runner
from cedar.execution.tasks import Tasks
from cedar.graph import Node
from cedar.operators.base import Env, Kernel
from cedar.plan.physical import Physical, Segment
from cedar.profile import Observation
from cedar.skip import Skip


class TimeUp(Passing):
    """Ends the run wherever it is; no ``except Exception`` on the way takes it for an error of the pipeline."""


@dataclass
class Watch:
    """What is seen of a run.

    Args:
        deadline: of ``time.perf_counter()``.
        metrics: take the observations.
        kept: the largest block that each operator got, by ordinal.
    """

    deadline: float
    metrics: Metrics
    kept: dict[int, Block] = field(default_factory=dict)
    reading: list[Tally] = field(default_factory=list)

    def check(self) -> None:
        """Raises TimeUp when it is."""
        if time.perf_counter() > self.deadline:
            raise TimeUp

    def close(self) -> None:
        """Count the splits that were not read to their end."""
        for tally in self.reading:
            tally.tell()
        self.reading.clear()


@dataclass
class Tally:
    """What reading a split took so far."""

    operator: int
    metrics: Metrics
    rows: int = 0
    wall: float = 0.0
    cpu: float = 0.0
    columns: dict[str, int] = field(default_factory=dict)

    def add(self, block: Block, wall: float, cpu: float) -> None:
        """One more block."""
        self.rows += len(block)
        self.wall += wall
        self.cpu += cpu
        for name, column in block.columns.items():
            self.columns[name] = self.columns.get(name, 0) + nbytes(column)

    def tell(self) -> None:
        """As one observation; begin anew."""
        size = sum(self.columns.values())
        self.metrics.rows_read += self.rows
        self.metrics.observe(
            self.operator, Observation(self.rows, self.rows, size, size, self.wall, self.cpu, self.columns)
        )
        self.rows, self.wall, self.cpu, self.columns = 0, 0.0, 0.0, {}


class WatchedBinding(Binding):
    """Kernels that tell what they did. They do not fuse, so that each operator is seen by itself."""

    def __init__(self, root: Node, on_error: Skip | None, env: Env, watch: Watch) -> None:
        super().__init__(root, on_error, env)
        self._watch = watch

    def bound(self, node: Node) -> Kernel:
        """The kernel itself."""
        return super().kernel(node)

    def kernel(self, node: Node) -> Kernel:
        """The kernel, watched in the run; calls for a sample are not."""
        kernel, watch, index = super().kernel(node), self._watch, self.index[id(node)]
        pooled = getattr(kernel, "pooled", False)  # its work is done by threads of a library

        def watched(block: Block, env: Env) -> Block:
            if env.sampling:
                return kernel(block, env)
            kept = watch.kept.get(index)
            if kept is not None:  # every operator is seen once, whatever the time
                watch.check()
            timing, wall, cpu = Timing(), time.perf_counter(), time.thread_time()
            after = kernel(block, env)
            wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
            observe(timing, index, block, after, wall, wall if pooled else cpu)
            watch.metrics.observe(index, timing.seen[index])
            if block.slots and (kept is None or block.slots >= kept.slots):
                watch.kept[index] = block
            return after

        return watched


@dataclass(frozen=True)
class WatchedReader(Reader):
    """A source that tells what it read: split by split, or block by block where a split may be large."""

    watch: Watch | None = None

    def blocks(self, split: Any, lap: int) -> Iterator[Block]:
        """As they come, timed without what is done with them."""
        assert self.watch is not None
        tally = Tally(self.operator, self.watch.metrics)
        self.watch.reading.append(tally)
        blocks = super().blocks(split, lap)
        while True:
            wall, cpu = time.perf_counter(), time.thread_time()
            block = next(blocks, None)
            wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
            if block is None:
                break
            tally.add(block, wall, cpu)
            if getattr(split, "streaming", False):
                tally.tell()
            yield block
        tally.tell()
        self.watch.reading.remove(tally)


class WatchedCompiler(Compiler):
    """Reads with readers that tell what they read."""

    def __init__(self, physical: Physical, binding: Binding, tasks: Tasks, watch: Watch) -> None:
        super().__init__(physical, binding, tasks, Store())
        self._watch = watch

    def _reader(self, segment: Segment) -> Any:
        given: Reader = super()._reader(segment)
        return WatchedReader(
            given.source, given.ordinal, given.operator, given.label, given.on_error, given.site, self._watch
        )


class WatchedRunner(Runner):
    """Runs tasks in the caller's thread, as long as there is time."""

    def __init__(self, watch: Watch) -> None:
        super().__init__("inline", 1)
        self._watch = watch

    def _guard(self, executor: Executor, fn: Callable[..., Any], *args: Any) -> Future[Any]:
        if self._watch.metrics.seen:
            self._watch.check()
        return super()._guard(executor, fn, *args)
