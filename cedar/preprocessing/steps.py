"""Preprocessors. Each defines its columns, what to compute from the columns' values, and how to transform them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from cedar.core.errors import PipelineError, invalid_call
from cedar.operators.base import Operator
from cedar.operators.expressions import WithColumns
from cedar.operators.map import Map
from cedar.operators.recsys.dense import Bucketize
from cedar.operators.take import whole
from cedar.preprocessing.vocabulary import Counter, Null
from cedar.preprocessing.vocabulary import Vocabulary as FittedVocabulary

_COUNTS = 512 << 20  # max bytes of a column's value counts in memory
_MAX_SAMPLE = 1_000_000  # max number of values in the sample for quantiles


class Learner(ABC):
    """Accumulates statistics of one column, from consecutive parts of its values."""

    @abstractmethod
    def add(self, values: pl.Series) -> None: ...

    @abstractmethod
    def learned(self) -> dict[str, Any]:
        """Return the result, which must be JSON-serializable."""

    def close(self) -> None:
        """Release resources; no further calls follow."""


class Step(ABC):
    """A preprocessor: a frozen dataclass with a field ``columns``.

    To write your own, subclass ``Step``, and pass the class to ``Fitted.load(path, steps=[...])``.

    Examples:
        >>> isinstance(StandardScaler("x"), Step)
        True
    """

    columns: tuple[str, ...]

    @abstractmethod
    def learner(self, column: str) -> Learner: ...

    @abstractmethod
    def operator(self, column: str, learned: dict[str, Any]) -> Operator: ...

    def shown(self, column: str, learned: dict[str, Any]) -> Any:
        """Return the value of ``fitted[column]``."""
        return learned


class _ColumnStep(Step):
    def __post_init__(self) -> None:
        columns = (self.columns,) if isinstance(self.columns, str) else tuple(self.columns)
        object.__setattr__(self, "columns", columns)
        if not columns or not all(isinstance(name, str) for name in columns):
            raise invalid_call(f"{type(self).__name__}({self.columns!r}): name at least one column")


def _require_numbers(values: pl.Series, step: str) -> pl.Series:
    """Return the values as floats, without nulls and NaN; raise if they are not numeric."""
    if not values.dtype.is_numeric() and values.dtype not in (pl.Boolean, pl.Null):
        raise PipelineError(f"{step}: column {values.name!r} holds {values.dtype}, not numbers", fix="cast it first")
    known = values.cast(pl.Float64).drop_nulls().drop_nans()
    if known.is_infinite().any():
        raise PipelineError(f"{step}: column {values.name!r} has infinite values", fix="filter or clip them first")
    return known


class _MomentsLearner(Learner):
    """Computes mean and variance with the parallel algorithm of Chan, Golub and LeVeque (1979)."""

    def __init__(self) -> None:
        self._count, self._mean, self._squares = 0, 0.0, 0.0

    def add(self, values: pl.Series) -> None:
        known = _require_numbers(values, "StandardScaler").to_numpy()
        if len(known):
            mean = float(known.mean())
            between, total = mean - self._mean, self._count + len(known)
            self._squares += float(((known - mean) ** 2).sum()) + between**2 * self._count * len(known) / total
            self._mean += between * len(known) / total
            self._count = total

    def learned(self) -> dict[str, Any]:
        deviation = math.sqrt(self._squares / self._count) if self._count else 0.0
        return {"count": self._count, "mean": self._mean, "std": deviation}


def _scaled(column: str, shift: float, scale: float) -> Operator:
    """Return an operator for (value - shift) / scale as float32. As in scikit-learn, a scale of 0 becomes 1."""
    wide = (pl.col(column).cast(pl.Float64) - shift) / (scale or 1.0)
    return WithColumns(((column, wide.cast(pl.Float32)),))


@dataclass(frozen=True)
class StandardScaler(_ColumnStep):
    """Map values to (value - mean) / standard deviation, as float32. Nulls and NaN are not counted and stay unchanged.

    As in scikit-learn, the variance divides by n, not n - 1. If it is 0, all values become 0.

    Args:
        columns: a column of numbers, or several.

    Examples:
        >>> rows = cedar.from_items([{"x": x} for x in (1, 2, 2, 9)])
        >>> [row["x"] for row in rows.apply(cedar.fit(rows, cedar.preprocessing.StandardScaler("x")))]
        [-0.78..., -0.46..., -0.46..., 1.71...]
    """

    columns: Any

    def learner(self, column: str) -> Learner:
        return _MomentsLearner()

    def operator(self, column: str, learned: dict[str, Any]) -> Operator:
        return _scaled(column, learned["mean"], learned["std"])


class _RangeLearner(Learner):
    def __init__(self) -> None:
        self._low, self._high = math.inf, -math.inf

    def add(self, values: pl.Series) -> None:
        known = _require_numbers(values, "MinMaxScaler")
        if len(known):
            self._low = min(self._low, float(known.min()))  # type: ignore[arg-type]
            self._high = max(self._high, float(known.max()))  # type: ignore[arg-type]

    def learned(self) -> dict[str, Any]:
        none = self._low > self._high
        return {"min": 0.0 if none else self._low, "max": 0.0 if none else self._high}


@dataclass(frozen=True)
class MinMaxScaler(_ColumnStep):
    """Scale values to the range from 0 (smallest) to 1 (largest), as float32. Nulls and NaN stay unchanged.

    Args:
        columns: a column of numbers, or several.

    Examples:
        >>> rows = cedar.from_items([{"x": x} for x in (1, 2, 2, 9)])
        >>> [row["x"] for row in rows.apply(cedar.fit(rows, cedar.preprocessing.MinMaxScaler("x")))]
        [0.0, 0.125, 0.125, 1.0]
    """

    columns: Any

    def learner(self, column: str) -> Learner:
        return _RangeLearner()

    def operator(self, column: str, learned: dict[str, Any]) -> Operator:
        return _scaled(column, learned["min"], learned["max"] - learned["min"])


class _QuantileLearner(Learner):
    """Samples the values for which it drew the smallest random numbers. The sample does not depend on block sizes."""

    def __init__(self, bins: int) -> None:
        self._bins, self._random = bins, np.random.default_rng(0)
        self._sample: list[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]] = []  # (random numbers, values)
        self._held, self._limit = 0, 1.0

    def add(self, values: pl.Series) -> None:
        known = _require_numbers(values, "Quantiles").to_numpy()
        numbers = self._random.random(len(known))
        if self._limit < 1:
            small = numbers < self._limit
            known, numbers = known[small], numbers[small]
        self._sample.append((numbers, known))
        self._held += len(known)
        if self._held > 2 * _MAX_SAMPLE:
            self._reduce()

    def _reduce(self) -> None:
        numbers, values = (np.concatenate(each) for each in zip(*self._sample, strict=True))
        if len(values) > _MAX_SAMPLE:
            kept = np.argpartition(numbers, _MAX_SAMPLE)[:_MAX_SAMPLE]
            numbers, values = numbers[kept], values[kept]
            self._limit = float(numbers.max())
        self._sample, self._held = [(numbers, values)], len(values)

    def learned(self) -> dict[str, Any]:
        if not self._held:
            return {"borders": [0.0]}
        self._reduce()
        shares = np.arange(1, self._bins) / self._bins
        return {"borders": np.unique(np.quantile(self._sample[0][1], shares)).tolist()}


@dataclass(frozen=True)
class Quantiles(_ColumnStep):
    """Replace a value by its bin number, int64, from 0 to ``bins`` - 1. The bins have about equally many rows.

    Borders are computed from all values, or from a random sample of a million if there are more. A value equal to a
    border is in the lower bin. Repeated values can reduce the number of bins. Nulls stay null; NaN is in the last bin.

    Args:
        columns: a column of numbers, or several.
        bins: number of bins, at least 2.

    Examples:
        >>> rows = cedar.from_items([{"x": x} for x in (1, 2, 2, 9)])
        >>> [row["x"] for row in rows.apply(cedar.fit(rows, cedar.preprocessing.Quantiles("x", bins=2)))]
        [0, 0, 0, 1]
    """

    columns: Any
    bins: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "bins", whole(self.bins, "Quantiles(bins)", least=2))

    def learner(self, column: str) -> Learner:
        return _QuantileLearner(self.bins)

    def operator(self, column: str, learned: dict[str, Any]) -> Operator:
        return Map(Bucketize(tuple(learned["borders"])), (column,))


class _CountsLearner(Learner):
    def __init__(self, column: str, step: Vocabulary, memory: int) -> None:
        self._step, self._counter = step, Counter(column, memory)

    def add(self, values: pl.Series) -> None:
        array = values.to_arrow()
        kind = pa.types.is_string_view(array.type)
        self._counter.add(array.cast(pa.large_string()) if kind else array)

    def learned(self) -> dict[str, Any]:
        values, counts, seen = self._counter.frequent(self._step.min_count, self._step.max_size)
        rare = seen - sum(counts.to_pylist())
        text = not pa.types.is_integer(values.type)
        return {"values": values.to_pylist(), "text": text, "counts": counts.to_pylist(), "seen": seen, "rare": rare}

    def close(self) -> None:
        self._counter.close()


@dataclass(frozen=True)
class Vocabulary(_ColumnStep):
    """Map values, or items of lists, to int64 ids. More frequent values get lower ids; ties are ordered by value.

    ``fitted[column]`` is a ``cedar.recommendation.Vocabulary``. Its ``size`` is the number of rows that an embedding
    table needs.

    Args:
        columns: one or several columns of integers or strings, or of lists of them.
        min_count: minimum count of a value in the vocabulary.
        max_size: maximum number of values in the vocabulary.
        oov: the id for values that are not in the vocabulary.
        null: "oov" maps nulls to the id ``oov``, "own" to a separate id (the last), "keep" leaves them null.
        memory: maximum bytes of counts in memory; more counts are spilled to temporary files.

    Examples:
        >>> rows = cedar.from_items([{"x": x} for x in (1, 2, 2, 9)])
        >>> [row["x"] for row in rows.apply(cedar.fit(rows, cedar.preprocessing.Vocabulary("x")))]
        [2, 1, 1, 3]
    """

    columns: Any
    min_count: int = 1
    max_size: int | None = None
    oov: int = 0
    null: Null = "oov"
    memory: int = field(default=_COUNTS, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in {"min_count": 1, "max_size": 1, "oov": 0, "memory": 1}.items():
            value = getattr(self, name)
            if name != "max_size" or value is not None:
                object.__setattr__(self, name, whole(value, f"Vocabulary({name})", least))
        if self.null not in get_args(Null):
            raise invalid_call(f"Vocabulary(null={self.null!r})", fix='give "oov", "own" or "keep"')

    def learner(self, column: str) -> Learner:
        return _CountsLearner(column, self, self.memory // len(self.columns))

    def operator(self, column: str, learned: dict[str, Any]) -> Operator:
        return Map(self.shown(column, learned).transform(), (column,))

    def shown(self, column: str, learned: dict[str, Any]) -> FittedVocabulary:
        given = learned["values"]
        wide = pa.uint64() if any(not isinstance(v, str) and v >= 1 << 63 for v in given) else pa.int64()
        values = pa.array(given, pa.large_string() if learned["text"] else wide)
        counts, oov = pa.array(learned["counts"], pa.int64()), min(self.oov, len(given))
        return FittedVocabulary(column, values, counts, oov, learned["seen"], learned["rare"], self.null)
