"""Transforms: functions that work on whole columns and declare their result types.

``map`` accepts transforms: ``p.map(FirstX(20), "history")`` runs once per block instead of once per row. Transforms
with equal parameters are equal. A row's result depends only on the row, and on its random draws if there are any.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import pyarrow as pa

from cedar.core.block import Block
from cedar.core.boundary import as_column
from cedar.core.columns import UNKNOWN, Column, ColumnType, blank, objects, type_of
from cedar.core.errors import PipelineError, invalid_call
from cedar.core.groups import plain
from cedar.operators.base import BlockKernel, Env, checked_result
from cedar.operators.calls import key_hashes, pick
from cedar.operators.draws import Draws
from cedar.operators.failures import ErrorContext, Failure, settle_each


@dataclass(frozen=True)
class Link:
    """A transform in a chain, with the columns that it reads and writes.

    Attributes:
        exact: False if the result may differ within ``Transform.tolerance``.
        like: the type that ``Transform.like`` found in a sample of the first column read; None if it found none.
    """

    transform: Transform
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    exact: bool = True
    like: ColumnType | None = None


class Chainable(ABC):
    """An operator that may be a whole-column transform, which can be fused with others in a chain."""

    @property
    @abstractmethod
    def link(self) -> Link | None:
        """The transform; None if the operator is not one."""

    @abstractmethod
    def loosened(self) -> Self:
        """Return a copy of the operator that may give inexact results within the tolerance of its transform."""


@dataclass(frozen=True)
class ChainFault:
    """The reason why a transform has no result for a row: its index in the chain, the problem, and the fix."""

    link: int
    why: str
    fix: str


class Chain(Protocol):
    """Runs several transforms of a family in one kernel. The result equals running them one after the other. It is
    bit-identical if all links are exact.
    """

    def joins(self, below: Sequence[Link], above: Link) -> bool:
        """Return whether the transform ``above`` can be appended to the chain of transforms ``below``."""

    def run(
        self, links: Sequence[Link], columns: Mapping[str, Column], draws: Sequence[Draws | None]
    ) -> tuple[dict[str, Column], dict[int, ChainFault]]:
        """Return the output columns and the faults by row; entries of a failed row may have any value of the type.

        Args:
            links: the transforms, in order.
            columns: the plain input columns of the links, except those that other links produce.
            draws: for each link, the rows' random draws; None if the link is not random.

        Raises:
            PipelineError: a column has a type that a link does not accept.
        """


_PLAIN = (str, int, float, tuple, type(None))


class BadValues(Exception):
    """Raised by a transform that failed on some rows, with the problem of each row and a fix."""

    def __init__(self, rows: dict[int, str], fix: str) -> None:
        super().__init__(next(iter(rows.values()), ""))
        self.rows, self.fix = rows, fix


class Transform(ABC):
    """A function of one or several columns; subclasses are frozen dataclasses.

    Attributes:
        arity: the number of columns that the transform reads; None for one or more.
        outputs: the number of columns that the transform writes; None for as many as it reads.
        random: whether the transform draws random numbers, so that ``columns`` receives ``draws=``.
        per_row: whether most time is spent per row rather than per call, so that small blocks have little overhead.
        waits: whether the transform may wait for I/O, such as a service or a file.
        larger: whether the result is known to be larger than the input, as for decoded images.
        mixes_rows: whether a row's result depends on the row's batch; such a transform works only after ``batch``.
        chain: the ``Chain`` that fuses several such transforms into one kernel; None if they cannot be fused.
        arity_fix: the advice for a call with another number of columns.
    """

    arity: ClassVar[int | None] = 1
    outputs: ClassVar[int | None] = 1
    random: ClassVar[bool] = False
    per_row: ClassVar[bool] = False
    waits: ClassVar[bool] = False
    larger: ClassVar[bool] = False
    mixes_rows: ClassVar[bool] = False
    chain: ClassVar[Chain | None] = None
    arity_fix: ClassVar[str] = "name them"

    @abstractmethod
    def result(self, *types: Any) -> ColumnType | tuple[ColumnType, ...]:
        """Return the type of the result for columns of these types; a tuple if the transform writes several columns.

        Raises:
            PipelineError: the transform does not accept these types.
        """

    @abstractmethod
    def columns(self, *columns: Any, **draws: Any) -> Column | tuple[Column, ...]:
        """Return the result for columns of accepted types, one entry per row; a tuple of results for several columns.

        A random transform receives ``draws=``, the rows' random draws.

        Raises:
            BadValues: some rows have no result.
        """

    def describe(self, draws: Draws, *columns: Any) -> list[dict[str, Any]]:
        """Describe each row's random choices, as a dict by name, computed from the same draws as in ``columns``.

        By default, the dict contains the row's seed as ``word``: ``Draws(np.array([word], np.uint64))`` repeats draws.

        Args:
            draws: the draws of the rows, on each of which ``columns`` succeeded.
            columns: the columns that the transform reads.
        """
        del columns
        return [{"word": word} for word in draws.words.tolist()]

    def tolerance(self, above: Sequence[Transform]) -> str:
        """Describe how far the result may differ with ``exact=False`` before the transforms ``above``; "" if exact."""
        del above
        return ""

    def like(self, sample: Callable[[], Column]) -> ColumnType | None:
        """Return the type of all rows of an object column, inferred from a sample; None if types may differ."""
        del sample
        return None

    def __call__(self, *values: Any, draws: Draws | None = None) -> Any:
        """Return the result for one row, given as Python values; a random transform also needs the row's ``draws``.

        Raises:
            PipelineError: the transform does not accept the values' types.
            ValueError: the values have no result.
        """
        arrays = [as_column(one_row(value)) for value in values]
        self.result(*(type_of(array) for array in arrays))
        try:
            columns = self.columns(*arrays) if draws is None else self.columns(*arrays, draws=draws)
        except BadValues as bad:
            raise ValueError(str(bad)) from None
        made = [column[0].as_py() if isinstance(column, pa.Array) else column[0] for column in as_tuple(columns)]
        return tuple(made) if isinstance(columns, tuple) else made[0]

    @property
    def identity(self) -> str:
        """Identifies the transform and its plain parameters in a string; resuming warns if it changed. Subclasses must
        add parameters that are not plain values, such as a vocabulary.
        """
        values = {f.name: getattr(self, f.name) for f in fields(self)} if is_dataclass(self) else vars(self)
        return f"{type(self).__name__}{ {name: v for name, v in values.items() if isinstance(v, _PLAIN)} }"

    @property
    def pooled(self) -> bool:
        """Whether a library's threads do the work, so that the calling thread's CPU time does not include it."""
        return False

    def unfit(self, kind: ColumnType, wants: str, fix: str = "cast the column, or map it first") -> PipelineError:
        """Return the error for a column of a type that the transform does not accept."""
        if isinstance(kind, pa.StructType) and kind.get_field_index("bytes") >= 0:  # as Hugging Face stores files
            fix = 'take the bytes first, for example .with_columns(bytes=col("image").struct.field("bytes"))'
        return PipelineError(f"{type(self).__name__} takes {wants}, not {kind}", fix=fix)


def as_tuple(made: Any) -> tuple[Any, ...]:
    """Return a transform's result as a tuple with one entry for each column that it writes."""
    return made if isinstance(made, tuple) else (made,)


