"""ScanReader: read only a scan's columns of a split, and only the rows that pass the scan's filters.

The filters' columns are read first. If the source's metadata or the filters exclude all rows of a split, its other
columns are not read. If a filter raises, the pipeline as written is run on the split, and only errors of that run are
raised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from cedar.core.block import Block, concat_blocks
from cedar.core.columns import UNKNOWN, Column, Index, blank, from_numbers, take
from cedar.core.cursor import Keys, no_keys
from cedar.core.errors import CedarError, SourceError
from cedar.datasets.base import BaseSource, Split
from cedar.operators.base import Env
from cedar.operators.expression_nodes import columns_of, fields_of
from cedar.plan.graph import dotted
from cedar.tasks.chain import KernelStep, Timing, fuse_steps, run_steps
from cedar.tasks.reading import Reader

if TYPE_CHECKING:
    import polars as pl

_MIN_BLOCK_ROWS = 4096  # blocks with fewer rows after filtering are joined
_INITIAL_EMPTY_RATE = 1 / 24  # initial estimate, chosen so that a second read adds less than 3%


class FilterHits:
    """Tracks how often no row of a split passes, to decide whether reading other columns after filtering saves time.

    Args:
        rate: the expected share of splits without a row that passes.
    """

    def __init__(self, rate: float = _INITIAL_EMPTY_RATE) -> None:
        self._rate = rate

    def see(self, empty: bool) -> None:
        """Record a split; ``empty`` is True if none of its rows passed."""
        self._rate += (empty - self._rate) / 4

    def worth(self, size: float | None, price: float) -> bool:
        """Return whether a second read of ``size`` bytes pays off if it costs as much as reading ``price`` bytes."""
        return size is None or self._rate * size >= price


class _FilterFailed(Exception):
    """A filter failed, so the split must be read as the pipeline was written."""


@dataclass(frozen=True)
class ScanReader:
    """Reader of a scan, used instead of ``Reader``; created by ``scan_reader``.

    Args:
        plain: reads the source as the pipeline was written.
        narrow: reads only the filters' columns and the output columns.
        steps: the fused filters.
        predicate: the conjunction of all filters; None without filters.
        columns: the output columns, in order; None for all.
        reads: the columns that the filters read; None if unknown.
        first: reads only the filters' columns; None if all columns are read together.
        rest: reads the other columns.
        rest_bytes: bytes per row of the other columns; None if unknown.
        selectivity: decides whether to read the other columns after filtering; does not affect results.
    """

    plain: Reader
    narrow: Reader
    steps: tuple[KernelStep, ...] = ()
    predicate: pl.Expr | None = None
    columns: tuple[str, ...] | None = None
    reads: frozenset[str] | None = None
    first: Reader | None = None
    rest: Reader | None = None
    rest_bytes: float | None = None
    selectivity: FilterHits = field(default_factory=FilterHits, compare=False, repr=False)
    caches: ClassVar[bool] = False

    @property
    def as_written(self) -> Reader:
        return self.plain

    def read_blocks(self, split: Split, lap: int, env: Env, timing: Timing) -> Iterator[Block]:
        """Yield the rows of a split that pass, with the same keys as from ``Reader``.

        If no row passes and the types of the columns are known, yield one empty block.
        """
        if not self.steps:
            yield from self._at_once(split, lap, env, timing)
            return
        any_rows = False
        try:
            pruned = self.predicate is not None and self.plain.source.prune(split, self.predicate)
        except CedarError as error:
            error.site = error.site or self.plain.site
            raise
        if not pruned:
            for block in _joined(self._passing_rows(split, lap, env, timing)):
                any_rows = True
                yield block
            self.selectivity.see(not any_rows)
        if any_rows:
            return
        types = self.narrow.source.schema()
        if types is not None and UNKNOWN not in types.values():
            columns = {name: blank(kind, 0) for name, kind in types.items()}
            yield Block(columns if self.columns is None else _ordered(self.columns, columns), no_keys())

    def _passing_rows(self, split: Split, lap: int, env: Env, timing: Timing) -> Iterator[Block]:
        rest = self._second_reader(split)
        if rest is not None:
            try:
                places, heads = self._filtered(split, lap, env, timing)
            except _FilterFailed:
                timing.rows_read = 0
            else:
                if heads:
                    yield from self._with_rest(rest, split, lap, places, concat_blocks(heads))
                return
        yield from self._at_once(split, lap, env, timing)

    def _second_reader(self, split: Split) -> Reader | None:
        """Return the reader of the other columns if they should be read after filtering, otherwise None."""
        if self.rest is None or split.streaming:
            return None
        if self.rest.reads_rows(split):
            return self.rest
        size = None if split.rows is None or self.rest_bytes is None else split.rows * self.rest_bytes
        return self.rest if self.selectivity.worth(size, self.plain.source.second_read_cost_bytes or 0) else None

    def _at_once(self, split: Split, lap: int, env: Env, timing: Timing) -> Iterator[Block]:
        for block in self.narrow.blocks(split, lap):
            timing.rows_read += block.slots
            left = self._kept(block, env, timing) if self.steps else block
            yield left if self.columns is None else left.only_columns(_ordered(self.columns, left.columns))

    def _kept(self, block: Block, env: Env, timing: Timing) -> Block:
        """Return the block's rows that pass. The filters only receive the columns that they read."""
        if self.reads is None:
            return run_steps(self.steps, block, env, timing)
        try:
            left = self._sieve(block, env, timing)
        except _FilterFailed:
            return run_steps(self.steps, block, env, timing)
        rows = left.keys.row
        if len(rows) == block.slots:
            return block
        others = {name: column for name, column in block.columns.items() if name not in left.columns}
        both = {**left.columns, **_gather(others, rows)}
        return Block({name: both[name] for name in block.columns}, block.keys.take(rows))

    def _sieve(self, block: Block, env: Env, timing: Timing) -> Block:
        """Return the filters' columns of the rows that pass. Row numbers in the keys are positions in the block.

        Raises:
            _FilterFailed: a filter raised, or skipped a row.
        """
        assert self.reads is not None
        columns = {name: column for name, column in block.columns.items() if name in self.reads}
        try:
            left = run_steps(self.steps, Block(columns, Keys(np.arange(block.slots, dtype=np.int64))), env, timing)
        except Exception as error:
            raise _FilterFailed from error
        if block.dead or left.dead or not left.aligned:
            raise _FilterFailed
        return left

    def _filtered(self, split: Split, lap: int, env: Env, timing: Timing) -> tuple[Index, list[Block]]:
        """Return the positions in the split of the rows that pass, and the filters' columns of these rows.

        Raises:
            _FilterFailed: a filter raised, or skipped a row.
        """
        assert self.first is not None
        places: list[Index] = [np.empty(0, dtype=np.int64)]
        heads: list[Block] = []
        start = 0
        for block in self.first.blocks(split, lap):
            left = self._sieve(block, env, timing)
            rows = left.keys.row
            if len(rows):
                keys = block.keys if len(rows) == block.slots else block.keys.take(rows)
                columns = left.columns if self.columns is None else _ordered(self.columns, left.columns)
                heads.append(Block(columns, keys))
                places.append(rows + start)
            start += block.slots
        timing.rows_read += start
        return np.concatenate(places), heads

    def _with_rest(self, reader: Reader, split: Split, lap: int, places: Index, heads: Block) -> Iterator[Block]:
        """Yield all columns of the rows at positions ``places``; ``heads`` has the filters' columns of these rows."""
        if reader.reads_rows(split):
            yield from self._with_rows(reader, split, places, heads)
            return
        done = start = 0
        for block in reader.blocks(split, lap):
            stop = start + block.slots
            upto = int(np.searchsorted(places, stop))
            if upto > done:
                some = heads.slice(done, upto)
                rest = block.columns
                if upto - done < block.slots:
                    rest = _gather(rest, places[done:upto] - start)
                both = {**some.columns, **rest}
                yield some.only_columns(both if self.columns is None else _ordered(self.columns, both))
            start, done = stop, upto
            if done == len(places):
                return
        url = self.plain.source.url(split.file)
        raise SourceError(
            f"{url}: read {start} rows, but the first read had at least {int(places[-1]) + 1}",
            site=self.plain.site,
            done="reading stopped; no row of this split was delivered",
            fix="do not change the data while they are being read",
        )

    def _with_rows(self, reader: Reader, split: Split, places: Index, heads: Block) -> Iterator[Block]:
        """Yield the same as ``_with_rest`` from a source that reads only the rows at ``places``."""
        done = 0
        for rest in reader.columns_of_rows(split, places):
            some = heads.slice(done, done + len(next(iter(rest.values()))))
            both = {**some.columns, **rest}
            yield some.only_columns(both if self.columns is None else _ordered(self.columns, both))
            done += some.slots


