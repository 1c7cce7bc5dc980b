"""Random pipelines under every plan: the same rows as written, in the same order, from every place and after every error.

CEDAR_CASES sets the number of random pipelines; CEDAR_SEED the first of them. A failure names its seed, which alone
gives the case again: CEDAR_SEED=<seed> CEDAR_CASES=1.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import col
from cedar.block import Block
from cedar.cursor import Keys
from cedar.execution import splits
from cedar.execution.comparing import difference
from cedar.graph import walk
from cedar.optimizer.commute import may_swap
from cedar.plan.data import Plan
from cedar.profile import Machine, OperatorProfile, Profile
from tests.toy_plans_random import (
    Builder, Driven, Outcome, Splits, Toy, audited, outcome, plain, planner, plans_of, plus, table,
)  # fmt: skip

CASES = int(os.environ.get("CEDAR_CASES", "60"))
SEED = int(os.environ.get("CEDAR_SEED", "0"))
GROUP = max(3, CASES // 40)


@pytest.fixture(autouse=True)
def other_places_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a plan places in other processes is a stage of its own, in the place that a test can afford."""
    monkeypatch.setattr(splits, "REMOTE", ())
    monkeypatch.setattr(splits, "_LEAST_WINDOW", 256)  # many windows, so that plans change often


class Case:
    """A random pipeline, its run as written, and plans of it."""

    def __init__(self, seed: int, **builder: Any) -> None:
        self.draw = draw = random.Random(seed)
        self.toy: Toy = Builder(draw, **builder).build()
        self.options: dict[str, Any] = {
            "seed": draw.randint(0, 2), "epoch": draw.randint(0, 1), "format": draw.choice(["arrow"] * 7 + ["numpy"]),
        }  # fmt: skip
        self.off = outcome(self.loader("off", executor="inline"))
        self.plans = plans_of(self.toy.pipeline.node, draw, 3)

    def loader(self, plan: Any, **options: Any) -> cedar.Loader:
        executor = options.pop("executor", None) or self.draw.choice(["inline", "inline", "threads"])
        return self.toy.pipeline.loader(plan=plan, executor=executor, workers=2, **(self.options | options))

    def any_plan(self) -> Any:
        return self.draw.choice(["off", *self.plans])

    def driven(self, plans: list[Plan], **options: Any) -> cedar.Loader:
        """A loader whose plan changes all the time, between the pipeline as written and others."""
        loader = self.loader("off", **options)
        order = [*plans, Plan.as_written(self.toy.pipeline.node)]
        self.draw.shuffle(order)
        Driven.drive(loader, order, self.draw.choice([1, 1, 2, 5]))
        return loader


# ---- properties ------------------------------------------------------------------------------------------------------


def the_same_under_every_plan(case: Case) -> None:
    for plan in case.plans:
        loader = case.loader(plan)
        if case.draw.random() < 0.5:
            audited(loader)
        same(outcome(loader), case.off, plan)
        assert not loader._metrics.differences, (str(plan), loader._metrics.differences)


def the_same_while_plans_change(case: Case) -> None:
    loader = case.driven(case.plans)
    same(outcome(loader), case.off, loader.plan)


def states_are_of_no_plan(case: Case) -> None:
    """From a state under any plan, and in the middle of changes, any other plan goes on."""
    if case.off.error:
        return
    plans: list[Any] = ["off", *case.plans]
    for first in case.draw.sample(plans, 2):
        loader = case.driven(case.plans) if case.draw.random() < 0.5 else case.loader(first)
        through = outcome(loader, states=True)
        same(through, case.off, loader.plan)
        for at in case.draw.sample(range(len(through.states)), min(3, len(through.states))):
            second = case.draw.choice(plans)
            again = case.driven(case.plans) if case.draw.random() < 0.3 else case.loader(second)
            again.load_state_dict(through.states[at])
            same(outcome(again), Outcome(case.off.units[at:], None, []), (at, str(loader.plan), str(again.plan)))


def ranks_and_their_number_change(case: Case) -> None:
    """What each of many ranks gets, and what others get that go on from their states, is the same under every plan."""
    if case.off.error:
        return
    world, after = case.draw.randint(2, 3), case.draw.randint(1, 3)
    states = []
    for rank in range(world):
        ranks = {"rank": rank, "world": world, "executor": "inline"}
        written = outcome(case.loader("off", **ranks))
        stop = case.draw.randint(0, len(written.units))
        loader = case.driven(case.plans, **ranks) if case.draw.random() < 0.5 else case.loader(case.any_plan(), **ranks)
        part = outcome(loader, stop, states=True)
        same(part, Outcome(written.units[:stop], None, []), loader.plan)
        states.append(part.states[-1])
    for rank in range(after):
        ranks = {"rank": rank, "world": after, "executor": "inline"}
        rest = []
        for plan in ("off", case.any_plan()):
            loader = case.loader(plan, **ranks)
            loader.load_state_dict(states)
            rest.append(outcome(loader))
        same(rest[1], rest[0], (rank, world, after, str(loader.plan)))


