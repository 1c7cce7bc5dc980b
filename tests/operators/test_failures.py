"""What becomes of rows on which a function failed."""

from __future__ import annotations

import numpy as np
import pytest

import cedar
from cedar.core.errors import RowError, Skip
from cedar.operators.base import Env
from cedar.operators.map import Map
from tests.operators.toy_calls import call
from tests.operators.toy_maps import XS, failing
from tests.toy_blocks import run, values


def test_functions_that_fail():
    fails = lambda x: 1 // (x - 2)
    error = failing(Map(fails, ("x",)))
    assert error.what == "map(<lambda>) failed: ZeroDivisionError: integer division or modulo by zero"
    assert (error.row.row, error.done) == (1, "stopped at this row")
    assert isinstance(error.__cause__, ZeroDivisionError)
    dead = run(Map(fails, ("x",), on_error=Skip()), XS)
    assert values(dead, "x") == [-1, 1]
    assert values(dead, "s") == ["a", "c"]
    assert dead.dead[1].error.startswith("ZeroDivisionError")
    assert (dead.dead[1].operator, dead.slots) == (3, 3)
    refilled = run(Map(fails, ("x",)), XS, on_error=Skip(refill=True))
    assert (refilled.slots, len(refilled), [w.refill for w in refilled.dead.values()]) == (3, 2, [True])
    sampled = run(Map(fails, ("x",)), XS, env=Env(sampling=True))
    assert values(sampled, "x") == [-1, 1]
    none = failing(Map(lambda x: 1 / 0, ("x",), on_error=Skip()))
    assert "map(<lambda>): all of the first 3 rows failed" in none.what


def test_dead_slots_stay():
    once = run(Map(lambda x: 1 // (x - 2), ("x",), on_error=Skip()), XS)
    twice = run(Map(lambda x: 1 // (x - 1), ("x",), on_error=Skip()), once)
    assert sorted(twice.dead) == [1, 2]
    assert len(twice) == 1
    assert run(Map(lambda x: 1 // (x - 1), ("x",)), twice.slice(1, 3), sample=XS.slice(1, 2)).slots == 2


def test_errors_whose_text_fails_are_still_reported():
    class TwoArguments(Exception):
        def __init__(self, a, b):
            super().__init__()

        def __str__(self):
            raise ValueError

    def fn(x):
        raise TwoArguments(1, 2)

    assert "TwoArguments" in call(fn, [1])[1][0].short


def test_a_function_that_writes_into_shared_memory_is_told_to_copy():
    images = cedar.from_numpy({"a": np.zeros((4, 2, 2))})
    with pytest.raises(RowError, match="read-only") as caught:
        images.map(lambda a: np.add(a, 1, out=a), "a").to_arrow()
    assert caught.value.fix.startswith("copy the array")
    assert images.map(lambda a: np.add(a, 1, out=a.copy()), "a").count() == 4
