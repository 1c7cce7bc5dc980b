"""What is read once: sub-pipelines with several consumers."""

from __future__ import annotations

from typing import Any

import pytest

import cedar
from cedar import col
from tests.store.toy_counted import Calls, Counting
from tests.toy_runs import run


@pytest.mark.parametrize("executor", ["inline", "threads"])
@pytest.mark.parametrize(
    "join",
    [
        lambda p: cedar.zip(p, p.select(y=col("x") * 2)),
        lambda p: cedar.zip(
            p.map(lambda x: x + 1, "x"), p.select(y="x"), p.map(lambda x: x, "x", into="z").select("z")
        ),
        lambda p: cedar.mix([(p, 1.0), (p.with_columns(x=col("x") + 1), 1.0)], stop="all"),
        lambda p: cedar.zip(cedar.zip(p, p.select(y="x")), p.select(z="x")),
    ],
)
def test_a_shared_sub_pipeline_is_read_once(join: Any, executor: str) -> None:
    source = Counting()
    loader = join(cedar.from_source(source)).loader(executor=executor, workers=2)
    list(loader)  # the first rows are read once more, for their types
    source.reads.clear()
    list(loader)
    assert set(source.reads.values()) == {1}


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_a_shared_function_runs_once_per_row(executor: str) -> None:
    calls = Calls()
    p = cedar.from_source(Counting()).map(calls, "x", dtype=int)
    list(cedar.zip(p, p.select(y="x")).loader(executor=executor))
    assert calls.n == 60


@pytest.mark.heavy
def test_consumers_that_drift_apart_get_the_same_rows() -> None:
    shared = cedar.from_source(Counting(splits=300)).map(lambda x: x, "x", dtype=int)
    p = cedar.concat(shared, shared.with_columns(x=-col("x")))
    for executor in ("inline", "threads"):
        assert [r["x"] for r in p.loader(executor=executor)] == [*range(3000), *(-x for x in range(3000))]
    q = cedar.mix([(shared, 1.0), (shared.skip(2500), 9.0)], stop="all").batch(7, last="keep")
    full, _ = run(q.loader(executor="inline"))
    assert run(q.loader(executor="threads"))[0] == full
    head, state = run(q.loader(), 60)
    loader = q.loader()
    loader.load_state_dict(state)
    loader.set_epoch(state["epoch"])
    assert head + run(loader)[0] == full
