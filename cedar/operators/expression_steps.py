"""The steps of expression operators, and their compilation to a polars query for the column types of a block.

The operators ``with_columns``, ``select``, ``filter``, ``drop`` and ``rename`` each have a step. A *program* lists the
columns that the query reads, the columns that bypass it, and the query. Queries use ``with_columns_seq`` and
``select_seq``, which compute in the calling thread: with a task per core, polars' threads would wait for a core.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.types as pt

from cedar.core.boundary import (
    NoColumn,
    column_named,
    columns_named,
    first_line,
    polars_errors,
    polars_type,
    type_of_series,
)
from cedar.core.columns import OBJECT, UNKNOWN, ColumnType, unused_name
from cedar.core.errors import PipelineError, missing_column, require_columns
from cedar.core.process import in_fresh_process_after_fork
from cedar.operators.elementwise import OTHER_ROWS_FIX, judge, lists_without_nulls
from cedar.operators.expression_nodes import (
    columns_of,
    format_expr,
    named_columns,
    resolve_selectors,
    selects_by_type,
    too_deep,
)
from cedar.operators.failures import ErrorContext

if TYPE_CHECKING:
    import polars as pl

Named: TypeAlias = "tuple[str | None, pl.Expr]"  # (name, expression); None keeps the expression's own names
Types: TypeAlias = tuple[tuple[str, ColumnType], ...]
Query: TypeAlias = "Callable[[pl.LazyFrame], pl.LazyFrame]"
Resolved: TypeAlias = "tuple[pl.Expr, dict[str, ColumnType], frozenset[str]]"  # expression, result types, columns read


@dataclass(frozen=True)
class StepColumn:
    """A column between steps: its type, the input column that it is unchanged from, and whether it is in the query."""

    type: ColumnType
    origin: str | None = None
    inside: bool = True


Columns: TypeAlias = dict[str, StepColumn]


class StepWalk:
    """State collected while applying steps in order.

    ``entered``: input columns that expressions read. ``fresh``: computed columns that no later step has read so far. If
    a step drops one, polars would not compute it, and fusing operators would change which failing rows are reported.
    Such a column is therefore kept under a hidden name in ``unread``. ``known``: resolved expressions, shared by all
    walks of the same steps. ``refuse_failing``: whether to refuse expressions that fail even on zero rows.
    """

    def __init__(
        self, names: Iterable[str] = (), known: dict[Any, Resolved] | None = None, refuse_failing: bool = False
    ) -> None:
        self.refuse_failing = refuse_failing
        self.known = {} if known is None else known
        self.names = set(names)  # names of all columns, including intermediate ones
        self.entered: set[str] = set()
        self.fresh: set[str] = set()
        self.unread: list[str] = []
        self.row: list[str] = []

    def hide(self, gone: Iterable[str]) -> list[pl.Expr]:
        """Return expressions that keep dropped columns under hidden names if no step has read them."""
        hidden = []
        for name in gone:
            if name in self.fresh:
                self.fresh.discard(name)
                self.unread.append(self.hidden(f"unread_{len(self.unread)}"))
                hidden.append(column_named(name).alias(self.unread[-1]))
        return hidden

    def hidden(self, purpose: str) -> str:
        """Return a name that no column has, for a hidden column."""
        return unused_name(f"__cedar_{purpose}", self.names)

    def resolve(
        self, name: str | None, expr: pl.Expr, blame: ErrorContext, columns: Columns
    ) -> tuple[pl.Expr, dict[str, ColumnType]]:
        """Return a resolved expression, and its results' names and types; record which columns it reads."""
        key = id(blame), id(expr), name
        if key not in self.known:
            try:
                self.known[key] = _resolved(name, expr, blame, columns)
            except RecursionError as error:
                raise too_deep(blame.site) from error
        resolved, types, reads = self.known[key]
        if self.refuse_failing and UNKNOWN not in types.values():
            problem = _error_on_empty_frame(resolved, _empty_frame({read: columns[read].type for read in reads}))
            if problem is not None:  # for example, a comparison of strings with numbers
                raise blame.refusal(
                    f"{format_expr(resolved)} fails on every row: {problem}",
                    fix="cast its columns, if their types do not go together",
                )
        self.fresh -= reads
        self.entered |= {origin for read in reads if (origin := columns[read].origin) is not None}
        return resolved, types


class Step(ABC):
    """One operator's part of a query."""

    blame: ErrorContext

    @abstractmethod
    def apply(self, columns: Columns, walk: StepWalk) -> tuple[Columns, Query | None]:
        """Return the columns after the step, and its part of the query; None if the query does not change."""


