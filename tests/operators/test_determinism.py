"""Functions that draw from global generators are noticed on the first rows."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cedar
from cedar import col
from cedar.core.errors import PipelineError
from cedar.operators import determinism
from cedar.operators.map_batches import MapBatches
from tests.toy_blocks import SITE, bind, block, run, values

XS = block(x=[1, 2, 3, 4], f=[1.5, float("nan"), None, 0.0])
NOT_ROW_WISE = {
    "mean": lambda t: {"x": t["x"] - t["x"].mean()},
    "cumsum": lambda t: {"x": np.cumsum(t["x"])},
    "sort": lambda t: {"x": np.sort(t["x"])[::-1]},
    "reverse": lambda t: {"x": t["x"][::-1].copy()},
    "count": lambda t: {"x": np.full(len(t["x"]), len(t["x"]))},
    "index": lambda t: {"x": np.arange(len(t["x"]))},
    "first": lambda t: {"x": t["x"] - t["x"][0]},
}


@pytest.mark.parametrize("name", list(NOT_ROW_WISE))
def test_functions_that_are_not_row_wise(name):
    with pytest.raises(PipelineError, match="its result depends on other rows of the block") as caught:
        bind(MapBatches(NOT_ROW_WISE[name], ("x",), format="numpy"), XS)
    assert caught.value.site == SITE
    assert "size=" in caught.value.fix
    assert len(run(MapBatches(NOT_ROW_WISE[name], ("x",), format="numpy", size=4), XS)) == 4
    assert len(run(MapBatches(NOT_ROW_WISE[name], ("x",), format="numpy"), XS, batched=True)) == 4


def test_functions_that_draw_on_their_own():
    fn = lambda t: {"x": np.random.default_rng().random(len(t["x"]))}
    with pytest.raises(PipelineError, match="called again, it gives another result") as caught:
        bind(MapBatches(fn, ("x",), format="numpy"), XS)
    assert "random=True" in caught.value.fix


def test_nan_and_null_are_equal_to_themselves():
    for format in ("arrow", "polars"):
        assert repr(values(run(MapBatches(lambda t: t, ("f",), format=format), XS), "f")) == "[1.5, nan, None, 0.0]"
    assert len(run(MapBatches(lambda t: {"f": t["f"] * np.nan}, ("f",), format="numpy"), XS)) == 4


ROWS = cedar.from_items([{"x": float(i)} for i in range(80)])


def rand(size: Any = None) -> Any:
    return np.random.rand(size) if size else np.random.rand()  # noqa: NPY002 - what is to be noticed


class Noise:
    def __call__(self, x):  # type: ignore[no-untyped-def] # no type is declared
        return x + random.random()


def torch_noise(x: float) -> Any:
    import torch

    return torch.rand(3) + x


def declared(x: float) -> float:
    return x + random.random()


DRAWS: list[Callable[[cedar.Pipeline], cedar.Pipeline]] = [
    lambda p: p.map(lambda x: x + random.random(), "x"),
    lambda p: p.map(lambda x: x + rand(), "x"),
    lambda p: p.map(lambda x: x if random.random() < 0.5 else -x - 1, "x"),
    lambda p: p.map(torch_noise, "x"),
    lambda p: p.map(Noise, "x"),
    lambda p: p.map(lambda row: {**row, "y": [{"z": random.random()}]}),
    lambda p: p.flat_map(lambda x: (x + random.random() for _ in range(2)), "x"),
    lambda p: p.filter(lambda x: random.random() < 0.5, "x").map(lambda x: x, "x"),
    lambda p: p.map(declared, "x").map(lambda x: x, "x"),
    lambda p: p.batch(8).map(lambda batch: {**batch, "y": rand(len(batch["x"]))}),
    lambda p: p.batch(8).map(lambda x: x + rand(len(x)), "x"),
    lambda p: p.map(lambda x, rng: x + rng.random() + random.random(), "x", random=True),
    lambda p: p.map(lambda x: x + random.random() * (x > 20), "x"),  # most rows show nothing
]


def watched(p: cedar.Pipeline, executor: str) -> tuple[list[Any], str]:
    with warnings.catch_warnings(record=True) as caught, p.loader(executor=executor, workers=1) as loader:
        warnings.simplefilter("always")
        next(iter(loader))
        return caught, loader.explain() + str(loader.report())


@pytest.mark.parametrize("number", range(len(DRAWS)))
@pytest.mark.parametrize("executor", ["inline", pytest.param("processes", marks=pytest.mark.heavy)])
def test_draws_from_global_generators_are_told_once_at_the_users_line(number: int, executor: str) -> None:
    caught, text = watched(DRAWS[number](ROWS), executor)
    (warning,) = caught
    assert "is not deterministic" in str(warning.message)
    assert "random=True" in str(warning.message)
    assert warning.filename == __file__
    assert text.count("is not deterministic") == 2, "in explain() and in the report"


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_functions_that_no_sample_needs_are_looked_at_in_the_run(executor: str) -> None:
    for p in (ROWS.map(declared, "x"), ROWS.filter(lambda x: random.random() < 0.5, "x")):
        caught, text = watched(p, executor)
        assert len(caught) == 1
        assert text.count("is not deterministic") == 2


@pytest.mark.parametrize(
    "add",
    [
        lambda p: p.map(lambda x, rng: x + rng.random(), "x", random=True),
        lambda p: p.map(lambda x: np.array([x, np.nan]), "x"),
        lambda p: p.map(lambda x: random.Random(int(x)).random(), "x"),
        lambda p: p.map(lambda x: (random.random(), x)[1], "x"),  # drawn, and not used
        lambda p: p.map(lambda x: object(), "x"),
    ],
)
def test_what_is_deterministic_is_not_blamed(add: Any) -> None:
    caught, text = watched(add(ROWS), "inline")
    assert not caught
    assert "deterministic" not in text


def test_a_function_without_draws_is_called_no_more_often_and_generators_stay() -> None:
    calls: list[float] = []
    p = ROWS.map(lambda x: calls.append(x) or x, "x").filter(col("x") >= 0)
    random.seed(3)
    before = determinism.generator_states()
    list(p.loader(executor="inline", plan="off"))
    assert len(calls) == 64 + 80, "for the type, and in the run"
    assert determinism.generator_states() == before
    with determinism.preserve_generators():
        random.random(), rand()
    assert determinism.generator_states() == before
