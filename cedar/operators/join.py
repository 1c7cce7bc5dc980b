"""join: adds columns of another table, by equal keys or by latest time, or filters by the keys of that table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from cedar.core.block import Block
from cedar.core.boundary import as_columns, first_line, polars_errors, to_frame
from cedar.core.columns import UNKNOWN, ColumnType, Index, unused_name
from cedar.core.errors import PipelineError, require_columns
from cedar.core.groups import plain, take_each
from cedar.core.process import in_fresh_process_after_fork
from cedar.operators.base import BlockKernel, Bound, Effects, Env, Kernel, RowOperator, Schema
from cedar.operators.surveys import StoredTable, Survey, Surveyed

if TYPE_CHECKING:
    import polars as pl


How: TypeAlias = Literal["left", "inner", "semi", "anti"]


@dataclass(frozen=True)
class JoinKeys:
    """The columns by which rows are matched.

    Args:
        left, right: the key columns of the pipeline and of the other table, which must be equal.
        time: the time column of both tables, for ``join_asof``, which matches the latest row that is not later.
        tolerance: how much earlier the matched row may be, as a number, a timedelta or a polars duration string.
    """

    left: tuple[str, ...]
    right: tuple[str, ...]
    time: str | None = None
    tolerance: Any = None

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns of the pipeline that the join reads."""
        return self.left if self.time is None else (*self.left, self.time)

    @property
    def row_indices(self) -> tuple[str, str]:
        """The names of two columns of row indices, of the pipeline and of the other table, which no key has."""
        names = {*self.left, *self.right, self.time or ""}
        return unused_name("__left", names), unused_name("__right", names)


@dataclass(frozen=True)
class Join(RowOperator, Surveyed):
    """Adds columns of another table, or filters by its keys.

    Args:
        keys: the columns by which rows are matched.
        how: "left" keeps every row, with nulls if nothing matches; "inner", "semi" and "anti" filter.
        types: the types of the other table's columns.
        given: (name in the other table, output name) for each column to add.
        several: whether a row may match several rows of the table.
        content: a digest of the other table's content; "" if it is unknown before a run.
        own: a random ID for this pipeline's cache keys, if the other table is a pipeline; otherwise "".
        survey: provides the table, prepared for lookups.

    Raises:
        PipelineError: a key is missing, key types cannot be compared, or two columns have the same name; while running,
            the join comes after a ``batch``.
    """

    keys: JoinKeys
    how: How
    types: tuple[tuple[str, ColumnType], ...]
    given: tuple[tuple[str, str], ...]
    several: bool
    content: str
    own: str
    survey: Survey[StoredTable] = field(repr=False)
    name: ClassVar[str] = "join"

    def label(self) -> str:
        if self.keys.time is not None:
            return f"join_asof({self.keys.time})"
        return (
            f"join({', '.join(self.keys.left)})"
            if self.how == "left"
            else f"{self.how} join({', '.join(self.keys.left)})"
        )

    may_fail = False
    group_use = "kept"

    def effects(self) -> Effects:
        rows: Any = "1:n" if self.several else "1:1" if self.how == "left" else "1:0..1"
        return Effects(frozenset(self.keys.reads), frozenset(name for _, name in self.given), rows=rows)

    def parameters(self) -> dict[str, Any]:
        keys = [list(self.keys.left), list(self.keys.right), self.keys.time, repr(self.keys.tolerance)]
        content = self.content if self.how != "left" or self.several else ""  # only if it determines the row count
        return {
            "content": content,
            "keys": keys,
            "how": self.how,
            "given": [list(pair) for pair in self.given],
            "several": self.several,
        }

    def schema(self, *inputs: Schema) -> Schema:
        (known,) = inputs
        if known is None:
            return None
        require_columns(self.keys.reads, known, self.label())
        types = dict(self.types)
        compared = self.__dict__.setdefault("_compared", set())  # cached, because planning calls this repeatedly
        if (key := tuple(known.items())) not in compared:
            self._compare(known, types)
            compared.add(key)
        for _, name in self.given:
            if name in known:
                raise PipelineError(
                    f"{self.label()}: two columns are named {name!r}", fix="give another suffix=, or rename one of them"
                )
        return known | {name: types[own] for own, name in self.given}

    def _compare(self, known: Mapping[str, ColumnType], types: Mapping[str, ColumnType]) -> None:
        """Join zero rows of these types, to check that polars can compare them."""
        own, others = (
            {n: pa.nulls(0, t) for n, t in kinds.items() if isinstance(t, pa.DataType)} for kinds in (known, types)
        )
        time = [] if self.keys.time is None else [self.keys.time]
        left, right = (*self.keys.left, *time), (*self.keys.right, *time)
        if not all(name in own for name in left):
            return  # some types are unknown before a run
        try:
            matched(self.keys, to_frame({n: own[n] for n in left}), to_frame({n: others[n] for n in right}))
        except polars_errors() + (PipelineError, KeyError) as error:  # noqa: RUF005 - mypy does not see through a star
            shown = ", ".join(f"{a!r} of {known[a]} and {b!r} of {types[b]}" for a, b in zip(left, right, strict=True))
            raise PipelineError(
                f"{self.label()}: key types cannot be compared: {shown}: {first_line(error)}",
                fix="cast one side to the type of the other; a tolerance of times is a timedelta, or a string such as "
                "'2h', and one of numbers is a number",
            ) from error

    def bind(self, bound: Bound) -> Kernel:
        bound.refuse_batches()
        if bound.types is None:
            self.schema(bound.sample().known_types)
        return JoinRows(replace(self, survey=self.survey.under(bound.on_error)))


