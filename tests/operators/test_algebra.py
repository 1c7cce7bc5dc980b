"""Algebra: marks on functions, classes and methods, and where they show."""

from __future__ import annotations

import functools
from typing import get_args

import numpy as np
import pytest

from cedar.core.errors import PipelineError
from cedar.operators import algebra
from cedar.operators.base import Algebra
from cedar.operators.map import Map
from cedar.pipeline.rows import RowMethods  # noqa: F401 - every operator module is imported with it

MARKS = {
    "pointwise": algebra.pointwise,
    "spatial": algebra.spatial,
    "resampling": algebra.resampling,
    "per-value": algebra.per_value,
    "length": algebra.length_changing,
}


def test_there_is_a_mark_for_each_algebra():
    assert set(MARKS) == set(get_args(Algebra))


@pytest.mark.parametrize("kind", MARKS)
def test_a_mark_shows_in_a_map_of_one_column_onto_itself(kind):
    fn = MARKS[kind](lambda a: a)
    assert Map(fn, ("a",)).effects().algebra == kind
    assert Map(functools.partial(fn), ("a",)).effects().algebra == kind
    assert Map(fn, ("a",), "b").effects().algebra is None


def test_classes_instances_methods_and_functions_in_c_can_be_marked():
    @algebra.pointwise
    class Scale:
        def __call__(self, a):
            return a

        def half(self, a):
            return a

    class Sub(Scale):
        pass

    assert algebra.algebra_of(Scale) == algebra.algebra_of(Scale()) == "pointwise"
    assert [algebra.algebra_of(Sub), algebra.algebra_of(Sub())] == [None, None]
    assert algebra.algebra_of(algebra.spatial(Sub())) == "spatial"
    assert algebra.algebra_of(algebra.spatial(Scale().half)) == "spatial"
    assert [algebra.algebra_of(algebra.pointwise(fn)) for fn in (np.sqrt, int)] == ["pointwise", "pointwise"]
    assert algebra.pointwise(np.sqrt)(4.0) == 2.0
    assert [algebra.algebra_of(fn) for fn in (np.sqrt, int, len)] == [None, None, None]


def test_what_cannot_be_called_cannot_be_marked():
    with pytest.raises(PipelineError, match="cannot be called"):
        algebra.pointwise(3)
