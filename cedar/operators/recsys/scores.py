"""ComputeScore: similarity scores of two lists of ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cedar.core.columns import Column, ColumnType, from_flags
from cedar.core.errors import invalid_call
from cedar.operators.recsys.lists import Array, Lists, as_int64, is_ids, is_lists, is_numbers
from cedar.operators.recsys.sequences import keys_of
from cedar.operators.transform import BadValues, Transform

Score = Literal[
    "has_id_overlap", "id_overlap_count", "max_count", "jaccard_similarity", "cosine_similarity", "score_sum",
    "score_min", "score_max",
]  # fmt: skip
_COLUMNS_READ = {  # input columns: i(ds), s(cores), m(atching ids), s(cores of matching ids)
    "cosine_similarity": "isms", "score_sum": "isms", "score_min": "ims", "score_max": "ims",
}  # fmt: skip


@dataclass(frozen=True)
class ComputeScore(Transform):
    """Compute a float32 score per row from lists of ids. The scores equal torcharrow's functions of the same names.

    From columns (ids, matching ids):

    * "has_id_overlap": 1 if some id is in both lists, else 0.
    * "id_overlap_count": the sum, over ids in both lists, of the smaller number of occurrences.
    * "max_count": the sum, over ids in both lists, of the larger number of occurrences.
    * "jaccard_similarity": c / (n + m - c), where c is "id_overlap_count" and n and m are the lengths.

    From columns (ids, scores, matching ids, matching scores), one score per id; scores of repeated ids are added up:

    * "cosine_similarity": the cosine of the two vectors of scores.
    * "score_sum": the sum of the matching scores of ids in both lists; ``scores`` are ignored, but must be valid.

    From columns (ids, matching ids, matching scores):

    * "score_min", "score_max": the smallest or largest matching score of an id in both lists.

    The result is 0 if no id matches, a list is empty, or a vector of scores is zero. It is null if a list is null. Rows
    fail if a list contains a null, or if there is not one score per id. The order of ids does not matter. Sums are
    computed in float64.

    Examples:
        >>> ComputeScore("jaccard_similarity")([1, 2, 2], [2, 2, 3])
        0.5
    """

    score: Score

    def __post_init__(self) -> None:
        if self.score not in get_args(Score):
            raise invalid_call(f"ComputeScore({self.score!r})", fix=f"use one of {', '.join(get_args(Score))}")

    @property
    def arity(self) -> int:  # type: ignore[override]
        return len(self._columns_read)

    @property
    def _columns_read(self) -> str:
        return _COLUMNS_READ.get(self.score, "im")

    def result(self, *types: Any) -> ColumnType:
        for position, kind in enumerate(types):
            scores = self._columns_read[position] == "s"
            if not is_lists(kind) or not (is_numbers(kind.value_type) if scores else is_ids(kind.value_type)):
                raise self.unfit(kind, "lists of numbers" if scores else "lists of integers")
        return pa.float32()

    def columns(self, *columns: Column) -> Column:
        missing = [column.is_null().to_numpy(zero_copy_only=False) for column in columns if column.null_count]
        null = np.logical_or.reduce(missing) if missing else None
        if null is not None:  # a row that is null in one column is null in all, so that scores and ids stay aligned
            columns = tuple(pc.if_else(from_flags(~null), each, pa.scalar(None, each.type)) for each in columns)
        lists = [Lists.of(column) for column in columns]
        values = [each.numbers(f"ComputeScore({self.score})") for each in lists]
        id_positions = [position for position, kind in enumerate(self._columns_read) if kind != "s"]
        for position in id_positions:
            if position + 1 < len(lists) and self._columns_read[position + 1] == "s":
                self._check_lengths(lists[position], lists[position + 1])
        rows = [lists[position].rows() for position in id_positions]
        keys, matching_keys = keys_of(rows, [as_int64(values[position]) for position in id_positions])
        scores = self._compute(len(lists[0]), rows, keys, matching_keys, values, lists)
        return pa.array(scores.astype(np.float32), mask=null)

    def _check_lengths(self, ids: Lists, scores: Lists) -> None:
        rows = np.flatnonzero(ids.lengths != scores.lengths)
        if len(rows):
            whys = {int(r): f"ComputeScore: {ids.lengths[r]} ids and {scores.lengths[r]} scores" for r in rows}
            raise BadValues(whys, "give one score per id")

    def _compute(
        self, n: int, rows: list[Array], keys: Array, matching_keys: Array, values: list[Array], lists: list[Lists]
    ) -> Array:
        first, second = _KeyCounts(keys, rows[0]), _KeyCounts(matching_keys, rows[1])
        _, first_indices, second_indices = np.intersect1d(
            first.keys, second.keys, assume_unique=True, return_indices=True
        )
        row = first.rows[first_indices]

        def per_row(amounts: Array) -> Array:
            return np.bincount(row, weights=amounts, minlength=n)

        if self.score == "has_id_overlap":
            return per_row(np.ones(len(row))) > 0
        if self.score == "max_count":
            return per_row(np.maximum(first.counts[first_indices], second.counts[second_indices]))
        if self.score in ("id_overlap_count", "jaccard_similarity"):
            common = per_row(np.minimum(first.counts[first_indices], second.counts[second_indices]))
            either = lists[0].lengths + lists[1].lengths - common
            return common if self.score == "id_overlap_count" else _ratio(common, either)
        if self.score == "score_sum":
            return per_row(second.summed(values[3])[second_indices])
        if self.score == "cosine_similarity":
            a, b = first.summed(values[1]), second.summed(values[3])
            norms = [np.sqrt(np.bincount(c.rows, weights=v * v, minlength=n)) for c, v in ((first, a), (second, b))]
            return _ratio(per_row(a[first_indices] * b[second_indices]), norms[0] * norms[1])
        smallest = self.score == "score_min"
        best = second.extreme(values[2], smallest)[second_indices]
        extremes = np.full(n, np.inf if smallest else -np.inf)
        (np.minimum if smallest else np.maximum).at(extremes, row, best)
        extremes[np.bincount(row, minlength=n) == 0] = 0.0
        return extremes


class _KeyCounts:
    """The distinct keys of one column in ascending order, and the row and number of occurrences of each key."""

    def __init__(self, keys: Array, rows: Array) -> None:
        self.keys, first, inverse, self.counts = np.unique(
            keys, return_index=True, return_inverse=True, return_counts=True
        )
        self._inverse = inverse.reshape(-1)
        self.rows = rows[first]

    def summed(self, scores: Array) -> Array:
        return np.bincount(self._inverse, weights=scores.astype(np.float64), minlength=len(self.keys))

    def extreme(self, scores: Array, smallest: bool) -> Array:
        extremes = np.full(len(self.keys), np.inf if smallest else -np.inf)
        (np.minimum if smallest else np.maximum).at(extremes, self._inverse, scores.astype(np.float64))
        return extremes


def _ratio(a: Array, b: Array) -> Array:
    return np.divide(a, b, out=np.zeros(len(a)), where=b != 0)
