"""Transforms in map: random ones, such that write several columns, and chains of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import cedar
from cedar.operators.draws import Draws
from cedar.operators.transform import Transform
from tests.operators.toy_transforms import ROWS, AddNoise, Refuse, Swap, ran


def test_neighbors_of_a_family_run_as_one_and_draw_as_alone():
    p = cedar.from_items(ROWS).map(AddNoise(), "x").map(Refuse(-1), "x").map(AddNoise(7), "x")
    ran().clear()
    together = [row["x"] for row in p]
    assert max(ran()) == 3
    apart = cedar.from_items(ROWS).map(AddNoise(), "x").map(lambda x: x, "x", dtype="int64")
    apart = apart.map(AddNoise(7), "x")
    assert together == [row["x"] for row in apart]


def test_a_random_transform_draws_by_row_whatever_runs_it():
    p = cedar.from_items(ROWS).map(AddNoise(), "x")
    found = [row["x"] for row in p.loader(plan="off", executor="inline")]
    assert found != [row["x"] for row in ROWS]
    assert found == [row["x"] for row in p.loader(executor="threads", workers=2)]
    reversed_rows = p.filter(lambda x: True, "y").loader(executor="processes", workers=1)
    with reversed_rows:
        assert found == [row["x"] for row in reversed_rows]
    other = p.loader(plan="off", executor="inline", seed=1)
    assert found != [row["x"] for row in other]
    assert p.node.operator.effects().random


def test_two_random_transforms_draw_apart():
    p = cedar.from_items(ROWS).map(AddNoise(), "x", into="a").map(AddNoise(), "x", into="b")
    rows = list(p)
    assert [row["a"] for row in rows] != [row["b"] for row in rows]


def test_a_transform_may_write_as_many_columns_as_it_reads():
    p = cedar.from_items(ROWS).map(Swap(), "x", "y")
    assert [(row["x"], row["y"]) for row in p] == [(row["y"], row["x"]) for row in ROWS]
    kept = list(cedar.from_items(ROWS[:2]).map(Swap(), "x", "y", into=("a", "b")))
    assert kept[1] == {"x": 1, "y": -1, "a": -1, "b": 1}
    with pytest.raises(cedar.PipelineError, match="writes 2 columns, not 1"):
        cedar.from_items(ROWS).map(Swap(), "x", "y", into="x")


def test_a_random_transform_on_one_row():
    draws = Draws(np.array([5], dtype=np.uint64))
    assert AddNoise()(1, draws=draws) == AddNoise()(1, draws=draws)
    assert Swap()(1, 2) == (2, 1)


@pytest.mark.filterwarnings("ignore:the code of a function")
def test_other_parameters_are_worth_a_warning_at_resume(recwarn: pytest.WarningsRecorder):
    p = cedar.from_items(ROWS)
    with p.map(AddNoise(5), "x").loader() as loader:
        next(iter(loader))
        state = loader.state_dict()
    for most, warns in ((5, 0), (6, 1)):
        recwarn.clear()
        with warnings.catch_warnings(), p.map(AddNoise(most), "x").loader() as loader:
            warnings.simplefilter("always")
            loader.load_state_dict(state)
            next(iter(loader))
        assert sum("the code of a function" in str(w.message) for w in recwarn) == warns


def test_a_row_that_fails_in_a_chain_is_blamed_on_its_transform():
    p = cedar.from_items(ROWS).map(AddNoise(1), "x").map(Refuse(9), "x").map(Refuse(3), "x")
    with pytest.raises(cedar.RowError, match="9 is refused") as caught:
        list(p)
    assert "map(Refuse)" in str(caught.value)
    assert "#2" not in str(caught.value)
    with p.loader(on_error=cedar.Skip()) as loader:
        assert [row["x"] for row in loader] == [i for i in range(50) if i not in (3, 9)]
        assert "map(Refuse) #2" in str(loader.report())


def test_only_the_transform_with_a_policy_may_lose_rows():
    p = cedar.from_items(ROWS).map(Refuse(9), "x", on_error=cedar.Skip()).map(Refuse(30), "x")
    with pytest.raises(cedar.RowError, match="30 is refused"):
        list(p)


@dataclass(frozen=True)
class Wrong(Transform):
    """Declares int64, whatever it returns."""

    made: Callable[[Any], Any]

    def result(self, *types: Any) -> pa.DataType:
        return pa.int64()

    def columns(self, *columns: Any, **draws: Any) -> Any:
        return self.made(columns[0])


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda x: x[:1], r"column 'x' has 1 value\(s\) for"),
        (lambda x: x.to_pylist(), "a column must be an Arrow array, an ndarray"),
        (lambda x: x.cast("string"), "column 'x' is large_string, but int64 is declared"),
    ],
)
def test_a_result_of_a_users_transform_that_does_not_fit_is_refused(made, says):
    with pytest.raises(cedar.RowError, match=says) as caught:
        list(cedar.from_items(ROWS).map(Wrong(made), "x").batch(2))
    assert caught.value.site.file == __file__
