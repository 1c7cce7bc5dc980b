"""Outputs: convert a function's results into columns, whose types are fixed before the first batch.

``fix_outputs`` chooses each type: from ``dtype=``, otherwise from the annotation, otherwise from results on the first
rows of the first split. A later result that does not fit is an error, whose message describes how the type was fixed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal, TypeAlias, get_args, get_origin

import numpy as np
import pyarrow as pa

from cedar.core.boundary import as_column
from cedar.core.buffers import BatchPlace
from cedar.core.columns import OBJECT, Column, ColumnType, TensorType, blank, objects, type_of
from cedar.core.dtypes import infer_type, return_annotation, type_from_annotation, type_from_dtype
from cedar.core.errors import PipelineError, RowError, RowRef, invalid_call, require_columns
from cedar.core.values import ValueMismatch, build_column, describe, is_masked, misfits, type_name
from cedar.operators.failures import BadResult, ErrorContext, Failure

Form: TypeAlias = Literal["value", "tuple", "dict"]
Types: TypeAlias = dict[str, tuple[ColumnType, str]]  # column name to (type, how the type was fixed)

SAMPLED = "the first rows"
NO_ROWS = "a sample that had no rows"


@dataclass(frozen=True)
class SampledResults:
    """The results of a function on the first rows, references to these rows, and the first failure with its row.

    ``asked`` is the number of rows on which the function was called, and ``failed`` of these calls failed.
    """

    results: list[Any]
    rows: list[RowRef | None]
    failure: tuple[Failure, RowRef | None] | None = None
    failed: int = 0
    asked: int = 0


@dataclass(frozen=True)
class Outputs:
    """The columns into which results are converted.

    Args:
        blame: the operator to which invalid results are attributed.
        form: whether a result is the value of a single column, a tuple for several columns, or a dict.
        types: maps a column's name to its type, in the order of the columns.
        origins: how each type was fixed, for messages.
    """

    blame: ErrorContext
    form: Form
    types: dict[str, ColumnType]
    origins: dict[str, str]

    def columns(
        self, results: Sequence[Any], place: BatchPlace | None = None
    ) -> tuple[dict[str, Column], dict[int, Failure]]:
        """Return the columns of the results that fit, and the failures of the other results by index.

        Args:
            place: the batch's memory, into which arrays are written; None allocates new arrays.
        """
        parts, failures = self._split(results)
        try:
            built = {}
            for part, (name, kind) in zip(parts, self.types.items(), strict=True):
                tensor = place is not None and isinstance(kind, TensorType)
                out = place.array(name, len(part), kind.shape, kind.dtype) if tensor else None  # type: ignore[union-attr]
                built[name] = build_column(part, kind, out)
            return built, failures
        except ValueMismatch:
            rows = [i for i in range(len(results)) if i not in failures]
            for part, (name, kind) in zip(parts, self.types.items(), strict=True):
                for i, message in misfits(part, kind).items():
                    text = f"column {name!r}: {message}"
                    what = f"{self.blame.label}, {text}, the type fixed by {self.origins[name]}"
                    other = "another dtype=" if self.origins[name] == "dtype=" else "dtype="
                    fix = f"return one type for every row, or give {other}"
                    failures.setdefault(rows[i], Failure(what, text, fix))
            good, _ = self.columns([r for i, r in enumerate(results) if i not in failures])
            return good, failures

    def arrays(self, result: Any) -> dict[str, Column]:
        """Return the columns of a batch's result, which contains an array per column.

        Raises:
            BadResult: the result has the wrong form or type, or its columns have different lengths.
        """
        arrays = named_arrays(result, self.form, tuple(self.types))
        return _require_equal_lengths(
            {name: array_column(arrays[name], kind, name) for name, kind in self.types.items()}
        )

    def empty(self) -> dict[str, Column]:
        """Return the columns with zero rows."""
        return {name: blank(kind, 0) for name, kind in self.types.items()}

    def _split(self, results: Sequence[Any]) -> tuple[list[Sequence[Any]], dict[int, Failure]]:
        """Return the values per column of results that have the required form, and the failures of the others."""
        if self.form == "value":
            return [results], {}
        wanted: tuple[type, ...] = (Mapping,) if self.form == "dict" else (tuple, list)
        right = all(issubclass(kind, wanted) for kind in set(map(type, results)))
        if right and set(map(len, results)) <= {len(self.types)}:
            with suppress(KeyError):  # the number of columns is correct, but their names may differ
                return self._parts(results), {}
        complaints = {i: self._shape_failure(result) for i, result in enumerate(results)}
        failures = {i: failure for i, failure in complaints.items() if failure is not None}
        return self._parts([r for i, r in enumerate(results) if i not in failures]), failures

    def _parts(self, results: Sequence[Any]) -> list[Sequence[Any]]:
        names = list(self.types)
        if self.form == "dict":
            return [list(map(itemgetter(name), results)) for name in names]
        return list(zip(*results, strict=True)) if results else [() for _ in names]

    def _shape_failure(self, result: Any) -> Failure | None:
        label, names = self.blame.label, list(self.types)
        if self.form == "tuple":
            if isinstance(result, (tuple, list)) and len(result) == len(names):
                return None
            given = f"{len(result)} values" if isinstance(result, (tuple, list)) else describe(result)
            text = f"returned {given}, not a tuple of {len(names)}"
            return Failure(f"{label} {text}", text, f"return a value for each of {', '.join(map(repr, names))}")
        if not isinstance(result, Mapping):
            text = f"returned {describe(result)}, not a row (a dict)"
            return Failure(
                f"{label} {text}", text, "if no columns are named, the function receives and returns a row as a dict"
            )
        lost = [repr(name) for name in names if name not in result]
        extra = [repr(name) for name in result if name not in self.types]
        if not lost and not extra:
            return None
        problems = ["a row without " + ", ".join(lost)] if lost else []
        problems += ["the new column " + ", ".join(extra)] if extra else []
        text = f"returned {' and '.join(problems)}"
        origin = f"the columns were fixed by {SAMPLED}" + (
            f": {', '.join(names)}" if names else ", and there were none"
        )
        return Failure(f"{label} {text}", text, f"{origin}; return the same keys for every row")


# ---- fixing the types ----------------------------------------------------------------------------------------------


def declared_types(fn: Any, form: Form, into: tuple[str, ...], dtype: Any, annotation: Any = None) -> Types:
    """Return name to (type, origin) for the columns whose types ``dtype=`` or the annotation declares.

    Args:
        fn: the user's function.
        form: the form of its results.
        into: the columns written; empty if the results are whole rows.
        dtype: the user's ``dtype=``; a tuple or a dict for several columns.
        annotation: the annotation of one result; by default the return annotation of ``fn``.

    Raises:
        PipelineError: a dtype is not a type, or there are too many or too few of them.
    """
    annotation = return_annotation(fn) if annotation is None else annotation
    declared: Types = {}
    hints: tuple[Any, ...] = (annotation,)
    if form == "tuple":
        hints = get_args(annotation) if get_origin(annotation) is tuple else ()
    if len(hints) == len(into) and Ellipsis not in hints:
        for name, hint in zip(into, hints, strict=True):
            kind = type_from_annotation(hint)
            if kind is not None:
                declared[name] = kind, "the annotation"
    given = _by_name(dtype, form, into) if dtype is not None else {}
    return declared | {name: (type_from_dtype(kind), "dtype=") for name, kind in given.items()}


def _by_name(dtype: Any, form: Form, into: tuple[str, ...]) -> Mapping[str, Any]:
    if isinstance(dtype, Mapping):
        strange = [name for name in dtype if into and name not in into]
        if strange:
            raise invalid_call(
                f"dtype= names {strange[0]!r}, which is not written", fix=f"the columns written are {', '.join(into)}"
            )
        return dtype
    if form == "dict":
        raise invalid_call(
            f"dtype={dtype!r}: the function returns whole rows", fix='give a dict: dtype={"column": "float32"}'
        )
    if form == "value":
        return {into[0]: dtype}
    if not isinstance(dtype, (tuple, list)) or len(dtype) != len(into):
        raise invalid_call(f"dtype={dtype!r}: {len(into)} columns are written", fix=f"give a tuple of {len(into)}")
    return dict(zip(into, dtype, strict=True))


def fix_outputs(
    blame: ErrorContext, form: Form, into: tuple[str, ...], declared: Types, observe: Callable[[], Types]
) -> Outputs:
    """Return the outputs of a function: declared types, and observed types for the other columns."""
    if form != "dict" and len(declared) == len(into):
        fixed = {name: declared[name] for name in into}
    else:
        fixed = observe() | declared
    return Outputs(blame, form, {n: kind for n, (kind, _) in fixed.items()}, {n: why for n, (_, why) in fixed.items()})


def types_of_results(
    blame: ErrorContext, form: Form, into: tuple[str, ...], declared: Types, sampled: SampledResults
) -> Types:
    """Infer the types of the columns that are not declared from the results for the first rows.

    Raises:
        RowError: the function failed on every row of the sample, or returned a value that no column can contain.
        PipelineError: the function returned None for every row.
    """
    if not sampled.results and sampled.failure is not None:
        failure, row = sampled.failure
        if blame.on_error is None:
            raise blame.error(failure, row)
        if not declared or form != "dict":
            raise _unknown(blame, sampled, failure, row)
    _check_sample(blame, sampled)
    names = into
    if form == "dict":
        first = next((result for result in sampled.results if isinstance(result, Mapping)), declared)
        check_row_names(blame, first, declared)
        names = tuple(first)
    why = SAMPLED if sampled.results else "a sample that gave no items" if sampled.asked else NO_ROWS
    parts, failures = Outputs(blame, form, dict.fromkeys(names, pa.null()), {})._split(sampled.results)
    if failures and len(failures) == len(sampled.results):
        raise blame.error(failures[0], sampled.rows[0])
    rows = [row for i, row in enumerate(sampled.rows) if i not in failures]
    return {
        name: declared[name] if name in declared else (_infer(blame, name, values, rows), why)
        for name, values in zip(names, parts, strict=True)
    }


def types_of_arrays(blame: ErrorContext, result: Any, form: Form, into: tuple[str, ...], declared: Types) -> Types:
    """Infer the types of the columns that are not declared from the result for a batch.

    Raises:
        BadResult: the result has a different form, or no column can contain it.
        PipelineError: a column's name is not a string, or a declared column is missing.
    """
    arrays = named_arrays(result, form, into or None)
    check_row_names(blame, arrays, declared)
    columns = {n: array_column(array, declared[n][0] if n in declared else None, n) for n, array in arrays.items()}
    return {name: (type_of(column), SAMPLED) for name, column in _require_equal_lengths(columns).items()}


def _unknown(blame: ErrorContext, sampled: SampledResults, failure: Failure, row: RowRef | None) -> RowError:
    """Return the error for a function whose result type is unknown because it failed on rows of the sample."""
    many = f"all of the first {sampled.asked} rows failed"
    if sampled.failed < sampled.asked:
        many = f"of the first {sampled.asked} rows {sampled.failed} failed, and the others gave no item"
    error = RowError(
        f"{blame.label}: {many}, so the type of what it returns is not known; the first failure: {failure.short}",
        site=blame.site,
        row=row,
        done="stopped before the first batch",
        fix="give dtype= (of whole rows a dict, with all of their columns); or fix the function",
    )
    error.__cause__ = failure.cause
    return error


def _check_sample(blame: ErrorContext, sampled: SampledResults) -> None:
    if sampled.results and all(result is None for result in sampled.results):
        raise PipelineError(
            f"{blame.label} returned None for each of the first {len(sampled.results)} rows",
            site=blame.site,
            fix="did it forget to return? A column of nulls needs dtype=",
        )
    kinds = inspect.isawaitable, inspect.isgenerator, inspect.isasyncgen
    unfinished = [result for result in sampled.results if any(is_kind(result) for is_kind in kinds)]
    for result in unfinished:
        getattr(result, "close", bool)()  # otherwise Python warns that the coroutine was never awaited
    if unfinished:
        what, fix = "", "return a list, or use flat_map to make a row of each value"
        if inspect.isawaitable(unfinished[0]):
            what, fix = " to be awaited", "pass the `async def` function itself, so that its rows are awaited"
        raise PipelineError(f"{blame.label} returned a {type(unfinished[0]).__name__}{what}", site=blame.site, fix=fix)


def check_row_names(blame: ErrorContext, row: Mapping[Any, Any], declared: Mapping[str, Any]) -> None:
    """Raise PipelineError for a row whose keys are not strings, or that lacks a column named in ``dtype=``."""
    strange = [name for name in row if not isinstance(name, str)]
    if strange:
        raise PipelineError(
            f"{blame.label} returned a row with the key {describe(strange[0])}",
            site=blame.site,
            fix="column names must be strings",
        )
    require_columns(declared, row, f"{blame.label}: dtype=", blame.site)


def _infer(blame: ErrorContext, name: str, values: Sequence[Any], rows: Sequence[RowRef | None]) -> ColumnType:
    try:
        return infer_type(values)
    except ValueMismatch as misfit:
        text = f"column {name!r}: {misfit.message}"
        failure = Failure(f"{blame.label}, {text}", text, "return one type, or give dtype= (dtype=object takes all)")
        raise blame.error(failure, rows[misfit.index]) from misfit


# ---- results of batches ----------------------------------------------------------------------------------------------


class UnequalLengths(BadResult):
    """Raised if the columns of a result have different lengths, so that they do not form rows."""


def array_column(value: Any, kind: ColumnType | None, name: str) -> Column:
    """Convert a function's result for a column: an array, tensor, list or JaggedTensor, or a dict of these.

    The data is not copied if its type allows. ``kind`` is the required type; None infers it.
    """
    column = _column(value, kind, name)
    actual = type_of(column)
    if kind is None or actual == kind:
        return column
    if isinstance(kind, pa.DataType) and isinstance(actual, pa.DataType) and pa.types.is_null(actual):
        return column.cast(kind)
    if kind == OBJECT:
        return objects(column.to_pylist() if isinstance(column, pa.Array) else list(column))
    raise BadResult(
        f"returned {type_name(actual)} for column {name!r}, whose type was fixed as {type_name(kind)}",
        "return one dtype and one shape per row for every batch (.astype, padding to a fixed length)",
    )


def _column(value: Any, kind: ColumnType | None, name: str) -> Column:
    if is_masked(type(value)):
        raise BadResult(f"returned a masked array for column {name!r}", "fill it: array.filled(value)")
    array = isinstance(value, np.ndarray) and value.ndim > 0
    typed = array and value.dtype != object
    if isinstance(value, (list, tuple)) or (array and value.ndim == 1 and not typed):
        try:
            values: Sequence[Any] = list(value)
            return build_column(values, infer_type(values) if kind is None else kind)
        except ValueMismatch as misfit:
            fix = "return values of one type (map also takes dtype=object)"
            raise BadResult(f"column {name!r}: {misfit.message}", fix) from misfit
    if isinstance(value, dict) and value:
        return _struct(value, kind, name)
    arrow = isinstance(value, (pa.Array, pa.ChunkedArray)) or hasattr(value, "to_arrow")
    if typed or arrow or hasattr(value, "detach"):
        try:
            return as_column(value)
        except (TypeError, ValueError, pa.ArrowException) as error:  # such as bfloat16, or a DataFrame
            raise BadResult(f"returned {describe(value)} for column {name!r}: {error}", "convert it first") from error
    fix = "did it forget to return? " if value is None else ""
    raise BadResult(
        f"returned {describe(value)} for column {name!r}, not an array", f"{fix}return an array with one entry per row"
    )


def _struct(value: dict[Any, Any], kind: ColumnType | None, name: str) -> pa.Array:
    fields = {f.name: f.type for f in kind} if isinstance(kind, pa.StructType) else {}
    children = [array_column(child, fields.get(key), f"{name}.{key}") for key, child in value.items()]
    if any(not isinstance(child, pa.Array) for child in children) or len(set(map(len, children))) > 1:
        raise BadResult(f"returned a dict for column {name!r} whose arrays do not make rows", "return an array")
    return pa.StructArray.from_arrays(children, names=list(value))


def named_arrays(result: Any, form: Form, names: tuple[str, ...] | None) -> Mapping[str, Any]:
    """Return a result's arrays by column name; with ``names`` None, a dict may have any names."""
    if form == "value" and names is not None:
        return {names[0]: result}
    if form == "tuple" and names is not None:
        if not isinstance(result, (tuple, list)) or len(result) != len(names):
            raise BadResult(f"returned {describe(result)}, not a tuple of {len(names)} arrays", "return one per column")
        return dict(zip(names, result, strict=True))
    if not isinstance(result, dict):
        raise BadResult(f"returned {describe(result)}, not a dict of arrays", "return a dict: column name to array")
    if names is None:
        return result
    for name in names:
        if name not in result:
            raise BadResult(f"returned no column {name!r}", f"the columns are fixed: return {', '.join(names)}")
    for name in result:
        if name not in names:
            raise BadResult(f"returned an extra column {name!r}", f"the columns are fixed: return {', '.join(names)}")
    return result


def _require_equal_lengths(columns: dict[str, Column]) -> dict[str, Column]:
    if len(set(map(len, columns.values()))) > 1:
        lengths = ", ".join(f"{name}: {len(column)}" for name, column in columns.items())
        raise UnequalLengths(f"returned columns of different lengths ({lengths})", "return as many rows in each")
    return columns
