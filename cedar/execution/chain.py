"""Run a chain of kernels on one block: the work of a task, wherever it runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cedar.block import Block
from cedar.columns import as_column
from cedar.cursor import Keys
from cedar.datasets.base import Chunk, Split, offsets_of
from cedar.errors import CedarError, SourceError
from cedar.operators.base import Env, Kernel


@dataclass(frozen=True)
class Step:
    """A kernel, and the ordinals of the operators that it does the work of."""

    kernel: Kernel
    operators: tuple[int, ...]


@dataclass
class Timing:
    """Seconds per step, added up over tasks; plain data that travels back with a result."""

    seconds: list[float] = field(default_factory=list)
    read: float = 0.0


@dataclass
class Result:
    """What a task returns."""

    blocks: list[Block]
    timing: Timing


def run_steps(steps: Sequence[Step], block: Block, env: Env, timing: Timing) -> Block:
    """The block after every step; blocks without slots pass untouched."""
    if not timing.seconds:
        timing.seconds = [0.0] * len(steps)
    if not block.slots and block.aligned and not block.columns:
        return block
    for i, step in enumerate(steps):
        start = time.perf_counter()
        block = step.kernel(block, env)
        timing.seconds[i] += time.perf_counter() - start
    return block


def run_block(steps: Sequence[Step], block: Block, env: Env) -> Result:
    """One task of a stage above another."""
    timing = Timing()
    return Result([run_steps(steps, block, env, timing)], timing)


def chunk_block(chunk: Chunk, split: Any, first: int, ordinal: int, lap: int) -> Block:
    """A source's chunk with the keys of its rows; ``first`` counts the rows of the split before it."""
    start = int(getattr(split, "start", 0)) + first
    keys = Keys(offsets_of(chunk, start), int(getattr(split, "file", 0)), repeat=lap, source=ordinal)
    return Block({name: as_column(column) for name, column in chunk.columns.items()}, keys)


def read_split(steps: Sequence[Step], source: Any, ordinal: int, split: Split, lap: int, env: Env) -> Result:
    """One task of a stage that reads: a whole split through the chain."""
    timing = Timing()
    blocks = []
    first = 0
    start = time.perf_counter()
    if hasattr(source, "read_blocks"):
        kept = [run_steps(steps, block, env, timing) for block in source.read_blocks(split, lap, env, timing)]
        timing.read = time.perf_counter() - start - sum(timing.seconds)
        return Result(kept, timing)
    for chunk in guarded(source, split):
        block = chunk_block(chunk, split, first, ordinal, lap)
        first += chunk.rows
        timing.read += time.perf_counter() - start
        blocks.append(run_steps(steps, block, env, timing))
        start = time.perf_counter()
    timing.read += time.perf_counter() - start
    return Result(blocks, timing)


def guarded(source: Any, split: Any) -> Any:
    """The chunks of a split; whatever a reader raises becomes a SourceError that names the file."""
    try:
        yield from source.read(split)
    except CedarError:
        raise
    except Exception as error:
        url = source.url(getattr(split, "file", 0))
        raise SourceError(
            f"{url} cannot be read: {type(error).__name__}: {error}",
            done="reading stopped; no row of this split was delivered",
            fix="check that the file is there, complete and of the right format",
        ) from error
