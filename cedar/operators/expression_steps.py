"""The steps of expression operators, and their compilation to a polars query for the column types of a block.

The operators ``with_columns``, ``select``, ``filter``, ``drop`` and ``rename`` each have a step. A *program* lists the
columns that the query reads, the columns that bypass it, and the query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from cedar.core.columns import OBJECT, UNKNOWN, ColumnType
from cedar.core.errors import PipelineError, missing_column
from cedar.core.forks import in_fresh_process_after_fork
from cedar.operators.elementwise import judge, lists_without_nulls
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


@dataclass(frozen=True, eq=False)
class AddColumns:
    """Adds or replaces columns."""

    items: tuple[Named, ...]
    blame: ErrorContext


@dataclass(frozen=True, eq=False)
class KeepColumns:
    """Keeps only the results of ``items``, which are expressions or names of columns."""

    items: tuple[Named | str, ...]
    blame: ErrorContext


@dataclass(frozen=True, eq=False)
class KeepRows:
    """Keeps the rows for which the predicate is true; drops those for which it is false or null."""

    predicate: pl.Expr
    blame: ErrorContext


@dataclass(frozen=True, eq=False)
class DropColumns:
    """Removes columns."""

    names: tuple[str, ...]
    blame: ErrorContext


@dataclass(frozen=True, eq=False)
class RenameColumns:
    """Renames columns by (old, new) pairs, which apply simultaneously."""

    pairs: tuple[tuple[str, str], ...]
    blame: ErrorContext


Step: TypeAlias = AddColumns | KeepColumns | KeepRows | DropColumns | RenameColumns


@dataclass(frozen=True)
class StepColumn:
    """A column between steps: its type, the input column that it is unchanged from, and whether it is in the query."""

    type: ColumnType
    origin: str | None = None
    inside: bool = True


_Resolved: TypeAlias = "tuple[pl.Expr, dict[str, ColumnType], frozenset[str]]"  # expression, result types, columns read
_Query: TypeAlias = "Callable[[pl.LazyFrame], pl.LazyFrame]"


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
    queries: tuple[_Query, ...]
    filters: bool
    numbered: bool
    row: str = ""  # the name of the column of row positions, which no other column has

    @property
    def wanted(self) -> list[str]:
        """The columns that the query returns."""
        computed = [name for name in self.output if name not in self.passed]
        return [*computed, *self.unread, *([self.row] if self.filters else [])]


class _StepWalk:
    """State collected while compiling the steps in order.

    ``entered``: input columns that expressions read. ``fresh``: computed columns that no later step has read so far. If
    a step drops one, polars would not compute it, and fusing operators would change which failing rows are reported.
    Such a column is therefore kept under a hidden name in ``unread``. ``known``: resolved expressions, shared by all
    walks of the same steps. ``refuse_failing``: whether to refuse expressions that fail even on zero rows.
    """

    def __init__(
        self, names: Iterable[str] = (), known: dict[Any, _Resolved] | None = None, refuse_failing: bool = False
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
        name = f"__cedar_{purpose}"
        while name in self.names:
            name += "_"
        return name


def compile_steps(steps: Sequence[Step], types: Types) -> ExpressionProgram:
    """Compile ``steps`` to a program for columns of ``types``; UNKNOWN types give UNKNOWN results.

    Raises:
        PipelineError: a column is missing, expressions cannot read its type, or types do not fit an expression.
    """
    start = {name: StepColumn(kind, name, inside=False) for name, kind in types}
    walk = _StepWalk()
    columns = start
    names = set(start)
    for step in steps:  # first pass: find the input columns that expressions read
        columns, _ = _apply(step, columns, walk)
        names |= set(columns)
    entered = walk.entered
    filters = any(isinstance(step, KeepRows) for step in steps)
    if filters:
        entered |= {h.origin for h in columns.values() if h.origin is not None and _is_cheap(h.type)}
    columns = {name: StepColumn(h.type, name, name in entered) for name, h in start.items()}
    walk = _StepWalk(names, walk.known)
    walk.row = [walk.hidden("row")] if filters or not entered else []
    queries: list[_Query] = []
    uneven = False  # whether there may be a single row or a constant column, which polars computes differently
    for step in steps:
        columns, query = _apply(step, columns, walk)
        if query is None:
            continue
        if uneven and not isinstance(step, RenameColumns | DropColumns):
            queries.append(_materialized)
        queries.append(query)
        if not isinstance(step, RenameColumns | DropColumns):
            uneven = isinstance(step, KeepRows) or _has_constants(step)
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


def whole_columns(data: pl.DataFrame) -> pl.DataFrame:
    """Return the columns with a single row doubled and constants expanded to all rows.

    Polars computes single values differently: -0.0 + 0 is 0.0 for one row, and -0.0 for several rows.
    """
    import polars as pl

    columns = data.get_columns()
    return pl.DataFrame({s.name: pl.concat([s, s], rechunk=True) if len(s) == 1 else s for s in columns})


def _materialized(frame: pl.LazyFrame) -> pl.LazyFrame:
    return frame.map_batches(whole_columns)


def _has_constants(step: Step) -> bool:
    items = step.items if isinstance(step, AddColumns | KeepColumns) else ()
    return any(not isinstance(item, str) and columns_of(item[1]) == frozenset() for item in items)


def output_types(steps: Sequence[Step], types: Mapping[str, ColumnType]) -> dict[str, ColumnType] | None:
    """Return names and types after ``steps`` without running; None if the names depend on unknown types."""
    columns = {name: StepColumn(kind, name, inside=False) for name, kind in types.items()}
    try:
        for step in steps:
            columns, _ = _apply(step, columns, _StepWalk(refuse_failing=True))
    except _NamesUnknown:
        return None
    return {name: h.type for name, h in columns.items()}


class _NamesUnknown(Exception):
    """A selector depends on types that are unknown before a run."""


def _apply(step: Step, columns: dict[str, StepColumn], walk: _StepWalk) -> tuple[dict[str, StepColumn], _Query | None]:
    """Return the columns after a step, and the step's part of the query."""
    if isinstance(step, AddColumns):
        return _apply_add(step, columns, walk)
    if isinstance(step, KeepRows):
        return _apply_keep_rows(step, columns, walk)
    if isinstance(step, KeepColumns) and any(not isinstance(item, str) for item in step.items):
        return _apply_keep(step, columns, walk)
    after = apply_plain(step, columns)
    if isinstance(step, RenameColumns):
        pairs = {old: new for old, new in step.pairs if columns[old].inside}
        walk.fresh = {pairs.get(name, name) for name in walk.fresh}
        return after, (lambda frame: frame.rename(pairs)) if pairs else None
    gone = [name for name, h in columns.items() if h.inside and name not in after]
    hidden = walk.hide(gone)
    return after, (lambda frame: frame.with_columns(hidden).drop(columns_named(gone))) if gone else None


