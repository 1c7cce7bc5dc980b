"""The operators with_columns, filter, select, drop and rename; ``expression_kernel`` has their kernels."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from cedar.core.columns import UNKNOWN
from cedar.core.errors import PipelineError, Skip, check_names, invalid_call
from cedar.core.stream import Abstract
from cedar.operators.base import Bound, Effects, Kernel, Mergeable, RowOperator, Schema
from cedar.operators.elementwise import OTHER_ROWS_FIX, check_elementwise
from cedar.operators.expression_kernel import ColumnsKernel, ExpressionKernel
from cedar.operators.expression_nodes import columns_of, format_expr
from cedar.operators.expression_steps import (
    AddColumns,
    DropColumns,
    KeepColumns,
    KeepRows,
    Named,
    RenameColumns,
    Step,
    never_fails,
    output_types,
)
from cedar.operators.failures import ErrorContext

if TYPE_CHECKING:
    import polars as pl


T = TypeVar("T")
Item: TypeAlias = "str | Named"  # a plain column name, or (name, expression), where None keeps the expression's name


def _cached(method: Callable[[Any], T]) -> Callable[[Any], T]:
    """Cache a method's result in the operator, because planning needs it repeatedly and polars computes it slowly."""
    name = f"_{method.__name__}"

    @functools.wraps(method)
    def call(self: Any) -> T:
        if name not in self.__dict__:
            self.__dict__[name] = method(self)
        return self.__dict__[name]  # type: ignore[no-any-return]

    return call


class ByExpressions:
    """An operator whose ``code()`` returns polars expressions, which can be fused into one query."""


class Conditional(Abstract):
    """A filter by a polars expression, which a source may apply earlier."""

    @property
    @abstractmethod
    def condition(self) -> Any:
        """The expression, which is true for the rows to keep."""


class SeparateResults(Abstract):
    """An operator that computes each of its results separately, so that a plan may omit some of them."""

    @property
    @abstractmethod
    def results(self) -> Sequence[str | None]:
        """The names of the results; None for a result that may be several columns."""

    @property
    def projection(self) -> tuple[str, ...] | None:
        """The columns that the operator keeps, if it does nothing else; otherwise None."""
        return None

    @abstractmethod
    def never_fails(self, result: int, types: Schema) -> bool:
        """Return whether the result with this index in ``results`` is computed without errors or side effects."""

    @abstractmethod
    def without(self, results: Container[int]) -> Self | None:
        """Return a copy of the operator without some of its ``results``; None if no result remains."""


class _StepOperator(RowOperator, Mergeable):
    """An operator that is one step of a query of expressions."""

    group_use = "kept"

    @abstractmethod
    def step(self, blame: ErrorContext) -> Step:
        """Return the step, whose failures are attributed to ``blame``."""

    @property
    def may_fail(self) -> bool:
        return bool(self.code())

    def schema(self, *inputs: Schema) -> Schema:
        (known,) = inputs
        if known is None:
            return None
        used, effects = known, self.effects()
        if self.code() and effects.reads is not None and effects.reads <= known.keys():
            used = {name: kind for name, kind in known.items() if name in effects.reads}
        schemas: dict[Hashable, Schema] = self.__dict__.setdefault("_schemas", {})
        key = tuple(used.items())
        if key not in schemas:  # planning needs it repeatedly, and polars computes it slowly
            schemas[key] = output_types((self.step(ErrorContext(0, self.label())),), used)
        types = schemas[key]
        others = known if self.code() and effects.survivors is None else {}
        return None if types is None else {**others, **types}

    def bind(self, bound: Bound) -> Kernel:
        """Return the same kernel in all runs with the same label and site, so that they share its compiled programs."""
        step = self.step(ErrorContext.at(bound))
        kernels: dict[ErrorContext, Kernel] = self.__dict__.setdefault("_kernels", {})
        if step.blame not in kernels:
            kernels[step.blame] = ExpressionKernel((step,)) if self.code() else ColumnsKernel((step,))
        return kernels[step.blame]


