"""The clip type, and the base class of transforms that process one clip at a time.

A clip is a float32 array of (samples,) or (samples, channels). A column of clips is an object column of such arrays, or
an ndarray of (rows, samples[, channels]) if all clips have the same shape. Arrow lists of floats are read as
single-channel clips. A spectrogram is a float32 array of (bands, frames) or (channels, bands, frames).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from cedar.core.columns import OBJECT, UNKNOWN, Column, ColumnType, TensorType, type_of
from cedar.core.errors import invalid_call
from cedar.core.limits import Passing, take
from cedar.operators.draws import Draws
from cedar.operators.transform import BadValues, ChainFault, Link, Transform

Clip = npt.NDArray[np.float32]


class BadClip(Exception):
    """Raised if the transform of a row fails, with the reason (``why``) and a suggestion (``fix``)."""

    def __init__(self, why: str, fix: str = "drop such rows: on_error=cedar.Skip(...)") -> None:
        super().__init__(why)
        self.why, self.fix = why, fix


class ClipTransform(Transform):
    """A transform that processes one row at a time. Consecutive clip transforms run as a chain, row by row."""

    per_row: ClassVar[bool] = True

    @abstractmethod
    def transform_row(self, *values: Any, draw: Any = None, out: Any = None) -> Any:
        """Return the result for one row.

        Args:
            values: the row's values of the input columns.
            draw: the row's element of the result of ``draw_rows``; None if the transform is not random.
            out: an array to which the transform may write its result; None if the result's shape is not fixed.

        Raises:
            BadClip: the transform fails for this row.
        """

    def draw_rows(self, draws: Draws) -> Sequence[Any]:
        """Return one random draw per row. Only random transforms implement this."""
        raise NotImplementedError

    def describe_row(self, draw: Any, *values: Any) -> dict[str, Any]:
        """Return the row's random parameters by name, for ``describe``.

        Args:
            draw: the row's element of the result of ``draw_rows``.
            values: the row's values of the input columns.
        """
        del values
        return {"draw": draw}

    def describe(self, draws: Draws, *columns: Any) -> list[dict[str, Any]]:
        rows = zip(self.draw_rows(draws), *map(_row_values, columns), strict=True)
        return [self.describe_row(draw, *values) for draw, *values in rows]

    def columns(self, *columns: Column, draws: Draws | None = None) -> Column:
        names = tuple(map(str, range(len(columns))))
        link = Link(self, names, ("made",))
        done, faults = run_rows([link], dict(zip(names, columns, strict=True)), [draws])
        if faults:
            first = faults[min(faults)]
            raise BadValues({row: fault.why for row, fault in sorted(faults.items())}, first.fix)
        return done["made"]


class ClipChain:
    """Runs audio transforms row by row, so that memory holds intermediate results of only one row at a time."""

    def joins(self, below: Sequence[Link], above: Link) -> bool:
        written = {name for link in below for name in link.writes}
        return isinstance(above.transform, ClipTransform) and not written.isdisjoint(above.reads)

    def run(
        self, links: Sequence[Link], columns: Mapping[str, Column], draws: Sequence[Draws | None]
    ) -> tuple[dict[str, Column], dict[int, ChainFault]]:
        return run_rows(links, columns, draws)


ClipTransform.chain = ClipChain()


# ---- rows ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Step:
    """A step of a chain: one transform, or a decode and a crop that run together. ``results`` collects output rows."""

    link: int
    reads: tuple[str, ...]
    write: str
    run: Callable[..., Any]
    draws: Sequence[Any] | None
    results: _ClipColumn | None


class _ClipColumn:
    """Collects the results of a transform in an output column, unless a later transform overwrites the column."""

    def __init__(self, kind: ColumnType, rows: int) -> None:
        self.kind = kind
        fixed = isinstance(kind, TensorType)
        if fixed:
            take(rows * math.prod(kind.shape) * np.dtype(kind.dtype).itemsize, f"{rows:,} clips")
        self.column: Any = np.zeros((rows, *kind.shape), kind.dtype) if fixed else np.empty(rows, dtype=object)
        self.fixed = fixed

    def put(self, row: int, value: Any) -> None:
        if self.fixed:
            if value.base is not self.column:
                self.column[row] = value
            return
        base = getattr(value, "base", None)
        if isinstance(base, np.ndarray) and base.nbytes > 2 * value.nbytes:
            value = value.copy()  # a view would keep the whole, much longer clip in memory
        self.column[row] = value

    def to_column(self) -> Column:
        return pa.array(self.column, self.kind) if isinstance(self.kind, pa.DataType) else self.column


def run_rows(
    links: Sequence[Link], columns: Mapping[str, Column], draws: Sequence[Draws | None]
) -> tuple[dict[str, Column], dict[int, ChainFault]]:
    """Run a chain's links row by row; return the output columns by name, and the faults by row index.

    Raises:
        PipelineError: a link does not support the type of a column.
    """
    rows = len(next(iter(columns.values())))
    sources = {name: _row_values(column) for name, column in columns.items()}
    steps = _plan_steps(links, columns, draws, rows)
    faults: dict[int, ChainFault] = {}
    with np.errstate(all="ignore"):  # transforms check for NaN and infinity
        for row in range(rows):
            with Passing():
                fault = _run_row(row, steps, sources)
            results = (
                step.results.column[row] for step in steps if step.results is not None and not step.results.fixed
            )
            take(sum(getattr(value, "nbytes", 0) for value in results), f"clips up to the {row + 1:,}th of {rows:,}")
            if fault is not None:
                faults[row] = fault
    return {step.write: step.results.to_column() for step in steps if step.results is not None}, faults


def _run_row(row: int, steps: Sequence[_Step], sources: Mapping[str, Any]) -> ChainFault | None:
    values_by_name: dict[str, Any] = {}
    for step in steps:
        values = [values_by_name[name] if name in values_by_name else sources[name][row] for name in step.reads]
        draw = None if step.draws is None else step.draws[row]
        out = step.results.column[row] if step.results is not None and step.results.fixed else None
        try:
            value = step.run(*values, draw=draw, out=out)
        except BadClip as bad:
            return ChainFault(step.link, bad.why, bad.fix)
        values_by_name[step.write] = value
        if step.results is not None:
            step.results.put(row, value)
    return None


def _plan_steps(
    links: Sequence[Link], columns: Mapping[str, Column], draws: Sequence[Draws | None], rows: int
) -> list[_Step]:
    types = {name: type_of(column) for name, column in columns.items()}
    last = {link.writes[0]: position for position, link in enumerate(links)}
    steps: list[_Step] = []
    for position, link in enumerate(links):
        transform, write = link.transform, link.writes[0]
        assert isinstance(transform, ClipTransform)
        types[write] = transform.result(*(types[name] for name in link.reads))
        drawn = draws[position]
        numbers = None if drawn is None else transform.draw_rows(drawn)
        results = _ClipColumn(types[write], rows) if last[write] == position else None
        previous = steps[-1] if steps else None
        part = getattr(transform, "part_of", None)
        if part is not None and previous is not None and link.reads == (previous.write,) == link.writes:
            run = part(links[position - 1].transform)
            if run is not None and previous.link == position - 1:
                steps[-1] = _Step(previous.link, previous.reads, write, run, numbers, results)
                continue
        steps.append(_Step(position, link.reads, write, transform.transform_row, numbers, results))
    return steps


def _row_values(column: Column) -> Any:
    """Return a sequence of the values of a column's rows."""
    if isinstance(column, np.ndarray):
        return column
    kind = column.type
    if pt.is_large_binary(kind):
        return _Bytes(column)
    if pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        items = column.flatten().to_numpy(zero_copy_only=False)  # without the items of nulls
        ends = np.cumsum(column.value_lengths().fill_null(0).to_numpy())
        rows: list[Any] = np.split(items, ends[:-1]) if len(ends) else []
        for row in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)) if column.null_count else ():
            rows[row] = None
        return rows
    return column.to_pylist()


