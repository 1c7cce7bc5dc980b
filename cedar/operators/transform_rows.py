"""The kernels of ``map`` for a transform or a chain of transforms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from cedar.core.block import Block
from cedar.core.columns import UNKNOWN, Column, ColumnType, blank, type_of
from cedar.core.errors import PipelineError
from cedar.core.groups.column import plain
from cedar.operators.arguments import key_hashes, pick
from cedar.operators.base import Env
from cedar.operators.chains import ChainFault, Link
from cedar.operators.draws import Draws
from cedar.operators.failures import ErrorContext, Failure
from cedar.operators.kernel import BlockKernel
from cedar.operators.transform import BadValues, Transform, as_tuple


@dataclass(frozen=True)
class TransformRows(BlockKernel):
    """The kernel of one transform; ``draw`` is the operator's own seed, for a random transform.

    ``Link`` describes ``exact`` and ``like``.
    """

    transform: Transform
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    blame: ErrorContext
    draw: int = 0
    exact: bool = True
    like: ColumnType | None = None

    @property
    def row_wise(self) -> bool:
        return not self.transform.mixes_rows

    def __call__(self, block: Block, env: Env) -> Block:
        if self.transform.chain is not None:
            return ChainRows((self,))(block, env)
        arrays = [plain(pick(block, name, self.blame)) for name in self.reads]
        draws = self.draws(block, env)
        try:
            self.transform.result(*(type_of(array) for array in arrays))
            made = self.transform.columns(*arrays) if draws is None else self.transform.columns(*arrays, draws=draws)
        except BadValues as bad:
            return self(
                _drop_failed(block, env, [self], {row: ChainFault(0, why, bad.fix) for row, why in bad.rows.items()}),
                env,
            )
        except PipelineError as error:
            if (unknown := _result_without_rows(block, [self])) is not None:
                return unknown
            error.site = error.site or self.blame.site
            raise
        return block.with_columns(dict(zip(self.writes, as_tuple(made), strict=True)))

    def draws(self, block: Block, env: Env) -> Draws | None:
        """Return the draws of a block's live rows; None if the transform is not random."""
        if not self.transform.random:
            return None
        if not block.aligned:
            raise PipelineError(
                f"{self.blame.label} draws for each row, but an earlier function resized the batch",
                site=self.blame.site,
                fix="call it before that function",
            )
        return Draws(key_hashes(block, env, self.draw))

    def describe(self, block: Block, env: Env) -> list[dict[str, Any]]:
        draws = self.draws(block, env)
        if draws is None:
            return []
        return self.transform.describe(draws, *(plain(pick(block, name, self.blame)) for name in self.reads))

    @property
    def pooled(self) -> bool:
        return self.transform.pooled

    @property
    def link(self) -> Link:
        return Link(self.transform, self.reads, self.writes, self.exact, self.like)

    def fuse(self, above: BlockKernel) -> ChainRows | None:
        return ChainRows((self,)).fuse(above)


@dataclass(frozen=True)
class ChainRows(BlockKernel):
    """The kernel of several transforms of one family, which a ``Chain`` runs together."""

    parts: tuple[TransformRows, ...]
    row_wise: ClassVar[bool] = True
    samples_parts: ClassVar[bool] = True

    def __call__(self, block: Block, env: Env) -> Block:
        chain = self.parts[0].transform.chain
        assert chain is not None
        made: set[str] = set()
        columns: dict[str, Column] = {}
        for part in self.parts:
            columns |= {name: plain(pick(block, name, part.blame)) for name in part.reads if name not in made}
            made |= set(part.writes)
        try:
            done, faults = chain.run([p.link for p in self.parts], columns, [p.draws(block, env) for p in self.parts])
        except PipelineError as error:
            if (unknown := _result_without_rows(block, self.parts)) is not None:
                return unknown
            error.site = error.site or self.parts[0].blame.site
            raise
        after = block.with_columns(done)
        return _drop_failed(after, env, self.parts, faults) if faults else after

    @property
    def inexact(self) -> bool:
        return not all(part.exact for part in self.parts)

    def fuse(self, above: BlockKernel) -> ChainRows | None:
        """Return the chain extended by the next kernel; None if it cannot join the chain."""
        chain = self.parts[0].transform.chain
        if chain is None or not isinstance(above, TransformRows) or above.transform.chain is not chain:
            return None
        joins = chain.joins([part.link for part in self.parts], above.link)
        return ChainRows((*self.parts, above)) if joins else None


def _result_without_rows(block: Block, parts: Sequence[TransformRows]) -> Block | None:
    """Return the result for a block without rows and with unknown types; None for any other block."""
    known = block.known_types
    if all(known.get(name) is not UNKNOWN for part in parts for name in part.reads):
        return None
    return block.with_columns({name: blank(UNKNOWN, 0) for part in parts for name in part.writes})


def _drop_failed(block: Block, env: Env, parts: Sequence[TransformRows], faults: dict[int, ChainFault]) -> Block:
    """Return the block without failed rows; attribute each failure to the transform that failed.

    Raises:
        RowError: a failure ends the run; the error names the first failed row of the first such transform.
    """
    failures = {row: _failure(parts[fault.link], fault) for row, fault in faults.items()}
    ending = [row for row, fault in faults.items() if parts[fault.link].blame.stops(env)]
    if not block.aligned:  # a function resized the batch, so its rows have no keys
        row = min(failures)
        raise parts[faults[row].link].blame.error(failures[row], None)
    if ending:
        link, row = min((faults[row].link, row) for row in ending)
        return parts[link].blame.settle(block, env, {row: failures[row]})
    if env.sampling:
        return parts[0].blame.settle(block, env, failures)
    return block.kill({row: parts[faults[row].link].blame.skipped(failure) for row, failure in failures.items()})


def _failure(part: TransformRows, fault: ChainFault) -> Failure:
    return Failure(f"{part.blame.label}: {fault.why}", fault.why, fault.fix)
