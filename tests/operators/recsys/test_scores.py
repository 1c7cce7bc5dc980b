"""ComputeScore, against plain Python row by row."""

from __future__ import annotations

import math
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.errors import PipelineError
from cedar.operators import recsys
from tests.operators.recsys.toy_columns import IDS, SMALL, check, list_columns, refused

SCORES = st.sampled_from([0.0, 0.5, 1.0, -2.0])


def added(ids, scores):
    found = {}
    for i, score in zip(ids, scores, strict=True):
        found[i] = found.get(i, 0.0) + score
    return found


def overlap(a, b):
    return sum((Counter(a) & Counter(b)).values())


def cosine(ids, scores, matching, matching_scores):
    a, b = added(ids, scores), added(matching, matching_scores)
    norm = math.sqrt(sum(v * v for v in a.values())) * math.sqrt(sum(v * v for v in b.values()))
    return sum(a[i] * b[i] for i in a if i in b) / norm if norm else 0.0


def matching_scores(ids, matching, scores):
    return [s for i, s in zip(matching, scores, strict=True) if i in ids]


TWO = {
    "has_id_overlap": lambda a, b: float(bool(set(a) & set(b))),
    "id_overlap_count": lambda a, b: float(overlap(a, b)),
    "max_count": lambda a, b: float(sum(max(Counter(a)[i], Counter(b)[i]) for i in set(a) & set(b))),
    "jaccard_similarity": lambda a, b: overlap(a, b) / d if (d := len(a) + len(b) - overlap(a, b)) else 0.0,
}


THREE = {
    "score_min": lambda a, b, s: min(matching_scores(a, b, s), default=0.0),
    "score_max": lambda a, b, s: max(matching_scores(a, b, s), default=0.0),
}


FOUR = {
    "cosine_similarity": cosine,
    "score_sum": lambda a, _, b, s: sum(v for i, v in added(b, s).items() if i in a),
}


@pytest.mark.parametrize("score", TWO)
@given(columns=list_columns(SMALL | IDS, pa.int64(), count=2))
def test_scores_of_two_lists(score, columns):
    check(recsys.ComputeScore(score), columns, TWO[score])


@st.composite
def scored(draw, kinds):
    """Columns of ids ("i") and of scores ("s") for the ids before them."""
    rows = draw(st.lists(st.lists(st.lists(st.tuples(SMALL, SCORES), max_size=4), min_size=2, max_size=2), max_size=5))
    sides = [[[pair[0] for pair in row[k]] for row in rows] for k in (0, 1)]
    scores = [[[pair[1] for pair in row[k]] for row in rows] for k in (0, 1)]
    parts = {"i": sides[0], "s": scores[0], "m": sides[1], "t": scores[1]}
    return [pa.array(parts[k], pa.large_list(pa.int64() if k in "im" else pa.float64())) for k in kinds]


@pytest.mark.parametrize("score", [*THREE, *FOUR])
@given(data=st.data())
def test_scores_of_lists_with_scores(score, data):
    columns = data.draw(scored("imt" if score in THREE else "ismt"))
    check(recsys.ComputeScore(score), columns, (THREE | FOUR)[score])


def test_a_row_with_a_null_list_is_null_and_changes_no_other():
    ids = pa.array([[1], [7], [1]], pa.large_list(pa.int64()))
    matching = pa.array([[1, 2], [7, 8], None], pa.large_list(pa.int64()))
    scores = pa.array([None, [10, 20], [1, 1]], pa.large_list(pa.float64()))
    assert recsys.ComputeScore("score_max").columns(ids, matching, scores).to_pylist() == [None, 10.0, None]
    whole = pa.array([[1, 2], [7, 8], [1]], pa.large_list(pa.int64()))
    shorter = pa.array([None, [10, 20], [1]], pa.large_list(pa.float64()))
    assert recsys.ComputeScore("score_max").columns(ids, whole, shorter).to_pylist() == [None, 10.0, 1.0]


def test_scores_that_are_not_as_many_as_their_ids():
    ids = pa.array([[1], [1, 2], None], pa.large_list(pa.int64()))
    scores = pa.array([[0.5], [0.5], [1.0]], pa.large_list(pa.float64()))
    assert refused(recsys.ComputeScore("score_min"), [ids, ids, scores]) == {1: "ComputeScore: 2 ids and 1 scores"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: recsys.ComputeScore("best"), "use one of"),
        (lambda: recsys.ComputeScore("score_min")([1], [1], ["a"]), "takes lists of numbers"),
    ],
)
def test_parameters_and_columns_that_do_not_fit(make, message):
    with pytest.raises(PipelineError) as raised:
        make()
    assert message in str(raised.value)