class _Bytes:
    """A sequence of the rows of a binary column as memoryviews, which are not copies; None for nulls."""

    def __init__(self, column: pa.Array) -> None:
        self.missing = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
        _, bounds, data = column.buffers()
        rows = len(column)
        self.bounds: Any = np.frombuffer(bounds, np.int64, rows + 1, 8 * column.offset) if rows else []
        self.data = memoryview(data) if data is not None else memoryview(b"")

    def __getitem__(self, row: int) -> memoryview | None:
        if self.missing is not None and self.missing[row]:
            return None
        return self.data[int(self.bounds[row]) : int(self.bounds[row + 1])]


# ---- input checks ----------------------------------------------------------------------------------------------------


def clip_shape(transform: Transform, kind: Any, dims: tuple[int, ...] = (1, 2)) -> tuple[int, ...] | None:
    """Return the shape of every row of a clip column; None if rows may differ in shape.

    Args:
        transform: the transform to name in errors.
        dims: the allowed numbers of dimensions of a row.

    Raises:
        PipelineError: the column does not contain clips (or spectrograms).
    """
    if kind in (OBJECT, UNKNOWN):
        return None
    if isinstance(kind, TensorType) and len(kind.shape) in dims and np.dtype(kind.dtype).kind == "f":
        return kind.shape
    lists = isinstance(kind, pa.DataType) and (pt.is_large_list(kind) or pt.is_fixed_size_list(kind))
    if lists and pt.is_floating(kind.value_type) and 1 in dims:
        return None
    wants = "clips: float32 arrays of (samples,) or (samples, channels)"
    raise transform.unfit(kind, wants if dims == (1, 2) else "spectrograms: float32 arrays of (..., bands, frames)")


