"""Transforms of whole lists, against plain Python row by row."""

import datetime as dt
import math
import zoneinfo
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar.core.errors import PipelineError
from cedar.operators import recsys
from tests.operators.recsys.test_items import combine, signed, twang
from tests.operators.recsys.toy_columns import IDS, check, list_columns, refused

SMALL = st.integers(-2, 2)
SCORES = st.sampled_from([0.0, 0.5, 1.0, -2.0])


@given(list_columns(IDS | st.none(), pa.int64()), st.integers(0, 5))
def test_first_x(columns, x):
    check(recsys.FirstX(x), columns, lambda ids: ids[:x])


def test_first_x_of_other_lists():
    names = pa.array([["a", "b"], None, [], ["c"]], pa.large_list(pa.large_string()))
    assert recsys.FirstX(1).columns(names).to_pylist() == [["a"], None, [], ["c"]]


@given(list_columns(IDS, pa.int64()), st.integers(-3, 3))
def test_enumerate(columns, start):
    check(recsys.Enumerate(start), columns, lambda ids: [i for i, _ in enumerate(ids, start)])


SETS = {
    "intersection": lambda a, b: [i for i in dict.fromkeys(a) if i in b],
    "difference": lambda a, b: [i for i in dict.fromkeys(a) if i not in b],
    "union": lambda a, b: list(dict.fromkeys([*a, *b])),
}


@pytest.mark.parametrize("operation", SETS)
@given(columns=list_columns(SMALL | IDS, pa.int64(), count=2))
def test_set_operations(operation, columns):
    check(recsys.IdListTransform(operation), columns, SETS[operation])


@given(list_columns(SMALL | IDS, pa.int64(), count=2))
def test_cartesian(columns):
    def crossed(a, b):
        return [signed(combine(twang(x), twang(y))) for x in a for y in b]

    check(recsys.Cartesian(), columns, crossed)


def test_cartesian_of_too_many_pairs():
    column = pa.array([[1, 2], [1, 2, 3]], pa.large_list(pa.int64()))
    assert refused(recsys.Cartesian(most=6), [column, column]) == {1: "Cartesian of 9 pairs, more than 6"}


def gram(ids):
    word = twang(ids[-1])
    for i in reversed(ids[:-1]):
        word = combine(twang(i), word)
    return signed(word)


@pytest.mark.parametrize("count", [1, 2, 3])
@given(data=st.data(), n=st.integers(1, 4))
def test_ngram(count, data, n):
    columns = data.draw(list_columns(SMALL | IDS, pa.int64(), count=count))

    def grams(*lists):
        ids = [i for each in lists for i in each]
        return [gram(ids[k : k + n]) for k in range(len(ids) - n + 1)]

    check(recsys.NGram(n), columns, grams)


# ---- scores ----------------------------------------------------------------------------------------------------------


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


def test_scores_that_are_not_as_many_as_their_ids():
    ids = pa.array([[1], [1, 2], None], pa.large_list(pa.int64()))
    scores = pa.array([[0.5], [0.5], [1.0]], pa.large_list(pa.float64()))
    assert refused(recsys.ComputeScore("score_min"), [ids, ids, scores]) == {1: "ComputeScore: 2 ids and 1 scores"}


@pytest.mark.parametrize(
    "transform",
    [recsys.NGram(1), recsys.IdListTransform("union"), recsys.Cartesian(), recsys.ComputeScore("max_count")],
    ids=lambda t: type(t).__name__,
)
def test_nulls_inside_lists_of_ids_are_refused(transform):
    column = pa.array([[1], [2, None], None], pa.large_list(pa.int64()))
    columns = [column] * (transform.arity or 1)
    assert list(refused(transform, columns)) == [1]
    assert "null" in refused(transform, columns)[1]


# ---- hours -----------------------------------------------------------------------------------------------------------

ZONES = ["UTC", "Europe/Berlin", "Asia/Kolkata", "America/New_York"]


@given(st.lists(st.integers(0, 2**31) | st.none(), max_size=6), st.sampled_from(ZONES))
def test_local_hours(seconds, zone):
    def hour(s):
        return None if s is None else dt.datetime.fromtimestamp(s, zoneinfo.ZoneInfo(zone)).hour

    expected = [hour(s) for s in seconds]
    times = pa.array(seconds, pa.int64())
    assert recsys.GetLocalHour(zone).columns(times).to_pylist() == expected
    assert recsys.GetLocalHour(zone).columns(times.cast(pa.timestamp("s"))).to_pylist() == expected
    own = recsys.GetLocalHour(None).columns(times, pa.array([zone] * len(times), pa.large_string()))
    assert own.to_pylist() == expected


def test_local_hours_of_rows_in_many_zones():
    times = pa.array([0, 0, None, 0], pa.int64())
    zones = pa.array(["UTC", "Asia/Tokyo", "UTC", None], pa.large_string())
    assert recsys.GetLocalHour(None).columns(times, zones).to_pylist() == [0, 9, None, None]
    strange = pa.array(["UTC", "Mars", None, "Mars"], pa.large_string())
    assert list(refused(recsys.GetLocalHour(None), [times, strange])) == [1, 3]
    millis = recsys.GetLocalHour("Asia/Tokyo", unit="ms")
    assert millis.columns(pa.array([3_600_000], pa.int32())).to_pylist() == [10]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: recsys.FirstX(-1), "x=-1"),
        (lambda: recsys.FirstX(2)(5), "takes lists"),
        (lambda: recsys.Enumerate()(5), "takes lists"),
        (lambda: recsys.NGram(0), "n=0"),
        (lambda: recsys.NGram(2)([1.5]), "takes lists of whole numbers"),
        (lambda: recsys.IdListTransform("xor"), "xor"),
        (lambda: recsys.Cartesian(most=0), "most=0"),
        (lambda: recsys.ComputeScore("best"), "it is one of"),
        (lambda: recsys.ComputeScore("score_min")([1], [1], ["a"]), "takes lists of numbers"),
        (lambda: recsys.GetLocalHour("Mars"), "no such time zone"),
        (lambda: recsys.GetLocalHour(unit="h"), "unit='h'"),
        (lambda: recsys.GetLocalHour()("noon"), "takes timestamps"),
        (lambda: recsys.GetLocalHour(None)(0, 5), "takes names of time zones"),
    ],
)
def test_parameters_and_columns_that_do_not_fit(make, message):
    with pytest.raises(PipelineError) as raised:
        make()
    assert message in str(raised.value)


def test_a_call_with_values_that_have_no_result():
    with pytest.raises(ValueError, match="more than 1"):
        recsys.Cartesian(most=1)([1, 2], [1])
    assert recsys.Onehot((0.0,))(5.0).tolist() == [0.0, 1.0]
    assert cedar.from_items([{"x": 1}]).map(recsys.Clamp(2, 3), "x").schema == {"x": pa.int64()}
