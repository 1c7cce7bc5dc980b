"""Describe a pipeline's rows: statistics of each column, from one pass."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cedar.core.block import Block, equal_frames, frame_of
from cedar.core.printable import one_line

if TYPE_CHECKING:
    import polars as pl

_MAX_SAMPLE = 100_000  # max sampled rows, for quantiles and top values
_QUANTILES = (0.25, 0.5, 0.75)
_TOP = 3
_MAX_CELL = 24  # max characters per cell


@dataclass(frozen=True)
class ColumnFigures:
    """Statistics of one column. If ``lengths`` is set, they describe the lengths of its lists or byte strings.

    ``nulls`` and ``nans`` are counts; all other figures exclude these values. ``deviation`` is the population standard
    deviation. ``quantiles`` maps 0.25, 0.5 and 0.75 to values. ``top`` maps the most frequent values to their share of
    the rows, 0 to 1. Figures that do not apply to the type are None or empty.
    """

    type: str
    lengths: bool = False
    nulls: int = 0
    nans: int = 0
    least: Any = None
    most: Any = None
    mean: float | None = None
    deviation: float | None = None
    quantiles: dict[float, Any] | None = None
    top: dict[Any, float] | None = None


@dataclass(frozen=True)
class Description:
    """The result of ``Pipeline.describe()``. Quantiles and top values are computed from ``sampled`` rows."""

    rows: int
    sampled: int
    columns: dict[str, ColumnFigures]

    def table(self) -> pl.DataFrame:
        """Return the statistics as a table of strings, with one row per column."""
        import polars as pl

        rows = [{"column": name, **_table_cells(figures, self.rows)} for name, figures in self.columns.items()]
        return pl.DataFrame([{head: one_line(cell) for head, cell in row.items()} for row in rows])

    @property
    def _title(self) -> str:
        of = "" if self.sampled == self.rows else f"; quantiles and top values of {self.sampled:,} rows drawn at random"
        return f"{self.rows:,} rows{of}"

    def __str__(self) -> str:
        import polars as pl

        with pl.Config(
            tbl_rows=-1, tbl_cols=-1, tbl_hide_dataframe_shape=True, tbl_hide_column_data_types=True,
            tbl_width_chars=200, fmt_str_lengths=80,
        ):  # fmt: skip
            return f"{self._title}\n{self.table()}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        import polars as pl

        with pl.Config(tbl_rows=-1, tbl_cols=-1, tbl_hide_dataframe_shape=True, fmt_str_lengths=80):
            return f"<p>{self._title}</p>{self.table()._repr_html_()}"


def describe(blocks: Iterable[Block]) -> Description:
    """Compute the statistics in one pass, with only a part of the rows and a random sample in memory."""
    import polars as pl

    columns: dict[str, _ColumnTotals] = {}
    rows, drawn = 0, np.random.default_rng(0)
    sample, tickets = pl.DataFrame(), np.empty(0)
    for part in equal_frames(map(frame_of, blocks)):
        rows += part.height
        columns = columns or {name: _ColumnTotals(part[name]) for name in part.columns}
        values = pl.DataFrame({name: column.add(part[name]) for name, column in columns.items()})
        sample = pl.concat([sample, values], how="vertical_relaxed") if sample.height else values
        tickets = np.concatenate([tickets, drawn.random(part.height)])
        if len(tickets) > _MAX_SAMPLE:
            kept = np.sort(np.argpartition(tickets, _MAX_SAMPLE)[:_MAX_SAMPLE])
            sample, tickets = sample[kept], tickets[kept]
    figures = {name: column.figures(sample[name]) for name, column in columns.items()}
    return Description(rows, sample.height, figures)


class _ColumnTotals:
    """Accumulates the statistics of a column from successive parts of its rows."""

    def __init__(self, first: pl.Series) -> None:
        import polars as pl

        kind = first.dtype
        self.type = str(kind)
        self.lengths = kind == pl.Binary or isinstance(kind, pl.List)
        self.opaque = kind.is_nested() or kind.is_object()
        self.nulls = self.nans = self.count = 0
        self.mean = self.squares = 0.0
        self.least: Any = None
        self.most: Any = None

    def add(self, part: pl.Series) -> pl.Series:
        """Add a part. Return the values to sample: the column's, their lengths, or null if the type has no figures."""
        import polars as pl

        self.nulls += part.null_count()
        if self.lengths:
            part = part.bin.size() if part.dtype == pl.Binary else part.list.len()
        elif self.opaque:
            return pl.Series(part.name, [None] * len(part), dtype=pl.Boolean)
        if part.dtype.is_float():
            self.nans += int(part.is_nan().sum())
            part = part.fill_nan(None)
        here = part.drop_nulls()
        if len(here):
            self.least = here.min() if self.least is None else min(self.least, here.min())
            self.most = here.max() if self.most is None else max(self.most, here.max())
            if part.dtype.is_numeric() or part.dtype == pl.Boolean:
                self._add_numbers(here.cast(pl.Float64))
        return part

    def _add_numbers(self, part: pl.Series) -> None:
        """Update mean and sum of squares with more values (Chan et al., 1979)."""
        mean: Any = part.mean()
        squares: Any = ((part - mean) ** 2).sum()
        count, shift = self.count + len(part), mean - self.mean
        self.mean += shift * len(part) / count
        self.squares += squares + shift * shift * self.count * len(part) / count
        self.count = count

    def figures(self, sample: pl.Series) -> ColumnFigures:
        known = sample.drop_nulls()
        ordered = known.dtype.is_numeric() or known.dtype.is_temporal()
        quantiles = {q: known.quantile(q, "nearest") for q in _QUANTILES} if ordered and len(known) else {}
        top: dict[Any, float] = {}
        if not (self.lengths or self.opaque) and len(known):
            counts = known.alias("value").value_counts().sort(["count", "value"], descending=[True, False]).head(_TOP)
            top = {value: count / len(sample) for value, count in counts.iter_rows() if count > 1}
        numbers = bool(self.count)
        return ColumnFigures(
            self.type, self.lengths, self.nulls, self.nans, self.least, self.most,
            self.mean if numbers else None, math.sqrt(self.squares / self.count) if numbers else None, quantiles, top,
        )  # fmt: skip


def _table_cells(figures: ColumnFigures, rows: int) -> dict[str, str]:
    quantiles = figures.quantiles or {}
    nulls = f"{figures.nulls:,} ({figures.nulls / rows:.1%})" if figures.nulls else "0"
    return {
        "type": figures.type + (", lengths:" if figures.lengths else ""),
        "nulls": nulls + (f", {figures.nans:,} NaN" if figures.nans else ""),
        "min": _shown(figures.least), **{f"{q:.0%}": _shown(quantiles.get(q)) for q in _QUANTILES},
        "max": _shown(figures.most), "mean": _shown(figures.mean), "std": _shown(figures.deviation),
        "top": ", ".join(f"{_shown(value)} {share:.0%}" for value, share in (figures.top or {}).items()),
    }  # fmt: skip


def _shown(value: Any) -> str:
    if value is None:
        return ""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _MAX_CELL else text[: _MAX_CELL - 3] + "..."