@dataclass(frozen=True, eq=False)
class AddColumns(Step):
    """Adds or replaces columns."""

    items: tuple[Named, ...]
    blame: ErrorContext

    def apply(self, columns: Columns, walk: StepWalk) -> tuple[Columns, Query | None]:
        exprs: list[pl.Expr] = []
        results: Columns = {}
        for name, expr in self.items:
            resolved, types = walk.resolve(name, expr, self.blame, columns)
            exprs.append(resolved)
            _add_results(results, {result: StepColumn(kind) for result, kind in types.items()}, self.blame)
        exprs += walk.hide(name for name in results if name in columns)
        walk.fresh |= set(results)
        return {**columns, **results}, lambda frame: frame.with_columns_seq(exprs)


@dataclass(frozen=True, eq=False)
class KeepColumns(Step):
    """Keeps only the results of ``items``, which are expressions or names of columns."""

    items: tuple[Named | str, ...]
    blame: ErrorContext

    def apply(self, columns: Columns, walk: StepWalk) -> tuple[Columns, Query | None]:
        exprs: list[pl.Expr] = []
        kept: Columns = {}
        plain = set()
        for item in self.items:
            name, expr = (item, None) if isinstance(item, str) else item
            if expr is None or (expr.meta.is_column() and name in {None, expr.meta.output_name()}):
                source = item if isinstance(item, str) else item[1].meta.output_name()
                require_columns([source], columns, self.blame.label, self.blame.site)
                results = {source: columns[source]}  # the query does not need to read it
                plain.add(source)
            else:
                resolved, types = walk.resolve(name, expr, self.blame, columns)
                exprs.append(resolved)
                results = {result: StepColumn(kind) for result, kind in types.items()}
            _add_results(kept, results, self.blame)
        gone = [name for name, column in columns.items() if column.inside and name not in plain]
        exprs += walk.hide(gone)
        if not exprs and not gone:
            return kept, None
        walk.fresh |= kept.keys() - plain
        inside = [*(name for name, column in kept.items() if column.inside), *walk.unread, *walk.row]
        # with_columns runs first, so that literals get the frame's number of rows
        return kept, lambda frame: frame.with_columns_seq(exprs).select(columns_named(inside))


@dataclass(frozen=True, eq=False)
class KeepRows(Step):
    """Keeps the rows for which the predicate is true; drops those for which it is false or null."""

    predicate: pl.Expr
    blame: ErrorContext

    def apply(self, columns: Columns, walk: StepWalk) -> tuple[Columns, Query | None]:
        predicate, types = walk.resolve("predicate", self.predicate, self.blame, columns)
        kind = types["predicate"]
        if kind is not UNKNOWN and pt.is_null(kind):
            predicate = predicate.cast(bool)  # polars filters only by booleans
        elif kind is not UNKNOWN and not pt.is_boolean(kind):
            raise self.blame.refusal(
                f"the predicate gives {kind}, not a boolean", fix="compare it: for example col('label') == 1"
            )
        keep = walk.hidden("keep")  # polars computes this column, so that it also raises the predicate's errors
        marked = predicate.alias(keep)

        def query(frame: pl.LazyFrame) -> pl.LazyFrame:
            kept = frame.with_columns_seq(marked).map_batches(partial(_kept_rows, keep), projection_pushdown=False)
            return kept.drop(keep)

        return columns, query


@dataclass(frozen=True, eq=False)
class DropColumns(Step):
    """Removes columns."""

    names: tuple[str, ...]
    blame: ErrorContext

    def apply(self, columns: Columns, walk: StepWalk) -> tuple[Columns, Query | None]:
        require_columns(self.names, columns, self.blame.label, self.blame.site)
        after = {name: column for name, column in columns.items() if name not in self.names}
        gone = [name for name, column in columns.items() if column.inside and name not in after]
        hidden = walk.hide(gone)
        return after, (lambda frame: frame.with_columns_seq(hidden).drop(columns_named(gone))) if gone else None


@dataclass(frozen=True, eq=False)
class RenameColumns(Step):
    """Renames columns by (old, new) pairs, which apply simultaneously."""

    pairs: tuple[tuple[str, str], ...]
    blame: ErrorContext

    def apply(self, columns: Columns, walk: StepWalk) -> tuple[Columns, Query | None]:
        mapping = dict(self.pairs)
        require_columns(mapping, columns, self.blame.label, self.blame.site)
        names = [mapping.get(name, name) for name in columns]
        after = dict(zip(names, columns.values(), strict=True))
        if len(after) != len(columns):
            twice = next(name for name in names if names.count(name) > 1)
            raise self.blame.refusal(f"two columns would be called {twice!r}", fix=f"rename or drop {twice!r} too")
        pairs = {old: new for old, new in self.pairs if columns[old].inside}
        walk.fresh = {pairs.get(name, name) for name in walk.fresh}
        return after, (lambda frame: frame.rename(pairs)) if pairs else None