class _ItemsOperator(_StepOperator, ByExpressions, SeparateResults):
    """An operator that computes several columns."""

    items: tuple[Item, ...]
    keeps_others: ClassVar[bool]  # whether other columns remain

    @_cached
    def label(self) -> str:
        shown = []
        for name, item in zip(self.results[:6], self.items, strict=False):
            shown.append(format_expr(item[1], 30) if name is None and not isinstance(item, str) else str(name))
        more = [f"... {len(self.items) - 6} more"] if len(self.items) > 6 else []
        return f"{self.name}({', '.join(shown + more)})"

    @_cached
    def effects(self) -> Effects:
        plain = frozenset(item for item in self.items if isinstance(item, str))
        reads = [columns_of(expr) for expr in self.code()]
        written = [result_name(item) for item in self.items if not isinstance(item, str)]
        return Effects(
            reads=plain.union(*(some for some in reads if some is not None)) if None not in reads else None,
            writes=frozenset(name for name in written if name is not None) if None not in written else None,
            survivors=None if self.keeps_others else plain,
        )

    def code(self) -> tuple[Any, ...]:
        return tuple(item[1] for item in self.items if not isinstance(item, str))

    @property
    @_cached
    def results(self) -> list[str | None]:
        return [result_name(item) for item in self.items]

    def never_fails(self, result: int, types: Schema) -> bool:
        item = self.items[result]
        return isinstance(item, str) or never_fails(item[1], types)

    def _others(self, results: Container[int]) -> tuple[Any, ...]:
        return tuple(item for number, item in enumerate(self.items) if number not in results)


@dataclass(frozen=True, eq=False)
class WithColumns(_ItemsOperator):
    """Adds or replaces columns, given as (name, expression) pairs; name None keeps the expression's own names.

    Raises:
        PipelineError: an expression is not row-wise; the message names the offending part.
    """

    items: tuple[Named, ...]
    on_error: Skip | None = None
    name: ClassVar[str] = "with_columns"
    keeps_others = True

    def __post_init__(self) -> None:
        for _, expr in self.items:
            require_elementwise(expr, self.name)

    def step(self, blame: ErrorContext) -> Step:
        return AddColumns(self.items, blame)

    def without(self, results: Container[int]) -> WithColumns | None:
        left = self._others(results)
        return WithColumns(left, self.on_error) if left else None


@dataclass(frozen=True, eq=False)
class FilterExpression(_StepOperator, ByExpressions, Conditional):
    """Keeps the rows for which the predicate is true, and not null. As in polars, NaN is greater than all numbers.

    Raises:
        PipelineError: the predicate is not row-wise.
    """

    predicate: pl.Expr
    on_error: Skip | None = None
    name: ClassVar[str] = "filter"

    def __post_init__(self) -> None:
        require_elementwise(self.predicate, self.name)

    @_cached
    def label(self) -> str:
        return f"filter({format_expr(self.predicate, 60)})"

    @_cached
    def effects(self) -> Effects:
        return Effects(columns_of(self.predicate), frozenset(), rows="1:0..1")

    def code(self) -> tuple[Any, ...]:
        return (self.predicate,)

    def step(self, blame: ErrorContext) -> Step:
        return KeepRows(self.predicate, blame)

    @property
    def condition(self) -> pl.Expr:
        return self.predicate

    def bind(self, bound: Bound) -> Kernel:
        if bound.batched:
            raise PipelineError(
                f"{self.label()} after batch(): an expression would drop rows from batches",
                site=bound.site,
                fix="filter rows before batch(), or give a function that returns one bool per batch",
            )
        return super().bind(bound)