def as_clip(value: Any, dims: tuple[int, ...] = (1, 2)) -> Clip:
    """Return a row's value as a float32 array.

    Raises:
        BadClip: the value is not a float array, or its number of dimensions is not in ``dims``.
    """
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or value.ndim not in dims:
        description = (
            f"an array {value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
        )
        raise BadClip(
            f"{description} is not a float array of {' or '.join(map(str, dims))} dimensions", "decode or cast it first"
        )
    return value if value.dtype == np.float32 else value.astype(np.float32)


def apply_per_channel(function: Callable[[Clip], Clip], clip: Clip) -> Clip:
    """Apply a function, which takes and returns arrays of (samples,), to each channel of a clip."""
    if clip.ndim == 1:
        return function(clip)
    return np.stack([function(np.ascontiguousarray(clip[:, c])) for c in range(clip.shape[1])], axis=1)


def check_finite(clip: Clip) -> Clip:
    """Check that a clip has no NaN or infinity, and return it.

    Raises:
        BadClip: the clip contains NaN or infinity.
    """
    total = float(clip.sum(dtype=np.float64)) if clip.size else 0.0  # finite only if all samples are
    if not np.isfinite(total):
        bad = int(np.flatnonzero(~np.isfinite(clip.reshape(len(clip), -1)).all(axis=1))[0])
        raise BadClip(f"sample {bad:,} of {len(clip):,} is NaN or infinite")
    return clip


# ---- parameters ------------------------------------------------------------------------------------------------------


def check_number(
    name: str, parameter: str, value: Any, low: float, high: float = float("inf"), *, open: bool = False
) -> None:
    """Check that a parameter is a number from ``low`` to ``high``; ``open`` excludes ``low`` itself.

    Raises:
        PipelineError: the check fails; the error names the user's line.
    """
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not number or not low <= value <= high or (open and value == low) or value == float("inf"):
        upper = "" if high == float("inf") else f" and at most {high:g}"
        wants = f"a number {'above' if open else 'of at least'} {low:g}{upper}"
        raise invalid_call(f"audio.{name}({parameter}={value!r}): {wants} is expected")


def check_count(name: str, parameter: str, value: Any, low: int = 1) -> None:
    """Check that a parameter is an integer of at least ``low``.

    Raises:
        PipelineError: the check fails; the error names the user's line.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < low:
        raise invalid_call(f"audio.{name}({parameter}={value!r}): an integer of at least {low} is expected")


def check_choice(name: str, parameter: str, value: Any, choices: Sequence[Any]) -> None:
    """Check that a parameter equals one of the choices and has the same type.

    Raises:
        PipelineError: the check fails; the error names the user's line.
    """
    if not any(value is choice or (type(value) is type(choice) and value == choice) for choice in choices):
        raise invalid_call(f"audio.{name}({parameter}={value!r}): one of {', '.join(map(repr, choices))} is expected")
