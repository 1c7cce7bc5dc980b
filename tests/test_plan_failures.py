"""Functions that fail or lie, under plans: the rows and the errors are those of the pipeline as written."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cedar
from cedar.datasets.base import Split
from cedar.engine import task_context as tasks
from cedar.engine.binding import Binding
from cedar.engine.first_rows import FirstRows
from cedar.engine.streams import splits
from cedar.operators.base import Env
from cedar.plan.data import Plan
from cedar.plan.graph import walk
from tests.how_much import SEED
from tests.test_plan_exactness import CASES, Case
from tests.toy_plans_random import audited, check_once, outcome, plans_of
from tests.toy_wide import Builder

pytestmark = pytest.mark.heavy


@pytest.fixture(autouse=True)
def other_places_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a plan places in other processes is its own stage, in the place that a test can afford."""
    monkeypatch.setattr(tasks, "is_remote", lambda place: False)
    monkeypatch.setattr(splits, "_MIN_WINDOW_BYTES", 256)  # many windows, so that plans change often
    check_once(monkeypatch)


# ---- functions that fail ---------------------------------------------------------------------------------------------

COUNTS_ROWS = {"take", "skip", "zip", "shared", "mix", "sample", "repeat", "pack", "grouped"}
DROPS_ROWS = {"filter", "filter_fn", "filter_null", "filter_row", "flat_map", "refilled"}


@pytest.mark.heavy
@pytest.mark.parametrize("drops", [False, True])
def test_functions_that_raise(drops: bool) -> None:
    """The same error of the same row; where rows are dropped, perhaps none, if the row that fails is one of them."""
    without = frozenset(COUNTS_ROWS | (set() if drops else DROPS_ROWS))
    for seed in range(SEED, SEED + max(6, CASES // 4)):
        try:
            case = Case(seed, fails="raise", without=without)
        except cedar.PipelineError:
            continue
        for plan in case.plans:
            found = outcome(case.loader(plan, executor="inline"))
            whole = min(len(found.units), len(case.off.units))
            assert found.units[:whole] == case.off.units[:whole], (seed, str(plan))
            if found.error or not drops:
                wanted = case.off.error if not drops else found.error if case.off.error else None
                assert found.error == wanted, (seed, str(plan))


def u_and_s() -> cedar.Pipeline:
    """Texts, one in 40 of which is null."""
    rows = [{"id": i, "u": None if i % 40 == 17 else "x" * (i % 7)} for i in range(200)]
    return cedar.from_items(rows).map(lambda i: i * 2, "id", into="d", dtype=int)


def ordered(p: cedar.Pipeline, *last: int) -> Plan:
    """The plan that runs the row operators of a single chain in another order: the last first, by ordinal."""
    node = p.node
    nodes = list(walk(node))
    rest = [n for n in nodes[1:-1] if nodes.index(n) not in last]
    current = nodes[0]
    for each in [*(nodes[i] for i in last), *rest, nodes[-1]]:
        current = replace(each, inputs=(current,), origin=each)
    return Plan(node, current, method="exact")


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_a_function_that_fails_in_the_plans_order_alone(executor: str) -> None:
    p = u_and_s().filter(lambda u: u is not None, "u").filter(lambda u: len(u) > 3, "u").batch(8, last="keep")
    plan = ordered(p, 3)
    wanted = outcome(p.loader(plan="off"))
    loader = p.loader(plan=plan, executor=executor, workers=2)
    assert outcome(loader) == wanted
    assert wanted.error is None
    assert loader._epochs.job.metrics.fell_back > 0


def test_a_map_that_fails_on_rows_that_are_dropped_before_it() -> None:
    def inverse(d: int) -> float:
        return 1 / (d % 5)

    p = u_and_s().filter(lambda d: d % 5 > 0, "d").map(inverse, "d", into="v", dtype=float).batch(8, last="keep")
    plan = ordered(p, 1, 3)
    loader = p.loader(plan=plan)
    assert outcome(loader) == outcome(p.loader(plan="off"))
    assert loader._epochs.job.metrics.fell_back > 0


def test_an_error_in_both_orders_is_the_error_as_written() -> None:
    p = u_and_s().filter(lambda u: len(u) > 3, "u").filter(lambda d: d % 3 > 0, "d").batch(8)
    found = []
    for plan in (ordered(p, 1, 3), "off"):
        found.append(outcome(p.loader(plan=plan, executor="inline")))
    assert found[0].error == found[1].error
    assert found[1].error is not None
    assert "row 17" in found[1].error[2]


@pytest.mark.parametrize("refill", [False, True])
def test_rows_that_fail_are_skipped_and_kept_alike(tmp_path: Path, refill: bool) -> None:
    """The same rows are skipped by the same operators, whatever the plan."""
    for seed in range(SEED, SEED + max(4, CASES // 8)):
        draw = random.Random(seed)
        try:
            pipeline = Builder(draw, fails="raise").build().pipeline
        except cedar.PipelineError:
            continue
        kept = []
        plans = plans_of(pipeline.node, draw, 2, skips=True)
        for number, plan in enumerate(["off", *plans]):
            where = tmp_path / f"{seed}-{number}"
            policy = cedar.Skip(quarantine=str(where), refill=refill)
            loader = pipeline.loader(plan=plan, executor="inline", on_error=policy, format="arrow")
            found = outcome(loader)
            lines = [file.read_text() for file in sorted(where.glob("*.jsonl"))]
            kept.append((found.units, found.error, lines, loader.report().skipped))
            assert kept[-1] == kept[0], (seed, str(plan))


# ---- functions that lie ----------------------------------------------------------------------------------------------


def lists(n: int = 400) -> cedar.Pipeline:
    return cedar.from_source(Lists(n))


class Lists:
    """Arrays of objects: what a function does to them in place shows."""

    def __init__(self, n: int) -> None:
        self.n = n

    def splits(self) -> list[Split]:
        return [Split(file=i, rows=20, part=i) for i in range(self.n // 20)]

    def read(self, split: Any) -> Any:
        ids = range(split.part * 20, split.part * 20 + 20)
        boxes = np.empty(20, dtype=object)
        for place, i in enumerate(ids):
            boxes[place] = {"n": i}
        yield {"id": np.array(ids), "box": boxes}


def spoils(box: dict[str, int]) -> int:
    """Changes what it is given."""
    box["n"] += 1000
    return box["n"]


def looks(box: dict[str, int]) -> int:
    return box["n"]


def test_a_function_that_changes_its_argument_is_found_by_the_sample() -> None:
    p = lists().map(spoils, "box", into="a", dtype=int).map(looks, "box", into="b", dtype=int).batch(10)
    plan = ordered(p, 2)
    found = FirstRows(Binding(p.node, None, Env())).difference(plan)
    assert found is not None


def test_a_function_that_changes_its_argument_is_found_by_an_audit(caplog: pytest.LogCaptureFixture) -> None:
    def seldom(box: dict[str, int]) -> int:
        if 200 <= box["n"] < 210:
            box["n"] += 1000
        return box["n"]

    p = lists().map(seldom, "box", into="a", dtype=int).map(looks, "box", into="b", dtype=int).select("id", "a", "b")
    p = p.batch(10, last="keep")
    wanted = outcome(p.loader(plan="off", executor="inline"))
    loader = p.loader(plan=ordered(p, 2), executor="inline")
    audited(loader)
    found = outcome(loader)
    assert found.error is None
    assert found.units == wanted.units
    assert loader._epochs.job.metrics.differences
    assert not loader._epochs.job.plans.rewrites
    assert "different rows than the pipeline as written" in caplog.text
