"""What is refused at the user's line, before anything runs."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import cedar
from cedar.core.errors import PipelineError
from cedar.operators.map import Map


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: Map(5), "int cannot be called"),  # type: ignore[arg-type]
        (lambda: Map(lambda x: x, ("x", "y")), "cannot be called with 2 arguments"),
        (lambda: Map(lambda x: x, ("x",), random=True), "has no parameter rng"),
        (lambda: Map(abs, ("x",), into=()), "names no column"),
        (lambda: Map(abs, ("x",), into=""), "names no column"),
        (lambda: Map(abs, ("x",), into=("a", "a")), "a column twice"),
        (lambda: Map(abs, "x"), "is not a column name"),  # type: ignore[arg-type]
        (lambda: Map(abs, (3,)), "3 is not a column name"),  # type: ignore[arg-type]
        (lambda: Map(abs, ("x",), dtype="foo"), "not a type of column"),
        (lambda: Map(abs, ("x",), ("a", "b"), dtype="int8"), "2 columns are written"),
        (lambda: Map(abs, ("x",), dtype={"y": int}), "names 'y', which is not written"),
        (lambda: Map(dict, dtype=int), "returns whole rows"),
        (lambda: Map(abs, ("x",), timeout=0), "not a time limit"),
        (lambda: Map(abs, ("x",), on_error="skip"), "is not a policy"),  # type: ignore[arg-type]
        (lambda: Map(torch.nn.Linear, ("x",)), "its __init__ needs more arguments"),
    ],
)
def test_what_is_refused_at_the_users_line(build, says):
    with pytest.raises(PipelineError) as caught:
        build()
    assert says in caught.value.what
    assert caught.value.site.file == __file__
    assert caught.value.fix


class Times:
    def __init__(self, factor, offset=0):
        self.factor = factor

    def __call__(self, x, rng=None):
        return self.factor * x


def test_a_partial_has_the_arguments_of_a_constructor():
    rows = cedar.from_items([{"x": 2}])
    assert list(rows.map(partial(Times, 3), "x")) == list(rows.map(partial(Times, 3), "x", random=True)) == [{"x": 6}]
    with pytest.raises(PipelineError, match="its __init__ needs more arguments") as caught:
        rows.map(partial(Times, offset=1), "x")
    assert "functools.partial(Times, ...)" in caught.value.fix
    with pytest.raises(PipelineError, match="cannot be called with 3 arguments"):
        rows.map(partial(Times, 3), "x", "x", "x")
    with pytest.raises(PipelineError, match=r"balance\(by="):
        rows.batch(1).balance(partial(Times, 3))


def test_a_collate_function_with_a_generator_is_answered_by_the_option_of_batch():
    with pytest.raises(PipelineError, match="the function has a parameter rng") as caught:
        cedar.from_items([{"x": 1}]).batch(2, collate=lambda rows, rng: rows)
    assert "batch(n, collate=fn, random=True)" in caught.value.fix


def test_functions_of_many_rows_learn_what_they_receive():
    rows = cedar.from_items([{"x": 1}])
    with pytest.raises(PipelineError, match="cannot be called with one argument") as caught:
        rows.map_batches(lambda a, b: a, "x")
    assert "dict of arrays that format= names" in caught.value.fix
    with pytest.raises(PipelineError, match="cannot be called with one argument") as caught:
        rows.batch(2, collate=lambda a, b: a)
    assert "a list of dicts" in caught.value.fix