@dataclass(frozen=True)
class JoinRows(BlockKernel):
    """The kernel of ``join``."""

    operator: Join
    pooled: ClassVar[bool] = True
    row_wise: ClassVar[bool] = True

    @in_fresh_process_after_fork
    def __call__(self, block: Block, env: Env) -> Block:
        operator, types = self.operator, dict(self.operator.types)
        known = block.known_types
        if not len(block) or any(known[name] is UNKNOWN for name in operator.keys.reads):
            blank = {name: pa.nulls(len(block), types[own]) for own, name in operator.given}
            return block.with_columns(blank)
        pairs = self._pairs(block)
        left_index, right_index = operator.keys.row_indices
        if operator.how in ("semi", "anti"):
            matches = np.zeros(len(block), dtype=bool)
            matches[pairs[left_index].to_numpy()] = True
            keep = matches if operator.how == "semi" else ~matches
            return block if keep.all() else block.filter(keep)
        left, right = pairs[left_index].to_numpy().astype(np.int64), pairs[right_index]
        if operator.how == "left":
            left, right = _add_unmatched(left, right, len(block))
        rows = right if isinstance(right, pa.Array) else pa.array(right.to_numpy().astype(np.int64))
        table = operator.survey.value
        columns = {name: table.column(own).take(rows) for own, name in operator.given}
        if not operator.several and len(left) == len(block):
            return block.with_columns(columns)
        joined = take_each(block.columns, left) | columns
        if operator.several:
            return block.expand(joined, np.bincount(left, minlength=len(block)))
        return block.with_slots(joined, left)

    def _pairs(self, block: Block) -> pl.DataFrame:
        """Return the row indices (block, table) of matching rows, ordered by the block's row, then the table's."""
        import polars as pl

        keys, stored = self.operator.keys, self.operator.survey.value
        left_index, right_index = keys.row_indices
        left = to_frame({name: plain(block.columns[name]) for name in keys.reads})
        if keys.left:
            rows = candidates(stored, key_hashes(left.select(keys.left)))
        else:
            rows = _rows_in_time_range(stored, left[keys.time or ""])
        names = keys.right if keys.time is None else (*keys.right, keys.time)
        taken = to_frame({name: stored.column(name).take(pa.array(rows)) for name in names})
        right = taken.with_columns(pl.Series(right_index, rows, dtype=pl.Int64))
        return matched(keys, left.with_row_index(left_index), right)


