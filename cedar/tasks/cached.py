"""cache(): stores the output of the deterministic operators before it, one entry per split, in memory or Arrow files.

The key of an entry consists of the operators as the user wrote them, the code of their functions, the identity of the
data, and the split. A plan's order of operators does not change it. Entries include row keys and skipped rows.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import pyarrow as pa

from cedar.core.block import Block
from cedar.datasets.base import Split
from cedar.operators.base import Env
from cedar.plan import graph
from cedar.store.blocks import relabeled, storable, write_body
from cedar.store.cache import Key, Store, kind_of
from cedar.tasks.chain import KernelStep, Program, Timing, run_program
from cedar.tasks.fingerprints import Record, why_missing
from cedar.tasks.reading import Reader, SplitReader, read_split

T = TypeVar("T")


@dataclass(frozen=True)
class KeptReader:
    """A reader and a program whose results are cached.

    Args:
        reader: the reader of the source: a ``Reader``, or a ``ScanReader`` if a plan reads less.
        program: the operators that are run on the rows before they are cached.
        store: the store of the loader.
        where: the argument of ``cache(where)``; "memory" if ``record.unknown`` is not empty.
        record: the record of the last cached node.
        branches: the branch numbers of the concats between source and cache, which are part of the row keys.
    """

    reader: SplitReader
    program: Program
    store: Store
    where: str
    record: Record
    branches: tuple[int, ...] = ()
    caches: ClassVar[bool] = True

    def read_blocks(self, split: Split, lap: int, env: Env, timing: Timing | None = None) -> Iterator[Block]:
        """Yield the program's output for a split, from the store if the entry exists.

        Args:
            timing: receives the measurements of computing an entry, or the number of rows that a hit saved.

        Raises:
            PipelineError: the store is a directory that others can write to.
        """
        identity, where = self._identity(), self.where
        blocks_read: list[Block] | None = None
        contents: str | None = ""
        if identity is None:  # the source has no identity: hash the rows, since entries outlive the run
            blocks_read = list(self.plain.blocks(split, 0))
            contents = _contents(blocks_read)
            where = "memory" if contents is None else where
        key = self._key(split, identity, contents)
        timing = Timing() if timing is None else timing
        blocks = _timed(timing, self.store.get, key, where)
        if blocks is None:
            blocks = self._compute(split, env, blocks_read, timing)
            _timed(timing, self.store.put, key, where, blocks, self._as_json(identity))
            timing.rows_cached += sum(block.slots for block in blocks)
        elif blocks_read is None:
            timing.rows_kept += split.rows if split.rows is not None else sum(block.slots for block in blocks)
        yield from relabeled(blocks, self.plain.ordinal, lap)

    def _compute(self, split: Split, env: Env, blocks_read: list[Block] | None, timing: Timing) -> list[Block]:
        """Run the program on a split, using blocks that were already read if possible."""
        if blocks_read is not None and self.reader is self.plain:
            timing.rows_read += sum(block.slots for block in blocks_read)
            return [run_program(self.program, block, env, timing) for block in blocks_read]
        result = read_split(self.program, self.reader, split, 0, env)
        timing.take(result.timing)
        return result.blocks

    @property
    def plain(self) -> Reader:
        return self.reader.plain

    @property
    def as_written(self) -> KeptReader:
        return self

    @property
    def steps(self) -> tuple[KernelStep, ...]:
        return (*self.reader.steps, *self.program.steps)

    def describe(self, splits: Sequence[Split]) -> str:
        """Describe whether the entries of the splits exist, and if not, why. Runs no user function and reads no rows.

        Raises:
            PipelineError: the store is a directory that others can write to.
        """
        if self.record.unknown:
            reported = "; ".join(self.record.unknown)
            return f"miss: stored in memory for this loader only: {reported}; cache(where, version=...) replaces it"
        identity = self._identity()
        if identity is None:
            return "hit or miss is known once rows are read: this source cannot detect changes of its data"
        hits = self.store.kept([self._key(split, identity).name for split in splits], self.where)
        if hits and hits == len(splits):
            return f"hit: all {hits} split(s) are kept"
        if hits:
            return f"hit for {hits} of {len(splits)} splits; the others are computed and kept"
        if kind_of(self.where) == "memory":
            return "miss: nothing is in memory before the first epoch"
        return f"miss: {why_missing(self.store.records(self.where), self._as_json(identity))}"

    def _identity(self) -> str | None:
        """Return the identity of the data; None if unknown. Entries in memory belong to this loader only."""
        if kind_of(self.where) == "memory":
            return "this loader"
        return self.plain.source.identity()

    def _policy(self) -> str:
        """Return the policy for bad rows. Runs in which bad rows are errors must not use entries with skipped rows."""
        policy = self.plain.on_error
        if policy is None:
            return "raise"
        return f"skip, refill={policy.refill}, files={policy.files}, blocks={policy.blocks}"

    def _group(self, identity: str | None) -> str:
        separate = self.record.several or kind_of(self.where) == "memory"
        ordinal = self.plain.ordinal if separate else 0
        return graph.digest([self.record.key(), identity, self._policy(), ordinal, *self.branches])

    def _key(self, split: Split, identity: str | None, contents: str | None = "") -> Key:
        steps = (*self.steps, *(self.program.written or ()))
        ordinals = {self.plain.operator, *(o for step in steps for o in step.operators)}
        return Key(
            self._group(identity), graph.digest([repr(split), contents]), tuple(sorted(ordinals)), self.record.columns
        )

    def _as_json(self, identity: str | None) -> dict[str, Any]:
        return self.record.as_json(self._group(identity), identity or "", self._policy())


def _timed(timing: Timing, call: Callable[..., T], *args: Any) -> T:
    """Call a function, add its time to the timing as cache time, and return its result."""
    start = time.perf_counter(), time.thread_time()
    returned = call(*args)
    timing.parts.append((("cache", ()), time.perf_counter() - start[0], time.thread_time() - start[1]))
    return returned


def _contents(blocks: Sequence[Block]) -> str | None:
    """Return a digest of the rows' contents; None if the rows cannot be stored as Arrow data."""
    if storable(blocks):
        return None
    sink = pa.BufferOutputStream()
    described = write_body(blocks, sink, ())
    state = hashlib.blake2b(sink.getvalue(), digest_size=16)
    state.update(repr(described).encode())
    return state.hexdigest()