def one_row(value: Any) -> Any:
    """Return a column with one row that contains this value."""
    if isinstance(value, np.ndarray) and value.ndim:
        return value[None] if value.dtype != object else objects([value])
    return pa.array([value])


def check_transform(
    transform: Transform,
    columns: tuple[str, ...],
    into: tuple[str, ...],
    random: bool,
    dtype: Any,
    timeout: float | None,
) -> None:
    """Check that the arguments of ``map`` fit a transform.

    Raises:
        PipelineError: an argument does not fit; the error names the user's line.
    """
    name, arity = type(transform).__name__, transform.arity
    if not columns or (arity is not None and len(columns) != arity):
        wants = f"{arity} column{'s' * (arity > 1)}" if arity is not None else "at least one column"
        raise invalid_call(f"map({name}): it reads {wants}, not {len(columns)}", fix=transform.arity_fix)
    writes = len(columns) if transform.outputs is None else transform.outputs
    if len(into) != writes:
        wants = "one column" if writes == 1 else f"{writes} columns"
        raise invalid_call(f"map({name}): it writes {wants}, not {len(into)}", fix="give into=")
    if random or dtype is not None or timeout is not None:
        odd = "random=" if random else "dtype=" if dtype is not None else "timeout="
        raise invalid_call(f"map({name}, {odd}...): a transform does not accept it", fix="leave it out")