@dataclass(frozen=True, eq=False)
class Select(_ItemsOperator):
    """Keeps only the given columns and expression results, in this order. Columns given by name are not copied."""

    items: tuple[Item, ...]
    on_error: Skip | None = None
    name: ClassVar[str] = "select"
    keeps_others = False

    def __post_init__(self) -> None:
        for item in self.items:
            if not isinstance(item, str):
                require_elementwise(item[1], self.name)
        names = [item if isinstance(item, str) else item[0] for item in self.items]
        for name in names:
            if name is not None and names.count(name) > 1:
                raise invalid_call(f"select: column {name!r} is given twice", fix="use each name once")

    def step(self, blame: ErrorContext) -> Step:
        return KeepColumns(self.items, blame)

    def schema(self, *inputs: Schema) -> Schema:
        if inputs[0] is None:
            return None if None in self.results else {name: UNKNOWN for name in self.results if name is not None}
        return super().schema(*inputs)

    @property
    def projection(self) -> tuple[str, ...] | None:
        return None if self.code() else tuple(item for item in self.items if isinstance(item, str))

    def without(self, results: Container[int]) -> Select:
        return Select(self._others(results), self.on_error)


def filter_expression(predicates: Sequence[Any], on_error: Skip | None) -> FilterExpression:
    """Return the filter that requires all expressions to be true; arguments may be expressions or lists of them."""
    first, *others = list(flattened(predicates)) or [None]
    if (name := next((other for other in others if isinstance(other, str)), None)) is not None:
        raise invalid_call(
            f"filter(expression, {name!r}): an expression names its columns itself",
            fix="leave the columns out, or give a function of them",
        )
    for each in others:
        if not _is_expression(each) or not _is_expression(first):
            raise _not_an_expression(each if _is_expression(first) else first, "filter")
        first = first & each
    return FilterExpression(first, on_error)


def with_columns(*exprs: Any, **named: Any) -> WithColumns:
    """Return the operator for a user's arguments to ``with_columns``: expressions, column names or plain values."""
    items = [(None, as_expression(value, "with_columns")) for value in flattened(exprs)]
    given = [(name, as_expression(value, "with_columns")) for name, value in named.items()]
    return WithColumns((*items, *given))


def select(*names: Any, **named: Any) -> Select:
    """Return the operator for a user's arguments to ``select``: names, expressions, lists or named expressions."""
    items: list[Item] = []
    for value in flattened(names):
        if isinstance(value, int | np.integer | range):
            fix = "select takes names of columns; for rows by number: p.take(100), p.skip(i).take(n)"
            raise invalid_call(f"select: {value!r} is not a column", fix=fix)
        plain = isinstance(value, str) and value != "*" and not value.startswith("^")
        items.append(value if plain else (None, as_expression(value, "select")))
    items.extend((name, as_expression(value, "select")) for name, value in named.items())
    return Select(tuple(items))


def flattened(given: Iterable[Any]) -> Iterator[Any]:
    """Yield a user's arguments, including the items of lists, tuples and generators (as polars allows)."""
    for value in given:
        if isinstance(value, list | tuple | Iterator):
            yield from value
        else:
            yield value


def as_expression(value: Any, label: str) -> pl.Expr:
    """Convert a user's argument to a polars expression: a string names a column, other plain values become literals.

    Raises:
        PipelineError: the argument is a function, an array or another object that is not an expression.
    """
    import polars as pl

    if _is_expression(value):
        return value  # type: ignore[no-any-return]
    if isinstance(value, str):
        return pl.col(value)
    if callable(value) or isinstance(value, np.ndarray | pa.Array | pl.Series | Mapping) or hasattr(value, "detach"):
        raise _not_an_expression(value, label)
    try:
        return pl.lit(value)
    except (TypeError, ValueError, pl.exceptions.PolarsError) as error:
        raise _not_an_expression(value, label) from error


def _is_expression(value: Any) -> bool:
    import polars as pl

    return isinstance(value, pl.Expr)


def _not_an_expression(value: Any, label: str) -> PipelineError:
    kind = "a function" if callable(value) else f"of type {type(value).__name__}"
    fix = "give an expression such as col('x') * 2" + (", named: y=..." if isinstance(value, Mapping) else "")
    if label == "filter":
        fix = "give a condition such as col('x') > 1, or call filter(fn, 'x') with a function of named columns"
    elif callable(value):
        fix = "use .map(fn, columns) for a function, or give an expression such as col('x') * 2"
    return invalid_call(f"{label}: {value!r:.60} is {kind}, not an expression", fix=fix)