def _add_results(known: Columns, results: Columns, blame: ErrorContext) -> None:
    for name in results:
        if name in known:
            raise blame.refusal(f"two results would be called {name!r}", fix="name one of them: .alias('y'), or y=...")
    known.update(results)


# ---- compilation -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ExpressionProgram:
    """Steps compiled for the types of a block.

    Args:
        enters: the input columns that the query reads.
        output: names and types of the result columns, in order.
        passed: maps an output name to its unchanged input column, for columns that the query need not return.
        unread: hidden columns that no step reads; they are computed only to report the rows on which they fail.
        queries: the parts of the query, in order.
        filters: whether the query drops rows.
        numbered: whether the query gets a column of row positions, to find the remaining rows or their number.
    """

    enters: tuple[str, ...]
    output: dict[str, ColumnType]
    passed: dict[str, str]
    unread: tuple[str, ...]
    queries: tuple[Query, ...]
    filters: bool
    numbered: bool
    row: str = ""  # the name of the column of row positions, which no other column has

    @property
    def wanted(self) -> list[str]:
        """The columns that the query returns."""
        computed = [name for name in self.output if name not in self.passed]
        return [*computed, *self.unread, *([self.row] if self.filters else [])]


def compile_steps(steps: Sequence[Step], types: Types) -> ExpressionProgram:
    """Compile ``steps`` to a program for columns of ``types``; UNKNOWN types give UNKNOWN results.

    Raises:
        PipelineError: a column is missing, expressions cannot read its type, or types do not fit an expression.
    """
    start = {name: StepColumn(kind, name, inside=False) for name, kind in types}
    walk = StepWalk()
    columns = start
    names = set(start)
    for step in steps:  # first pass: find the input columns that expressions read
        columns, _ = step.apply(columns, walk)
        names |= set(columns)
    entered = walk.entered
    filters = any(isinstance(step, KeepRows) for step in steps)
    if filters:
        entered |= {h.origin for h in columns.values() if h.origin is not None and _is_cheap(h.type)}
    columns = {name: StepColumn(h.type, name, name in entered) for name, h in start.items()}
    walk = StepWalk(names, walk.known)
    walk.row = [walk.hidden("row")] if filters or not entered else []
    queries: list[Query] = []
    uneven = False  # whether there may be a single row or a constant column, which polars computes differently
    for step in steps:
        columns, query = step.apply(columns, walk)
        if query is None:
            continue
        if uneven and not isinstance(step, RenameColumns | DropColumns):
            queries.append(lambda frame: frame.map_batches(whole_columns))
        queries.append(query)
        if not isinstance(step, RenameColumns | DropColumns):
            items = step.items if isinstance(step, AddColumns | KeepColumns) else ()
            constant = any(columns_of(item[1]) == frozenset() for item in items if not isinstance(item, str))
            uneven = constant or isinstance(step, KeepRows)
    return ExpressionProgram(
        tuple(name for name, _ in types if name in entered),
        {name: h.type for name, h in columns.items()},
        {n: h.origin for n, h in columns.items() if h.origin is not None and not (filters and _is_cheap(h.type))},
        tuple(walk.unread),
        tuple(queries),
        filters,
        bool(walk.row),
        walk.hidden("row"),
    )


def _kept_rows(keep: str, data: pl.DataFrame) -> pl.DataFrame:
    """Return the rows where the column ``keep`` is true. ``filter`` of a frame would do it in polars' own threads."""
    mask = data.get_column(keep)
    first, *others = [column.filter(mask) for column in data.get_columns()]
    return first.to_frame().hstack(others)  # ``DataFrame`` would rename a column without a name


def whole_columns(data: pl.DataFrame) -> pl.DataFrame:
    """Return the columns with a single row doubled and constants expanded to all rows.

    Polars computes single values differently: -0.0 + 0 is 0.0 for one row, and -0.0 for several rows.
    """
    import polars as pl

    columns = data.get_columns()
    return pl.DataFrame({s.name: pl.concat([s, s], rechunk=True) if len(s) == 1 else s for s in columns})


def output_types(steps: Sequence[Step], types: Mapping[str, ColumnType]) -> dict[str, ColumnType] | None:
    """Return names and types after ``steps`` without running; None if the names depend on unknown types."""
    columns = {name: StepColumn(kind, name, inside=False) for name, kind in types.items()}
    try:
        for step in steps:
            columns, _ = step.apply(columns, StepWalk(refuse_failing=True))
    except _NamesUnknown:
        return None
    return {name: h.type for name, h in columns.items()}


class _NamesUnknown(Exception):
    """A selector depends on types that are unknown before a run."""