def matched(keys: JoinKeys, left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
    """Join left rows with matching right rows by polars, ordered by left row, then right row.

    Raises:
        polars.exceptions.PolarsError: the types of the keys cannot be compared.
    """
    import polars as pl

    if keys.time is None:
        return left.join(right, left_on=keys.left, right_on=keys.right, how="inner", maintain_order="left_right")
    time = keys.time
    kind = _common(left.schema[time], right.schema[time])
    if keys.tolerance is not None and kind.is_temporal() != isinstance(keys.tolerance, str | timedelta):
        raise pl.exceptions.SchemaError(f"tolerance={keys.tolerance!r} is not a distance between values of {kind}")
    left = left.filter(
        pl.col(time).is_not_null() & ~pl.col(time).is_nan() if kind.is_float() else pl.col(time).is_not_null()
    )
    sides = [side.with_columns(pl.col(time).cast(kind)).sort(time, maintain_order=True) for side in (left, right)]
    by: dict[str, Any] = {"by_left": list(keys.left), "by_right": list(keys.right)} if keys.left else {}
    made = sides[0].join_asof(sides[1], on=time, tolerance=keys.tolerance, check_sortedness=False, **by)
    left_index, right_index = keys.row_indices
    if right_index not in made.columns:
        return made
    return made.filter(pl.col(right_index).is_not_null()).sort(left_index)


def _common(left: Any, right: Any) -> Any:
    """Return the type to which both time columns are cast for comparison."""
    import polars as pl

    if left.is_integer() and right.is_integer():
        return pl.Int128 if pl.UInt64 in (left, right) and left != right else left if left == right else pl.Int64
    if left.is_numeric() and right.is_numeric():
        return pl.Float64
    if isinstance(left, pl.Datetime) and isinstance(right, pl.Datetime) and left.time_zone == right.time_zone:
        return min(left, right, key=lambda kind: ("ns", "us", "ms").index(kind.time_unit))
    if left != right or left.is_nested():
        raise pl.exceptions.SchemaError(f"{left} and {right} have no common order")
    return left


def _rows_in_time_range(stored: StoredTable, times: pl.Series) -> Index:
    """Return the indices of table rows between the row before the earliest of ``times`` and the latest time."""
    import polars as pl

    known = pl.Series(stored.table.column(times.name))
    kind = _common(times.dtype, known.dtype)
    asked, wide = times.cast(kind).to_physical(), known.cast(kind).to_physical()
    asked = asked.drop_nulls().drop_nans() if kind.is_float() else asked.drop_nulls()
    if not len(asked) or not len(wide):
        return np.empty(0, dtype=np.int64)
    ends = pl.Series([asked.min(), asked.max()], dtype=asked.dtype)
    before, last = wide.search_sorted(ends, side="right").to_list()
    return np.arange(max(before - 1, 0), last, dtype=np.int64)


def _add_unmatched(left: Index, right: pl.Series, rows: int) -> tuple[Index, pa.Array]:
    """Return the pairs of row indices, plus a pair with null for each left row without a match."""
    alone = np.ones(rows, dtype=bool)
    alone[left] = False
    every = np.concatenate([left, np.flatnonzero(alone)])
    there = np.concatenate([right.to_numpy().astype(np.int64), np.zeros(int(alone.sum()), dtype=np.int64)])
    order = np.argsort(every, kind="stable")
    missing = np.arange(len(every)) >= len(left)
    return every[order].astype(np.int64), pa.array(there[order], mask=missing[order])


_SHOWN = 3


def key_hashes(frame: pl.DataFrame) -> Any:
    """Return a hash of each row, uint64[rows]; equal keys have equal hashes, even if their integer widths differ."""
    import polars as pl

    def wide(name: str, kind: Any) -> pl.Expr:
        if kind.is_integer():
            return pl.col(name).cast(pl.Int64, wrap_numerical=True)
        return pl.col(name).cast(pl.Float64) if kind.is_float() or kind.is_decimal() else pl.col(name)

    return frame.select(wide(name, kind) for name, kind in frame.schema.items()).hash_rows(0).to_numpy()


def arranged(columns: Mapping[str, Any], keys: Sequence[str], unique: bool, time: str | None = None) -> pa.Table:
    """Return the rows with non-null keys, ordered by the hashes of ``keys``, which are the last column of the result.

    Rows with equal hashes are ordered by ``time`` if given.

    Args:
        columns: the table's Arrow columns.
        keys: the names of the key columns.
        unique: whether two rows with the same keys are an error.
        time: the time column of ``join_asof``.

    Raises:
        PipelineError: ``unique`` is True and two rows have the same keys.
    """
    import polars as pl

    arrays = as_columns(columns)
    frame = to_frame({name: arrays[name] for name in (*keys, *([] if time is None else [time]))})
    valid = ~pl.any_horizontal(pl.col(name).is_null() for name in frame.columns)
    if time is not None and frame.schema[time].is_float():
        valid &= ~pl.col(time).is_nan()
    row, hashed = unused_name("__row", arrays), unused_name("__hash", arrays)
    rows = frame.with_row_index(row).filter(valid)
    hashes = pl.Series(hashed, key_hashes(rows.select(keys)) if keys else np.zeros(len(rows), dtype=np.uint64))
    rows = rows.with_columns(hashes).sort([hashed] if time is None else [hashed, time], maintain_order=True)
    if unique:
        found = rows[hashed].to_numpy()
        same = np.concatenate([[False], found[1:] == found[:-1]])
        _refuse_duplicates(rows.filter(pl.Series(same | np.append(same[1:], False))).select(keys))
    order = pa.array(rows[row].to_numpy().astype(np.int64))
    made = {name: array.take(order) for name, array in arrays.items()}
    return pa.table(made | {hashed: pa.array(rows[hashed].to_numpy())})


def _refuse_duplicates(keys: pl.DataFrame) -> None:
    twice = keys.filter(keys.is_duplicated())
    if len(twice):
        shown = [row if len(row) > 1 else row[0] for row in twice.unique(maintain_order=True).head(_SHOWN).iter_rows()]
        raise PipelineError(
            f"join: {len(twice)} rows of the other table share their keys, such as {', '.join(map(repr, shown))}",
            fix='make them unique first, or give validate="m:m" for a row for each pair',
        )


def candidates(stored: StoredTable, hashes: Any) -> Index:
    """Return the indices of the table's rows that have one of these hashes, int64, ascending."""
    known = stored.numbers(stored.table.column_names[-1])
    asked = np.sort(hashes)  # np.unique takes ten times as long if most values differ
    asked = asked[np.append(True, asked[1:] != asked[:-1])] if len(asked) else asked
    first = np.searchsorted(known, asked)
    there = known[np.minimum(first, len(known) - 1)] == asked if len(known) else np.zeros(len(asked), dtype=bool)
    first, last = first[there], np.searchsorted(known, asked[there], side="right")
    counts = last - first
    starts = np.repeat(first - (np.cumsum(counts) - counts), counts)
    found: Index = starts + np.arange(len(starts), dtype=np.int64)
    return found