def apply_plain(step: Step, columns: dict[str, StepColumn]) -> dict[str, StepColumn]:
    """Return the columns after a step that only selects, drops or renames."""
    blame = step.blame
    if isinstance(step, KeepColumns):
        names = [item for item in step.items if isinstance(item, str)]
        _require(names, columns, blame)
        return {name: columns[name] for name in names}
    if isinstance(step, DropColumns):
        _require(step.names, columns, blame)
        return {name: h for name, h in columns.items() if name not in step.names}
    assert isinstance(step, RenameColumns)
    mapping = dict(step.pairs)
    _require(mapping, columns, blame)
    after = {mapping.get(name, name): h for name, h in columns.items()}
    if len(after) != len(columns):
        names = [mapping.get(name, name) for name in columns]
        twice = next(name for name in names if names.count(name) > 1)
        raise PipelineError(f"{blame.label}: two columns would be called {twice!r}", site=blame.site)
    return after


def _apply_add(
    step: AddColumns, columns: dict[str, StepColumn], walk: _StepWalk
) -> tuple[dict[str, StepColumn], _Query]:
    exprs: list[pl.Expr] = []
    results: dict[str, StepColumn] = {}
    for name, expr in step.items:
        resolved, types = _resolve(name, expr, step.blame, columns, walk)
        _require_new(types, results, step.blame)
        results.update({result: StepColumn(kind) for result, kind in types.items()})
        exprs.append(resolved)
    exprs += walk.hide(name for name in results if name in columns)
    walk.fresh |= set(results)
    return {**columns, **results}, lambda frame: frame.with_columns(exprs)