def require_elementwise(expr: Any, label: str) -> None:
    """Raise PipelineError at the user's line if ``expr`` is not an expression or depends on other rows."""
    if not _is_expression(expr):
        raise _not_an_expression(expr, label)
    reason = check_elementwise(expr)
    if reason is None:
        return
    why, _, use = reason.partition(": use ")
    fix = f"use {use}" if use else "use .map(fn, ...) or .map_batches(fn)"
    if not use and ("depends on other rows" in why or "one value per row" in why):
        fix = f"use {OTHER_ROWS_FIX}"
    shown = format_expr(expr).replace("python_udf()", "map_*(fn)")  # polars' name for map_elements and map_batches
    raise invalid_call(f"{label}: {shown} is not row-wise: {why}", fix=fix)


def result_name(item: Item) -> str | None:
    """Return the name of an item's only result; None if there may be several."""
    if isinstance(item, str):
        return item
    name, expr = item
    if name is not None:
        return name
    several = columns_of(expr) is None or expr.meta.has_multiple_outputs()
    return None if several else expr.meta.output_name()


class ColumnEdit(Abstract):
    """An operator that only drops or renames columns; what it drops or renames does not count as read."""

    @property
    def renames(self) -> Mapping[str, str]:
        """A mapping from old to new column names."""
        return {}

    @abstractmethod
    def fitted(self, columns: Container[str]) -> Self | None:
        """Return the operator adapted to an input with only these columns; None if the operator becomes unnecessary."""


@dataclass(frozen=True)
class Drop(_StepOperator, ColumnEdit):
    """Removes columns.

    Raises:
        PipelineError: a name is not a string.
    """

    names: tuple[str, ...]
    name: ClassVar[str] = "drop"

    def __post_init__(self) -> None:
        check_names("drop", *self.names)

    def label(self) -> str:
        return f"drop({', '.join(self.names)})"

    def effects(self) -> Effects:
        return Effects(frozenset(), frozenset(self.names))

    def fitted(self, columns: Container[str]) -> Drop | None:
        names = tuple(name for name in self.names if name in columns)
        return None if not names else self if names == self.names else Drop(names)

    def step(self, blame: ErrorContext) -> Step:
        return DropColumns(self.names, blame)


@dataclass(frozen=True)
class Rename(_StepOperator, ColumnEdit):
    """Renames columns by (old, new) pairs. Pairs apply simultaneously, so that two names can be swapped.

    Raises:
        PipelineError: a name is not a string, or two columns get the same name.
    """

    pairs: tuple[tuple[str, str], ...]
    name: ClassVar[str] = "rename"

    def __post_init__(self) -> None:
        for pair in self.pairs:
            for name in pair:
                if not isinstance(name, str):
                    raise invalid_call(f"rename: {name!r} is not a column name", fix="give {'old': 'new'}")
        news = [new for _, new in self.pairs]
        for new in news:
            if news.count(new) > 1:
                raise invalid_call(f"rename: two columns would be called {new!r}", fix="use each new name once")

    def label(self) -> str:
        return f"rename({', '.join(f'{old} -> {new}' for old, new in self.pairs)})"

    def effects(self) -> Effects:
        olds = frozenset(old for old, _ in self.pairs)
        return Effects(olds, olds | {new for _, new in self.pairs})

    @property
    def renames(self) -> Mapping[str, str]:
        return dict(self.pairs)

    def fitted(self, columns: Container[str]) -> Rename | None:
        pairs = tuple(pair for pair in self.pairs if pair[0] in columns)
        return None if not pairs else self if pairs == self.pairs else Rename(pairs)

    def step(self, blame: ErrorContext) -> Step:
        return RenameColumns(self.pairs, blame)


def rename(mapping: Any) -> Rename:
    """Return the operator for a dict that maps old names to new names."""
    if not isinstance(mapping, Mapping):
        raise invalid_call(f"rename: {mapping!r:.60} is not a dict of old to new names", fix="give {'old': 'new'}")
    return Rename(tuple(mapping.items()))