@dataclass(frozen=True)
class TransformRows(BlockKernel):
    """The kernel of one transform; ``draw`` is the operator's own seed, for a random transform."""

    link: Link
    blame: ErrorContext
    draw: int = 0

    @property
    def row_wise(self) -> bool:
        return not self.link.transform.mixes_rows

    @property
    def pooled(self) -> bool:
        return self.link.transform.pooled

    def __call__(self, block: Block, env: Env) -> Block:
        transform = self.link.transform
        if transform.chain is not None:
            return ChainRows((self,))(block, env)
        arrays = [plain(pick(block, name, self.blame)) for name in self.link.reads]
        draws = self.draws(block, env)
        try:
            types = as_tuple(transform.result(*(type_of(array) for array in arrays)))
            made = as_tuple(transform.columns(*arrays) if draws is None else transform.columns(*arrays, draws=draws))
        except BadValues as bad:
            faults = {row: ChainFault(0, why, bad.fix) for row, why in bad.rows.items()}
            return self(_drop_failed(block, env, [self], faults), env)
        except PipelineError as error:
            return _result_without_rows(block, [self], error)
        results = zip(self.link.writes, made, types, strict=True)
        return block.with_columns({name: checked_result(name, values, len(block), t) for name, values, t in results})

    def draws(self, block: Block, env: Env) -> Draws | None:
        """Return the draws of a block's live rows; None if the transform is not random."""
        if not self.link.transform.random:
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
        return self.link.transform.describe(draws, *(plain(pick(block, n, self.blame)) for n in self.link.reads))

    def fuse(self, above: BlockKernel) -> ChainRows | None:
        return ChainRows((self,)).fuse(above)


@dataclass(frozen=True)
class ChainRows(BlockKernel):
    """The kernel of several transforms of one family, which a ``Chain`` runs together."""

    parts: tuple[TransformRows, ...]
    row_wise: ClassVar[bool] = True
    samples_parts: ClassVar[bool] = True

    def __call__(self, block: Block, env: Env) -> Block:
        chain, links = self.parts[0].link.transform.chain, [part.link for part in self.parts]
        assert chain is not None
        made: set[str] = set()
        columns: dict[str, Column] = {}
        for part in self.parts:
            columns |= {name: plain(pick(block, name, part.blame)) for name in part.link.reads if name not in made}
            made |= set(part.link.writes)
        try:
            done, faults = chain.run(links, columns, [part.draws(block, env) for part in self.parts])
        except PipelineError as error:
            return _result_without_rows(block, self.parts, error)
        after = block.with_columns(done)
        return _drop_failed(after, env, self.parts, faults) if faults else after

    @property
    def inexact(self) -> bool:
        return not all(part.link.exact for part in self.parts)

    def fuse(self, above: BlockKernel) -> ChainRows | None:
        """Return the chain extended by the next kernel; None if it cannot join the chain."""
        chain = self.parts[0].link.transform.chain
        if chain is None or not isinstance(above, TransformRows) or above.link.transform.chain is not chain:
            return None
        joins = chain.joins([part.link for part in self.parts], above.link)
        return ChainRows((*self.parts, above)) if joins else None


def _result_without_rows(block: Block, parts: Sequence[TransformRows], error: PipelineError) -> Block:
    """Return the result for a block without rows, whose types are unknown; raise the error for any other block."""
    known, links = block.known_types, [part.link for part in parts]
    if any(known.get(name) is UNKNOWN for link in links for name in link.reads):
        return block.with_columns({name: blank(UNKNOWN, 0) for link in links for name in link.writes})
    error.site = error.site or parts[0].blame.site
    raise error


def _drop_failed(block: Block, env: Env, parts: Sequence[TransformRows], faults: dict[int, ChainFault]) -> Block:
    """Return the block without failed rows; attribute each failure to the transform that failed.

    Raises:
        RowError: a failure ends the run; the error names the first failed row of the first such transform.
    """
    ending = [(fault.link, row) for row, fault in faults.items() if parts[fault.link].blame.stops(env)]
    rows = [min(ending)[1]] if ending else list(faults)
    failures = {}
    for row in rows:
        fault, blame = faults[row], parts[faults[row].link].blame
        failures[row] = blame, Failure(f"{blame.label}: {fault.why}", fault.why, fault.fix)
    return settle_each(block, env, failures)