def _apply_keep(
    step: KeepColumns, columns: dict[str, StepColumn], walk: _StepWalk
) -> tuple[dict[str, StepColumn], _Query]:
    exprs: list[pl.Expr] = []
    kept: dict[str, StepColumn] = {}
    for item in step.items:
        name, expr = (item, column_named(item)) if isinstance(item, str) else item
        source = expr.meta.output_name() if expr.meta.is_column() else None
        if source in columns and columns[source].origin is not None and name in {None, source}:
            results = {source: columns[source]}  # the query does not need to read an unchanged column
        else:
            resolved, types = _resolve(name, expr, step.blame, columns, walk)
            exprs.append(resolved)
            results = {result: StepColumn(kind) for result, kind in types.items()}
        _require_new(results, kept, step.blame)
        kept.update(results)
    exprs += walk.hide(columns)
    walk.fresh = {name for name, h in kept.items() if h.origin is None}
    inside = [*(name for name, h in kept.items() if h.inside), *walk.unread, *walk.row]
    # with_columns runs first, so that literals get the frame's number of rows
    return kept, lambda frame: frame.with_columns(exprs).select(columns_named(inside))


def _require_new(names: Iterable[str], known: Mapping[str, StepColumn], blame: ErrorContext) -> None:
    for name in names:
        if name in known:
            raise PipelineError(f"{blame.label}: two results would be called {name!r}", site=blame.site)


def _apply_keep_rows(
    step: KeepRows, columns: dict[str, StepColumn], walk: _StepWalk
) -> tuple[dict[str, StepColumn], _Query]:
    predicate, types = _resolve("predicate", step.predicate, step.blame, columns, walk)
    kind = types["predicate"]
    if kind is not UNKNOWN and not pt.is_boolean(kind) and not pt.is_null(kind):
        raise PipelineError(
            f"{step.blame.label}: the predicate gives {kind}, not a boolean",
            site=step.blame.site,
            fix="compare it: for example col('label') == 1",
        )
    if kind is not UNKNOWN and pt.is_null(kind):
        predicate = predicate.cast(bool)  # polars filters only by booleans
    return columns, lambda frame: frame.filter(predicate)


def _resolve(
    name: str | None, expr: pl.Expr, blame: ErrorContext, columns: dict[str, StepColumn], walk: _StepWalk
) -> tuple[pl.Expr, dict[str, ColumnType]]:
    """Return an expression with selectors resolved, and its results' names and types; record the columns it reads."""
    key = id(blame), id(expr), name
    if key not in walk.known:
        try:
            walk.known[key] = _resolved(name, expr, blame, columns)
        except RecursionError as error:
            raise too_deep(blame.site) from error
    resolved, types, reads = walk.known[key]
    if walk.refuse_failing and not any(kind is UNKNOWN for kind in types.values()):
        _require_success(resolved, {read: columns[read] for read in reads}, blame)
    walk.fresh -= reads
    walk.entered |= {origin for read in reads if (origin := columns[read].origin) is not None}
    return resolved, types


def _resolved(name: str | None, expr: pl.Expr, blame: ErrorContext, columns: dict[str, StepColumn]) -> _Resolved:
    import polars as pl

    several = columns_of(expr) is None or expr.meta.has_multiple_outputs()
    if several and selects_by_type(expr) and any(h.type is UNKNOWN for h in columns.values()):
        raise _NamesUnknown
    try:
        if several:
            expr = resolve_selectors(expr, _empty_frame(columns))
        reads = named_columns(expr)
    except pl.exceptions.PolarsError as error:
        raise _type_error(expr, blame, columns, error) from error
    _require(reads, columns, blame)
    for read in sorted(reads):
        _require_readable(read, columns[read].type, expr, blame)
    expr = lists_without_nulls(expr)
    if name is not None:
        expr = expr.alias(name)
    if any(columns[read].type is UNKNOWN for read in reads):
        if several:
            raise _NamesUnknown
        return expr, {expr.meta.output_name(): UNKNOWN}, reads
    frame = _empty_frame({read: columns[read] for read in reads})  # most expressions read only a few of the columns
    try:
        schema = frame.select(expr).collect_schema()
    except pl.exceptions.PolarsError as error:
        raise _type_error(expr, blame, {read: columns[read] for read in reads}, error) from error
    _require_row_wise(expr, frame, blame)
    try:
        return expr, {result: _arrow_type(kind) for result, kind in schema.items()}, reads
    except NoColumn as reason:
        problem = f"{blame.label}: {format_expr(expr)} gives what no column holds: {reason.problem}"
        raise PipelineError(problem, site=blame.site, fix=reason.fix) from reason