def scan_reader(
    reader: Reader,
    columns: Sequence[str] | None,
    steps: Sequence[KernelStep],
    predicates: Sequence[pl.Expr],
    empty: float = _INITIAL_EMPTY_RATE,
) -> ScanReader:
    """Create the reader of a scan.

    Args:
        reader: reads the source as the pipeline was written.
        columns: the output columns, in order; ``"a.b"`` is a field of a struct column. None for all.
        steps: the kernels of the filters, in order.
        predicates: the filters as expressions.
        empty: the expected share of splits without a row that passes.
    """
    source = reader.source
    schema = source.schema()
    predicate = reduce(and_, predicates) if predicates else None
    fused = tuple(fuse_steps(steps))
    if schema is None or not source.selects:
        return ScanReader(reader, reader, fused, predicate, None if columns is None else tuple(columns))
    wanted = list(schema if columns is None else columns)
    tops = {path: path if path in schema else path.partition(".")[0] for path in wanted}  # path to its top-level column
    names = None if columns is None else tuple(dict.fromkeys(tops.values()))
    reads = frozenset[str]() if predicate is None else columns_of(predicate)
    if reads is None:  # a filter has a selector, whose columns are unknown
        return ScanReader(reader, reader, fused, predicate, names)
    first = [path for path in wanted if tops[path] in reads]
    first += _filter_only(reads - {tops[path] for path in first}, predicate, source, schema)
    rest = [path for path in wanted if path not in first]
    everything = [*wanted, *(path for path in first if path not in wanted)]
    narrow = reader if columns is None else _selected(reader, everything)
    if not first or not rest or source.second_read_cost_bytes is None:
        return ScanReader(reader, narrow, fused, predicate, names, reads or None)
    names = tuple(schema) if names is None else names
    others = _selected(reader, rest)
    both = _selected(reader, first), others
    return ScanReader(reader, narrow, fused, predicate, names, reads, *both, others.source.row_bytes, FilterHits(empty))


