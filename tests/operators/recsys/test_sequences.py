"""Transforms of whole lists of ids, against plain Python row by row."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.errors import PipelineError
from cedar.operators import recsys
from tests.operators.recsys.toy_columns import IDS, SMALL, check, list_columns, refused
from tests.operators.recsys.toy_hashes import combine, signed, twang


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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: recsys.FirstX(-1), "x=-1"),
        (lambda: recsys.FirstX(2)(5), "takes lists"),
        (lambda: recsys.Enumerate()(5), "takes lists"),
        (lambda: recsys.NGram(0), "n=0"),
        (lambda: recsys.NGram(2)([1.5]), "takes lists of integers"),
        (lambda: recsys.IdListTransform("xor"), "xor"),
        (lambda: recsys.Cartesian(most=0), "most=0"),
    ],
)
def test_parameters_and_columns_that_do_not_fit(make, message):
    with pytest.raises(PipelineError) as raised:
        make()
    assert message in str(raised.value)
