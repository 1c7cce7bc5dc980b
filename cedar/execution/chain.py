"""Run a chain of kernels on one block: the work of a task, wherever it runs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cedar.block import Block, Skipped
from cedar.columns import as_column
from cedar.cursor import Keys
from cedar.datasets.base import Chunk, Split, offsets_of
from cedar.errors import CedarError, RowError, Site, SourceError
from cedar.operators.base import Env, Kernel
from cedar.skip import Skip


@dataclass(frozen=True)
class Step:
    """A kernel, the ordinals of the operators that it does the work of, and how an error names them."""

    kernel: Kernel
    operators: tuple[int, ...] = ()
    label: str = ""
    site: Site | None = None


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
        try:
            block = step.kernel(block, env)
        except CedarError:
            raise
        except Exception as error:
            raise _failed(step, block, error) from error
        timing.seconds[i] += time.perf_counter() - start
    return block


def _failed(step: Step, block: Block, error: Exception) -> RowError:
    """For an operator that does not say itself what went wrong."""
    return RowError(
        f"{step.label or type(step.kernel).__name__} failed on a block: {type(error).__name__}: {error}",
        site=step.site,
        row=replace(block.keys.ref(0), unit="rows starting at") if block.slots else None,
        fix="see the exception above for its cause",
    )


def run_block(steps: Sequence[Step], block: Block, env: Env) -> Result:
    """One task of a stage above another."""
    timing = Timing()
    return Result([run_steps(steps, block, env, timing)], timing)


def chunk_block(chunk: Chunk, split: Any, first: int, ordinal: int, lap: int) -> Block:
    """A source's chunk with the keys of its rows; ``first`` counts the rows of the split before it."""
    start = int(getattr(split, "start", 0)) + first
    keys = Keys(offsets_of(chunk, start), int(getattr(split, "file", 0)), repeat=lap, source=ordinal)
    return Block({name: as_column(column) for name, column in chunk.columns.items()}, keys)


@dataclass(frozen=True)
class Reader:
    """A source as a run reads it: its number among the sources, and what becomes of rows that it cannot make."""

    source: Any
    ordinal: int
    operator: int = 0
    label: str = ""
    on_error: Skip | None = None
    site: Site | None = None

    def blocks(self, split: Any, lap: int) -> Iterator[Block]:
        """The split's rows with their keys; a bad row is an error, or a dead slot under a policy."""
        try:
            yield from self._blocks(split, lap)
        except CedarError as error:
            error.site = error.site or self.site
            raise

    def _blocks(self, split: Any, lap: int) -> Iterator[Block]:
        sound = getattr(self.source, "read_sound", None)
        if self.on_error is not None and sound is not None:
            for chunk, failed in guarded(self.source, split, sound):
                yield self._with_dead(chunk, failed, split, lap)
            return
        first = 0
        for chunk in guarded(self.source, split):
            block = chunk_block(chunk, split, first, self.ordinal, lap)
            first += chunk.rows
            yield block

    def _with_dead(self, chunk: Chunk, failed: dict[int, CedarError], split: Any, lap: int) -> Block:
        """The chunk's rows, and a dead slot for each row that failed, in the order of their numbers."""
        block = chunk_block(chunk, split, 0, self.ordinal, lap)
        rows = np.sort(np.concatenate([block.keys.row, np.array(list(failed), dtype=np.int64)]))
        assert self.on_error is not None
        dead = {
            int(np.searchsorted(rows, row)): Skipped(self.operator, self.label, error.what, self.on_error.refill)
            for row, error in failed.items()
        }
        return Block(block.columns, replace(block.keys, row=rows), dead)


def read_split(steps: Sequence[Step], reader: Any, split: Split, lap: int, env: Env) -> Result:
    """One task of a stage that reads: a whole split through the chain."""
    timing = Timing()
    start = time.perf_counter()
    made = reader.blocks(split, lap) if isinstance(reader, Reader) else reader.read_blocks(split, lap, env)
    blocks = [run_steps(steps, block, env, timing) for block in made]
    timing.read = time.perf_counter() - start - sum(timing.seconds)
    return Result(blocks, timing)


def guarded(source: Any, split: Any, read: Any = None) -> Any:
    """The chunks of a split; whatever a reader raises becomes a SourceError that names the file."""
    try:
        yield from (read or source.read)(split)
    except CedarError:
        raise
    except Exception as error:
        url = source.url(getattr(split, "file", 0))
        raise SourceError(
            f"{url} cannot be read: {type(error).__name__}: {error}",
            done="reading stopped; no row of this split was delivered",
            fix="check that the file is there, complete and of the right format",
        ) from error