def _filter_only(
    names: frozenset[str], predicate: pl.Expr | None, source: BaseSource, schema: Mapping[str, Any]
) -> list[str]:
    """Return the columns that only the filters read, as single struct fields if the source can select fields."""
    fields = fields_of(predicate) if predicate is not None and source.selects == "fields" else {}
    paths: list[str] = []
    for name in sorted(names):
        paths += dotted(name, fields.get(name) or (), dict(schema)) or [name]
    return paths


def _selected(reader: Reader, columns: Sequence[str]) -> Reader:
    selected = reader.source.select(columns)
    selected.schema()  # load the schema here, so that it is sent to the workers
    return replace(reader, source=selected)


def _ordered(names: Sequence[str], columns: Mapping[str, Column]) -> dict[str, Column]:
    return {name: columns[name] for name in names if name in columns}


def _joined(blocks: Iterator[Block]) -> Iterator[Block]:
    """Yield the blocks that have rows, joining small ones."""
    pending: list[Block] = []
    for block in blocks:
        if block.slots:
            pending.append(block)
        if sum(b.slots for b in pending) >= _MIN_BLOCK_ROWS:
            yield concat_blocks(pending)
            pending = []
    if pending:
        yield concat_blocks(pending)


def _gather(columns: Mapping[str, Column], rows: Index) -> dict[str, Column]:
    index = from_numbers(rows)
    return {
        name: column.take(index) if isinstance(column, pa.Array) else take(column, rows)
        for name, column in columns.items()
    }
