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
import pytest

import cedar
from cedar import col
from cedar.execution import splits
from cedar.graph import walk
from cedar.plan.data import Plan
from tests.toy_plans_random import Builder, Driven, Outcome, Toy, audited, outcome, plain, planner, plans_of, table

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
        metrics = loader._metrics
        assert not metrics.differences, (str(plan), metrics.differences)
        assert not metrics.fell_back or case.off.error, str(plan)


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
    if case.off.error or not case.off.units or (case.toy.skips and not case.toy.batched):
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
