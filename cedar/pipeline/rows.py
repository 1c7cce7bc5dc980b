"""Pipeline methods for row-wise operators."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from cedar.core.errors import Skip
from cedar.operators.cache import Cache
from cedar.operators.expressions import Drop, filter_expression, flattened, rename, select, with_columns
from cedar.operators.map import FilterFunction, Map
from cedar.operators.map_batches import MapBatches

if TYPE_CHECKING:
    from cedar.operators.base import Operator
    from cedar.pipeline.core import Pipeline

Into = str | tuple[str, ...] | None


class RowMethods:
    """map, filter, expressions and similar methods."""

    __slots__ = ()

    if TYPE_CHECKING:

        def apply(self, operator: Operator) -> Pipeline: ...

    def map(
        self,
        fn: Callable[..., Any],
        *columns: str,
        into: Into = None,
        random: bool = False,
        name: str | None = None,
        dtype: Any = None,
        on_error: Skip | None = None,
        timeout: float | None = None,
    ) -> Pipeline:
        """Call ``fn`` on each row, or, after ``batch``, on each batch.

        Args:
            fn: if columns are named, ``fn(value, ...)`` returns the value for ``into``; otherwise ``fn(row)`` maps a
                dict to a dict. A class is instantiated once per worker. ``async def`` processes many rows concurrently.
            *columns: the columns passed to ``fn``.
            into: the column to write, or a tuple of several; by default the first of ``columns``.
            random: pass ``rng=``, a ``numpy.random.Generator`` keyed by seed, epoch, row and operator.
            name: replaces the operator's position in the pipeline as part of the key of random draws.
            dtype: the result's type; by default from the annotation, else inferred from the first 64 rows.
            on_error: ``cedar.Skip(...)`` drops rows on which ``fn`` fails.
            timeout: maximum seconds for one call.

        Raises:
            PipelineError: the arguments do not fit the function.
            RowError: while running, ``fn`` failed on a row, or its result does not fit the column's type.

        Examples:
            >>> import cedar
            >>> p = cedar.from_items([{"a": 1, "b": 2}])
            >>> list(p.map(lambda a, b: a + b, "a", "b", into="c"))
            [{'a': 1, 'b': 2, 'c': 3}]
        """
        return self.apply(Map(fn, columns, into, random, name, dtype, on_error, timeout))

    def flat_map(
        self,
        fn: Callable[..., Any],
        *columns: str,
        into: Into = None,
        random: bool = False,
        name: str | None = None,
        dtype: Any = None,
        on_error: Skip | None = None,
        timeout: float | None = None,
    ) -> Pipeline:
        """Call ``fn``, which returns an iterable, on each row, and emit one row per item.

        Examples:
            >>> import cedar
            >>> list(cedar.from_items([{"n": 2}]).flat_map(range, "n", into="i"))
            [{'n': 2, 'i': 0}, {'n': 2, 'i': 1}]
        """
        from cedar.operators.flat_map import FlatMap

        return self.apply(FlatMap(fn, columns, into, random, name, dtype, on_error, timeout))

    def filter(self, predicate: Any, *columns: Any, on_error: Skip | None = None) -> Pipeline:
        """Keep rows for which ``predicate``, an expression or a function of columns (or of the row), is true.

        Several expressions must all hold, as in polars.

        Examples:
            >>> import cedar
            >>> from cedar import col
            >>> cedar.from_items([{"x": 1}, {"x": 5}]).filter(col("x") > 2, col("x") < 9).count()
            1
        """
        if callable(predicate) and not hasattr(predicate, "meta"):
            return self.apply(FilterFunction(predicate, columns, on_error=on_error))
        return self.apply(filter_expression((predicate, *columns), on_error))

    def map_batches(
        self,
        fn: Callable[..., Any],
        *columns: str,
        into: Into = None,
        format: Literal["arrow", "polars", "numpy", "torch"] = "arrow",
        size: int | None = None,
        on_error: Skip | None = None,
    ) -> Pipeline:
        """Call ``fn`` on groups of rows, in the given format. ``fn`` must return as many rows as it got.

        Without ``size``, cedar chooses how many rows a call gets, so each row's result must not depend on other rows;
        cedar checks this on samples. With ``size``, each call gets exactly that many rows, and the last one the rest.

        Examples:
            >>> import cedar
            >>> p = cedar.from_items([{"x": 1.0}, {"x": 2.0}])
            >>> [row["x"] for row in p.map_batches(lambda c: {"x": c["x"] * 2}, "x", format="numpy")]
            [2.0, 4.0]
        """
        return self.apply(MapBatches(fn, columns, into, format, size, on_error))

    def with_columns(self, /, *expressions: Any, **named: Any) -> Pipeline:
        """Add or replace columns with elementwise polars expressions.

        Examples:
            >>> import cedar
            >>> from cedar import col
            >>> list(cedar.from_items([{"x": 1}]).with_columns(y=col("x") + 1))
            [{'x': 1, 'y': 2}]
        """
        return self.apply(with_columns(*expressions, **named))

    def select(self, /, *names: Any, **expressions: Any) -> Pipeline:
        """Keep only these columns: names, or expressions.

        Examples:
            >>> import cedar
            >>> list(cedar.from_items([{"x": 1, "y": 2}]).select("y"))
            [{'y': 2}]
        """
        return self.apply(select(*names, **expressions))

    def drop(self, *names: Any) -> Pipeline:
        """Remove these columns: names, or lists of names.

        Examples:
            >>> import cedar
            >>> list(cedar.from_items([{"x": 1, "y": 2}]).drop("y"))
            [{'x': 1}]
        """
        return self.apply(Drop(tuple(flattened(names))))

    def rename(self, names: Mapping[str, str] | None = None, /, **named: str) -> Pipeline:
        """Rename columns: ``{"old": "new"}``, or ``old="new"``.

        Examples:
            >>> import cedar
            >>> list(cedar.from_items([{"x": 1}]).rename({"x": "y"}))
            [{'y': 1}]
        """
        if isinstance(names, Mapping):
            names = {**names, **named}
        return self.apply(rename(named or None if names is None else names))

    def pad(self, *columns: str, to: int | None = None, value: Any = 0) -> Pipeline:
        """Pad list columns to arrays of fixed length: ``to``, or, after ``batch``, the longest list in the batch.

        ``value`` fills the padding. A dict gives a value per column; columns not in it are padded with 0.

        Examples:
            >>> import cedar
            >>> [r["x"].tolist() for r in cedar.from_items([{"x": [1, 2]}]).pad("x", to=3)]
            [[1, 2, 0]]
        """
        from cedar.operators.pad import Pad

        return self.apply(Pad(columns, to, value))

    def cache(self, where: str | os.PathLike[str] = "auto", *, version: str | None = None) -> Pipeline:
        """Cache the output of the preceding deterministic operators.

        This is a hint: results are the same without it.

        Args:
            where: "memory", a directory or URL, or "auto".
            version: a string that replaces cedar's check of the functions' code and state, for functions that cedar
                cannot inspect (``explain()`` reports them). Change it whenever the functions' results change.

        Raises:
            PipelineError: ``where`` or ``version`` is empty or of another type.

        Examples:
            >>> import cedar
            >>> cedar.from_items([{"x": 1}]).map(abs, "x").cache("memory").count()
            1
        """
        return self.apply(Cache(os.fspath(where) if isinstance(where, os.PathLike) else where, version))