def steps_are_read_again(case: Case) -> None:
    """``read`` gives what was delivered."""
    if case.off.error or not case.off.units or case.toy.skips:
        return
    loader = case.driven(case.plans)
    for at in case.draw.sample(range(len(case.off.units)), min(2, len(case.off.units))):
        assert plain(loader.read(at)) == case.off.units[at]
    loader.close()


def same(found: Outcome, wanted: Outcome, plan: object) -> None:
    for number, (ours, theirs) in enumerate(zip(found.units, wanted.units, strict=False)):
        assert ours == theirs, f"unit {number} differs\n{plan}"
    assert len(found.units) == len(wanted.units) or wanted.error, f"{plan}"
    assert found.error == wanted.error, f"{plan}"


PROPERTIES: list[Callable[[Case], None]] = [
    the_same_under_every_plan, the_same_while_plans_change, states_are_of_no_plan, ranks_and_their_number_change,
    steps_are_read_again,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("first", range(SEED, SEED + CASES, GROUP))
def test_random_pipelines(first: int, record_property: Callable[[str, object], None]) -> None:
    seeds = range(first, min(first + GROUP, SEED + CASES))
    record_property("random pipelines under plans", len(seeds))
    check_seeds(seeds)


def check_seeds(seeds: Iterable[int]) -> None:
    for seed in seeds:
        try:
            case = Case(seed)
        except cedar.PipelineError:  # what was drawn cannot be a pipeline
            continue
        for check in PROPERTIES:
            try:
                check(case)
            except Exception as error:
                error.add_note(f"{check.__name__} failed: CEDAR_SEED={seed} CEDAR_CASES=1; {case.toy.steps}")
                raise


# ---- found by the above ----------------------------------------------------------------------------------------------


def same_by_rules(p: cedar.Pipeline, figures: dict[int, tuple[float, float]] | None = None, **options: Any) -> Plan:
    """The plan by rules (and the bytes in and out of operators, where given), which gives what was written."""
    made = planner(p.node)
    plan = made.begin()
    if figures is not None:
        measured = {
            i: OperatorProfile("", 9, 900, 1e-5, 1e-5, 1.0, *figures.get(i, (8, 8)))
            for i, _ in enumerate(walk(p.node))
        }
        plan = made.best(Profile("", measured, Machine(4, 1 << 34), 900))
    written, found = (outcome(p.loader(plan=each, executor="inline", **options)) for each in ("off", plan))
    same(found, written, plan)
    assert written.error is None
    return plan


def numbers() -> cedar.Pipeline:
    return cedar.from_arrow(table(0, 45)).select("id", "x")


def unnamed(known: bool = True) -> cedar.Pipeline:
    """Of a source that does not know its columns."""
    return cedar.from_source(Splits(0, [3, 8, 5], known, streaming=False))


def test_a_filter_stays_between_two_shuffles() -> None:
    same_by_rules(numbers().shuffle(window=10).filter(col("x") % 5 != 2).shuffle(window=7, seed=3).batch(4))


def test_a_filter_stays_between_a_concat_that_counts_and_a_shuffle() -> None:
    both = cedar.concat(numbers().skip(3), numbers())
    same_by_rules(both.filter(col("x") % 5 != 2).shuffle(window=7).batch(4))
    plan = same_by_rules(both.filter(col("x") % 5 != 2).batch(4))
    assert any(d.rule == "push_filter" and d.applied for d in plan.decisions)  # where nobody has windows


def test_new_columns_of_unknown_rows_keep_their_order() -> None:
    p = unnamed().map(plus, "x", into="a", dtype=int).map(plus, "z", into="b", dtype=int).batch(4)
    lower, upper = list(walk(p.node))[1:3]
    facts = planner(p.node)._facts(p.node, None)
    assert "their order would change" in may_swap(lower, upper, facts).reason
    known = numbers().map(plus, "x", into="a", dtype=int).map(plus, "id", into="b", dtype=int).batch(4)
    lower, upper = list(walk(known.node))[2:4]
    assert may_swap(lower, upper, planner(known.node)._facts(known.node, None)) is None


@pytest.mark.parametrize("last", ["pad", "keep"])
def test_padding_of_ranks_is_not_computed_on(last: Any) -> None:
    """A rank that has fewer batches than others gets one of padding, which no function sees."""
    batches = numbers().batch(7, last=last)
    for p in (batches.map(ends, "x", dtype=int).take(3), batches.map(ends, "x", dtype=int).shuffle(seed=2)):
        for rank in range(2):
            same_by_rules(p, {2: (8, 80), 3: (8, 80)}, rank=rank, world=2)


def ends(x: Any) -> Any:
    return x * 2 + len(x)


@pytest.mark.parametrize("detail", [False, True])
def test_rows_that_are_all_dropped_have_no_columns_to_miss(detail: bool) -> None:
    for whole in (lambda p: p.map_batches(lambda c: c, format="arrow"), lambda p: p.map(lambda row: row)):
        p = whole(unnamed().filter(lambda i: i < 0, "id")).map(plus, "id", dtype=int)
        assert list(p.with_columns(a=col("x") * 2).loader(plan="auto" if detail else "off")) == []


def test_items_of_lists_have_one_name_whoever_made_them(tmp_path: Path) -> None:
    path = tmp_path / "lists.parquet"
    pq.write_table(table(0, 20), path)
    p = cedar.read_parquet(str(path)).filter(col("x") > 3).batch(4)
    types = [
        str(batch["l"].type)
        for plan in ("off", planner(p.node).begin())
        for batch in p.loader(plan=plan, format="arrow")
    ]
    assert set(types) == {"large_list<item: int64>"}


def test_audits_take_a_nan_for_a_nan() -> None:
    both = np.array([np.nan, -np.nan, 0.0])
    columns = [both, pa.array(both), both.astype(np.float32)]
    for column in columns:
        blocks = [Block({"x": column[i : i + 1]}, Keys(np.arange(1))) for i in range(3)]
        assert difference([blocks[0]], [blocks[1]]) is None
        assert difference([blocks[0]], [blocks[2]]) is not None
    zeros = [Block({"x": np.array([zero])}, Keys(np.arange(1))) for zero in (0.0, -0.0)]
    assert difference(zeros[:1], zeros[1:]) is not None


# ---- functions that fail ---------------------------------------------------------------------------------------------

COUNTS_ROWS = {"take", "skip", "zip", "shared", "mix", "sample", "repeat", "pack", "grouped"}
DROPS_ROWS = {"filter", "filter_fn", "filter_null", "filter_row", "flat_map", "refilled"}


@pytest.mark.slow
@pytest.mark.parametrize("drops", [False, True])
def test_functions_that_raise(drops: bool) -> None:
    """The same error of the same row; where rows are dropped, perhaps none, if the row that fails is one of them."""
    without = frozenset(COUNTS_ROWS | (set() if drops else DROPS_ROWS))
    for seed in range(SEED, SEED + max(10, CASES // 2)):
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
    nodes = [n for n in walk(node)]
    rest = [n for n in nodes[1:-1] if nodes.index(n) not in last]
    current = nodes[0]
    for each in [*(nodes[i] for i in last), *rest, nodes[-1]]:
        current = planner_node(each, current)
    return Plan(node, current, method="exact")


def planner_node(node: Any, below: Any) -> Any:
    from dataclasses import replace

    return replace(node, inputs=(below,), origin=node.logical)


@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_a_function_that_fails_in_the_plans_order_alone(executor: str) -> None:
    p = u_and_s().filter(lambda u: u is not None, "u").filter(lambda u: len(u) > 3, "u").batch(8, last="keep")
    plan = ordered(p, 3)
    wanted = outcome(p.loader(plan="off"))
    loader = p.loader(plan=plan, executor=executor, workers=2)
    assert outcome(loader) == wanted
    assert wanted.error is None
    assert loader._metrics.fell_back > 0


def test_a_map_that_fails_on_rows_that_are_dropped_before_it() -> None:
    def inverse(d: int) -> float:
        return 1 / (d % 5)

    p = u_and_s().filter(lambda d: d % 5 > 0, "d").map(inverse, "d", into="v", dtype=float).batch(8, last="keep")
    plan = ordered(p, 1, 3)
    loader = p.loader(plan=plan)
    assert outcome(loader) == outcome(p.loader(plan="off"))
    assert loader._metrics.fell_back > 0


def test_an_error_in_both_orders_is_the_error_as_written() -> None:
    p = u_and_s().filter(lambda u: len(u) > 3, "u").filter(lambda d: d % 3 > 0, "d").batch(8)
    found = []
    for plan in (ordered(p, 1, 3), "off"):
        found.append(outcome(p.loader(plan=plan, executor="inline")))
    assert found[0].error == found[1].error
    assert found[1].error is not None and "row 17" in found[1].error[2]


@pytest.mark.parametrize("refill", [False, True])
def test_skipped_rows_and_their_quarantine(tmp_path: Path, refill: bool) -> None:
    """The same rows are skipped by the same operators, whatever the plan."""
    for seed in range(SEED, SEED + max(8, CASES // 8)):
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

    def splits(self) -> list[Any]:
        from cedar.datasets.base import Split

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
    from cedar.execution.binding import Binding
    from cedar.execution.checking import check_plan
    from cedar.operators.base import Env

    p = lists().map(spoils, "box", into="a", dtype=int).map(looks, "box", into="b", dtype=int).batch(10)
    plan = ordered(p, 2)
    found = check_plan(Binding(p.node, None, Env()), plan, 64)
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
    assert loader._metrics.differences
    assert not loader._plans.rewrites
    assert "other rows than the pipeline as written" in caplog.text
