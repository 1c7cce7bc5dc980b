"""Estimates of the savings from deduplication, and the choice of groups of features that are worth deduplicating.

The model is from RecD (Zhao et al., 2022, arXiv 2211.05239). If a batch has S rows of each session, and a feature
repeats the previous row's list with probability d, each list occurs S / (1 + (S - 1)(1 - d)) times in the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cedar.core.distinct import distinct

SAMPLED_ROWS = 8192
PAYS = 1.5  # below this factor, a group saves less than its index costs
_MIN_LENGTH = 2.0  # mean values per list; shorter lists are as small as the index that would replace them
_MIN_JOINT_SAVINGS = (
    0.94  # two groups are joined if that saves at least this share of their savings, since one index is enough
)

Codes = npt.NDArray[np.int32]


def factor(samples: float, repeats: float) -> float:
    """Return how many times a batch contains each list on average.

    Args:
        samples: S, the number of rows of one session in a batch.
        repeats: d, the share of rows that equal the previous row of their session.

    Examples:
        >>> round(factor(16, 0.95), 2), factor(16, 1.0), factor(16, 0.0)
        (9.14, 16.0, 1.0)
    """
    return samples / (1 + (samples - 1) * (1 - repeats))


@dataclass(frozen=True)
class Reach:
    """How the pipeline shuffles and batches rows after ``dedup``.

    Args:
        batch: rows per batch; None if there are no batches.
        window: rows in the shuffle's window; None without a shuffle.
        by: the column by which a shuffle groups rows with equal values.
        interleave: the number of groups that the shuffle interleaves.
    """

    batch: int | None = None
    window: float | None = None
    by: str | None = None
    interleave: int = 1


@dataclass(frozen=True)
class Estimate:
    """Estimates from a sample for a group of features.

    Args:
        names: the names of the features.
        samples: S, the number of rows of one session in a batch.
        repeats: d, the share of rows that equal the previous row of their session.
        length: the number of values per row, summed over all features.
        rows: the number of rows sampled.
    """

    names: tuple[str, ...]
    samples: float
    repeats: float
    length: float
    rows: int

    @property
    def factor(self) -> float:
        """How many times a batch would hold each list without deduplication."""
        return factor(self.samples, self.repeats)

    @property
    def saved(self) -> float:
        """The number of values per row that deduplication saves."""
        return self.length * (1 - 1 / self.factor)

    def __str__(self) -> str:
        return (
            f"{'+'.join(self.names)}: S {self.samples:.3g} rows of a session in a batch, d {self.repeats:.3g}, "
            f"{self.length:.3g} values a row; predicted factor {self.factor:.3g}"
        )


@dataclass(frozen=True)
class GroupEstimate:
    """The chosen groups, and the rejected groups with reasons."""

    groups: tuple[Estimate, ...] = ()
    refused: tuple[tuple[Estimate, str], ...] = ()
    note: str = ""


class Sampled:
    """A sample of rows, in the order in which batches will contain them.

    Args:
        columns: the features, Arrow arrays of equal length.
        session: the session ID of each row; None: a session begins where no feature repeats.
        reach: how the rows will be shuffled and batched.
        kept: the values of the column ``reach.by``.
    """

    def __init__(
        self, columns: Mapping[str, pa.Array], session: Any = None, reach: Reach | None = None, kept: Any = None
    ) -> None:
        self._reach = reach = reach or Reach()
        self.rows = rows = len(next(iter(columns.values()))) if columns else 0
        self._lengths = {name: _mean_length(column) for name, column in columns.items()}
        mixed = reach.window is not None and reach.by is None
        window = max(1, int(min(reach.window or rows, rows) if mixed else reach.batch or rows))
        order = np.arange(rows) if kept is None else np.argsort(_codes(kept), kind="stable")
        cut = np.arange(rows) // window
        keys = _codes(session if session is not None else kept) if session is not None or kept is not None else None
        if keys is not None:
            keys = keys[order]
            inner = np.lexsort((keys, cut))
            order, keys = order[inner], keys[inner]
        self._columns, self._order, self._keys, self._cut = columns, order, keys, cut

    def may_pay(self) -> bool:
        """Return whether any feature's lists are long enough for a group; this reads only lengths, not values."""
        return any(length >= _MIN_LENGTH for length in self._lengths.values())

    @cached_property
    def _codes(self) -> dict[str, Codes]:
        return {name: _codes(column)[self._order] for name, column in self._columns.items()}

    @cached_property
    def _begins(self) -> npt.NDArray[np.bool_]:
        """Whether each row begins a session within a window."""
        begins = np.ones(self.rows, dtype=bool)
        if self.rows:
            keys = self._keys
            varied = [codes for codes in self._codes.values() if codes.max(initial=0) > 0]
            if keys is not None:
                changes = np.diff(keys) != 0
            elif varied:
                changes = np.logical_and.reduce([np.diff(codes) != 0 for codes in varied])
            else:
                changes = np.zeros(1, dtype=bool)
            begins[1:] = (np.diff(self._cut) != 0) | changes
        return begins

    def estimate(self, names: Sequence[str]) -> Estimate:
        """Return the estimate for a group of these features."""
        inside = ~self._begins
        samples = self.rows / max(int(self._begins.sum()), 1)
        same = np.ones(max(self.rows - 1, 0), dtype=bool)
        for name in names:
            same &= np.diff(self._codes[name]) == 0
        repeats = float(same[inside[1:]].mean()) if inside.any() else 0.0
        samples, repeats = self._mixed(samples, repeats)
        return Estimate(tuple(names), samples, repeats, sum(self._lengths[name] for name in names), self.rows)

    def _mixed(self, samples: float, repeats: float) -> tuple[float, float]:
        """Adjust S and d for a shuffle, after which a batch contains only some of a session's rows."""
        reach = self._reach
        if reach.batch is None:
            return samples, repeats
        if reach.by is not None:
            cut = (reach.interleave - 1) / reach.batch  # additional sessions per row
            return 1 / (1 / samples + cut), repeats
        if reach.window is None or reach.window <= reach.batch:
            return samples, repeats
        share = reach.batch / reach.window
        chance = -np.expm1(samples * np.log1p(-share))  # the probability that a batch has any row of a session
        return max(1.0, samples * share / float(chance)), share * repeats / (1 - (1 - share) * repeats)