def _resolved(name: str | None, expr: pl.Expr, blame: ErrorContext, columns: Columns) -> Resolved:
    import polars as pl

    several = columns_of(expr) is None or expr.meta.has_multiple_outputs()
    if several and selects_by_type(expr) and any(h.type is UNKNOWN for h in columns.values()):
        raise _NamesUnknown
    try:
        if several:
            expr = resolve_selectors(expr, _empty_frame({name: h.type for name, h in columns.items()}))
        reads = named_columns(expr)
    except pl.exceptions.PolarsError as error:
        raise _type_error(expr, blame, {name: h.type for name, h in columns.items()}, error) from error
    require_columns(reads, columns, blame.label, blame.site)
    types = {read: columns[read].type for read in sorted(reads)}
    for read, kind in types.items():
        if kind is not UNKNOWN and polars_type(kind) is None:
            raise blame.refusal(
                f"{format_expr(expr)} reads column {read!r} of {kind}, which expressions cannot",
                fix=f".map(fn, {read!r}) gives fn its values",
            )
    expr = lists_without_nulls(expr)
    if name is not None:
        expr = expr.alias(name)
    if UNKNOWN in types.values():
        if several:
            raise _NamesUnknown
        return expr, {expr.meta.output_name(): UNKNOWN}, reads
    frame = _empty_frame(types)  # most expressions read only a few of the columns
    try:
        schema = frame.select(expr).collect_schema()
    except pl.exceptions.PolarsError as error:
        raise _type_error(expr, blame, types, error) from error
    refused = judge(expr, frame).refused
    if refused is not None:  # ``check_elementwise`` accepts it, but it depends on other rows on these types
        raise blame.refusal(
            f"{format_expr(expr)} is not row-wise: {refused}",
            fix=f"cast its columns to other types, or use map(fn, ...) on rows, or {OTHER_ROWS_FIX}",
        )
    try:
        given = {result: OBJECT if kind == pl.Object else type_of_series(kind) for result, kind in schema.items()}
        return expr, given, reads
    except NoColumn as reason:
        problem = f"{blame.label}: {format_expr(expr)} gives what no column holds: {reason.problem}"
        raise PipelineError(problem, site=blame.site, fix=reason.fix) from reason


@in_fresh_process_after_fork
def _error_on_empty_frame(expr: pl.Expr, frame: pl.LazyFrame) -> str | None:
    """Return the error of an expression on a frame without rows; None if it succeeds."""
    import polars as pl

    try:
        frame.select(expr).collect(engine="in-memory", optimizations=pl.QueryOptFlags.none())
    except polars_errors() as error:
        return first_line(error)
    return None


def never_fails(expr: pl.Expr, types: Mapping[str, ColumnType] | None) -> bool:
    """Return True if no row can make an expression fail on columns of these types (None: unknown types).

    Examples:
        >>> import polars as pl, pyarrow as pa
        >>> types = {"a": pa.int64(), "s": pa.large_string()}
        >>> never_fails(pl.col("a") + 1, types), never_fails(pl.col("s").cast(pl.Int8), types)
        (True, False)
    """
    import polars as pl

    reads = columns_of(expr)
    if types is None or reads is None or any(polars_type(types.get(name, UNKNOWN)) is None for name in reads):
        return False
    frame = _empty_frame({name: kind for name, kind in types.items() if name in reads})
    try:
        frame.select(expr).collect_schema()
    except pl.exceptions.PolarsError:
        return False
    return not judge(expr, frame).may_fail


def _type_error(expr: pl.Expr, blame: ErrorContext, types: Mapping[str, ColumnType], error: Exception) -> PipelineError:
    import polars as pl

    if isinstance(error, pl.exceptions.StructFieldNotFoundError):  # its message is only the field's name
        fields = dict.fromkeys(field for kind in types.values() for field in _fields(kind))
        return missing_column(first_line(error), [*fields], f"{blame.label}: {format_expr(expr)}", blame.site, "field")
    return blame.refusal(f"{format_expr(expr)} does not fit its columns: {first_line(error)}")


def _fields(kind: ColumnType) -> Iterator[str]:
    """Yield the field names of all structs in a type, at any depth."""
    if isinstance(kind, pa.DataType):
        for field in (kind.field(i) for i in range(kind.num_fields)):
            if pt.is_struct(kind):
                yield field.name
            yield from _fields(field.type)


def _empty_frame(types: Mapping[str, ColumnType]) -> pl.LazyFrame:
    """Return an empty frame with columns of these types; types that polars lacks become Object."""
    import polars as pl

    return pl.LazyFrame(schema={name: polars_type(kind) or pl.Object() for name, kind in types.items()})


def _is_cheap(kind: ColumnType) -> bool:
    """Return whether polars preserves a type exactly and filters it faster than Arrow."""
    if not isinstance(kind, pa.DataType):
        return False
    while pt.is_large_list(kind):
        kind = kind.value_type
    return bool(pt.is_boolean(kind) or pt.is_integer(kind) or pt.is_float32(kind) or pt.is_float64(kind))