def _require_row_wise(expr: pl.Expr, frame: pl.LazyFrame, blame: ErrorContext) -> None:
    """Refuse an expression that ``check_elementwise`` accepts, but that depends on other rows on these types."""
    reason = judge(expr, frame).refused
    if reason is not None:
        raise PipelineError(
            f"{blame.label}: {format_expr(expr)} is not row-wise: {reason}",
            site=blame.site,
            fix="cast its columns to other types, or use map(fn, ...) on rows or map_batches(fn, size=...)",
        )


def _require_success(expr: pl.Expr, columns: Mapping[str, StepColumn], blame: ErrorContext) -> None:
    """Run an expression on zero rows, to raise errors such as for a comparison of strings with numbers."""
    problem = _error_on_empty_frame(expr, _empty_frame(columns))
    if problem is not None:
        fix = "cast its columns, if their types do not go together"
        raise PipelineError(
            f"{blame.label}: {format_expr(expr)} fails on every row: {problem}", site=blame.site, fix=fix
        )


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
        >>> from cedar.operators.expression_steps import never_fails
        >>> types = {"a": pa.int64(), "s": pa.large_string()}
        >>> never_fails(pl.col("a") + 1, types), never_fails(pl.col("s").cast(pl.Int8), types)
        (True, False)
    """
    import polars as pl

    reads = columns_of(expr)
    if types is None or reads is None or any(polars_type(types.get(name, UNKNOWN)) is None for name in reads):
        return False
    frame = _empty_frame({name: StepColumn(kind) for name, kind in types.items() if name in reads})
    try:
        frame.select(expr).collect_schema()
    except pl.exceptions.PolarsError:
        return False
    return not judge(expr, frame).may_fail


def _type_error(
    expr: pl.Expr, blame: ErrorContext, columns: Mapping[str, StepColumn], error: Exception
) -> PipelineError:
    import polars as pl

    if isinstance(error, pl.exceptions.StructFieldNotFoundError):  # its message is only the field's name
        fields = dict.fromkeys(field for each in columns.values() for field in _fields(each.type))
        return missing_column(first_line(error), [*fields], f"{blame.label}: {format_expr(expr)}", blame.site, "field")
    return PipelineError(
        f"{blame.label}: {format_expr(expr)} does not fit its columns: {first_line(error)}", site=blame.site
    )


def _fields(kind: ColumnType) -> Iterator[str]:
    """Yield the field names of all structs in a type, at any depth."""
    if isinstance(kind, pa.DataType):
        for field in (kind.field(i) for i in range(kind.num_fields)):
            if pt.is_struct(kind):
                yield field.name
            yield from _fields(field.type)


def _require(names: Any, columns: Mapping[str, Any], blame: ErrorContext) -> None:
    for name in names:
        if name not in columns:
            raise missing_column(name, list(columns), blame.label, blame.site)


def _require_readable(name: str, kind: ColumnType, expr: pl.Expr, blame: ErrorContext) -> None:
    if kind is UNKNOWN or polars_type(kind) is not None:
        return
    raise PipelineError(
        f"{blame.label}: {format_expr(expr)} reads column {name!r} of {kind}, which expressions cannot",
        site=blame.site,
        fix=f".map(fn, {name!r}) gives fn its values",
    )


def _empty_frame(columns: Mapping[str, StepColumn]) -> pl.LazyFrame:
    """Return an empty frame with the columns' types; types that polars lacks become Object."""
    import polars as pl

    return pl.LazyFrame(schema={name: polars_type(h.type) or pl.Object() for name, h in columns.items()})


def _arrow_type(kind: pl.DataType) -> ColumnType:
    import polars as pl

    if kind == pl.Object:
        return OBJECT
    return type_of_series(kind)


def _is_cheap(kind: ColumnType) -> bool:
    """Return whether polars preserves a type exactly and filters it faster than Arrow."""
    if not isinstance(kind, pa.DataType):
        return False
    while pt.is_large_list(kind):
        kind = kind.value_type
    return bool(pt.is_boolean(kind) or pt.is_integer(kind) or pt.is_float32(kind) or pt.is_float64(kind))