def find_groups(sampled: Sampled, names: Sequence[str]) -> GroupEstimate:
    """Return groups of features that are worth deduplicating; greedily, beginning with the features that repeat most.

    A feature joins the group with which it saves most, unless two separate groups would save clearly more.
    """
    alone = sorted((sampled.estimate([name]) for name in names), key=lambda e: (-e.repeats, e.names))
    groups: list[Estimate] = []
    refused: list[tuple[Estimate, str]] = []
    for one in alone:
        why = _rejection_reason(one)
        if why:
            refused.append((one, why))
            continue
        together = [sorted([*group.names, *one.names], key=names.index) for group in groups]
        joined = [(sampled.estimate(group), place) for place, group in enumerate(together)]
        best = max(joined, key=lambda pair: pair[0].saved, default=None)
        if best is not None and best[0].saved >= _MIN_JOINT_SAVINGS * (groups[best[1]].saved + one.saved):
            groups[best[1]] = best[0]
        else:
            groups.append(one)
    return GroupEstimate(tuple(groups), tuple(refused))


def _rejection_reason(estimate: Estimate) -> str:
    if estimate.length < _MIN_LENGTH:
        return f"{estimate.length:.3g} values a row are hardly more than the index in their place"
    if estimate.factor < PAYS:
        figures = f"S {estimate.samples:.3g}, d {estimate.repeats:.3g}"
        return f"predicted factor {estimate.factor:.3g} ({figures}), below {PAYS:g}"
    return ""


def _codes(column: Any) -> Codes:
    if not len(column):
        return np.empty(0, dtype=np.int32)
    return distinct([column if isinstance(column, pa.Array) else pa.array(column)])[0]


def _mean_length(column: pa.Array) -> float:
    import pyarrow.compute as pc  # most pipelines have no dedup(), and need this import later or never

    mean = pc.mean(pc.list_value_length(column)).as_py() if len(column) else None
    return float(mean or 0.0)
