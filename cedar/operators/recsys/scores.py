"""ComputeScore: a score of how similar two lists of ids are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa

from cedar.core.columns import Column, ColumnType
from cedar.core.errors import PipelineError, user_site
from cedar.operators.recsys.lists import Array, Lists, as_int64, is_ids, is_lists, is_numbers
from cedar.operators.recsys.sequences import keys_of
from cedar.operators.transform import BadValues, Transform

Score = Literal[
    "has_id_overlap", "id_overlap_count", "max_count", "jaccard_similarity", "cosine_similarity", "score_sum",
    "score_min", "score_max",
]  # fmt: skip
_SCORED = {  # the columns that a score reads: i(ds), s(cores), m(atching ids), s(cores) of these
    "cosine_similarity": "isms", "score_sum": "isms", "score_min": "ims", "score_max": "ims",
}  # fmt: skip


@dataclass(frozen=True)
class ComputeScore(Transform):
    """Compute a float32 score per row from lists of ids, defined as torcharrow's functions of the same names.

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
            raise PipelineError(
                f"ComputeScore({self.score!r})", site=user_site(), fix=f"it is one of {', '.join(get_args(Score))}"
            )

    @property
    def arity(self) -> int:  # type: ignore[override]
        return len(self._kinds)

    @property
    def _kinds(self) -> str:
        return _SCORED.get(self.score, "im")

    def result(self, *types: Any) -> ColumnType:
        for place, kind in enumerate(types):
            scores = self._kinds[place] == "s"
            if not is_lists(kind) or not (is_numbers(kind.value_type) if scores else is_ids(kind.value_type)):
                raise self.unfit(kind, "lists of numbers" if scores else "lists of integers")
        return pa.float32()

    def columns(self, *columns: Column) -> Column:
        lists = [Lists.of(column) for column in columns]
        values = [each.numbers(f"ComputeScore({self.score})") for each in lists]
        missing = [each.missing for each in lists if each.missing is not None]
        null = np.logical_or.reduce(missing) if missing else None
        at = [place for place, kind in enumerate(self._kinds) if kind != "s"]
        for place in at:
            if place + 1 < len(lists) and self._kinds[place + 1] == "s":
                self._check_lengths(lists[place], lists[place + 1], null)
        rows = [lists[place].rows() for place in at]
        mine, theirs = keys_of(rows, [as_int64(values[place]) for place in at])
        scores = self._scored(len(lists[0]), rows, mine, theirs, values, lists)
        return pa.array(scores.astype(np.float32), mask=null)

    def _check_lengths(self, ids: Lists, scores: Lists, null: Array | None) -> None:
        odd = ids.lengths != scores.lengths
        rows = np.flatnonzero(odd if null is None else odd & ~null)
        if len(rows):
            whys = {int(r): f"ComputeScore: {ids.lengths[r]} ids and {scores.lengths[r]} scores" for r in rows}
            raise BadValues(whys, "give a score for each id")

    def _scored(
        self, n: int, rows: list[Array], mine: Array, theirs: Array, values: list[Array], lists: list[Lists]
    ) -> Array:
        one, other = _Counted(mine, rows[0]), _Counted(theirs, rows[1])
        _, left, right = np.intersect1d(one.keys, other.keys, assume_unique=True, return_indices=True)
        row = one.rows[left]

        def per_row(amounts: Array) -> Array:
            return np.bincount(row, weights=amounts, minlength=n)

        if self.score == "has_id_overlap":
            return per_row(np.ones(len(row))) > 0
        if self.score == "max_count":
            return per_row(np.maximum(one.counts[left], other.counts[right]))
        if self.score in ("id_overlap_count", "jaccard_similarity"):
            common = per_row(np.minimum(one.counts[left], other.counts[right]))
            either = lists[0].lengths + lists[1].lengths - common
            return common if self.score == "id_overlap_count" else _ratio(common, either)
        if self.score == "score_sum":
            return per_row(other.summed(values[3])[right])
        if self.score == "cosine_similarity":
            a, b = one.summed(values[1]), other.summed(values[3])
            norms = [np.sqrt(np.bincount(c.rows, weights=v * v, minlength=n)) for c, v in ((one, a), (other, b))]
            return _ratio(per_row(a[left] * b[right]), norms[0] * norms[1])
        least = self.score == "score_min"
        best = other.extreme(values[2], least)[right]
        extremes = np.full(n, np.inf if least else -np.inf)
        (np.minimum if least else np.maximum).at(extremes, row, best)
        extremes[np.bincount(row, minlength=n) == 0] = 0.0
        return extremes


class _Counted:
    """The distinct keys of one column in ascending order, with the row and number of occurrences of each."""

    def __init__(self, keys: Array, rows: Array) -> None:
        self.keys, first, inverse, self.counts = np.unique(
            keys, return_index=True, return_inverse=True, return_counts=True
        )
        self._inverse = inverse.reshape(-1)
        self.rows = rows[first]

    def summed(self, scores: Array) -> Array:
        return np.bincount(self._inverse, weights=scores.astype(np.float64), minlength=len(self.keys))

    def extreme(self, scores: Array, least: bool) -> Array:
        extremes = np.full(len(self.keys), np.inf if least else -np.inf)
        (np.minimum if least else np.maximum).at(extremes, self._inverse, scores.astype(np.float64))
        return extremes


def _ratio(a: Array, b: Array) -> Array:
    return np.divide(a, b, out=np.zeros(len(a)), where=b != 0)
