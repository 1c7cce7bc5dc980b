"""Random pipelines with random steps that may be taken give the rows of the pipeline as written."""

from __future__ import annotations

import contextlib
import random
from functools import partial

import pytest

import cedar
from cedar.core.errors import Skip
from cedar.engine import task_context as tasks
from cedar.engine.binding import Binding
from cedar.operators.base import Env
from cedar.pipeline.planning import _skips
from cedar.plan.lower import Choice, lower
from cedar.plan.saved import plan_from, text_of
from cedar.plan.steps.step import facts_of
from tests.how_much import SEED, cases
from tests.oracle.check import Unclear, check_effects
from tests.plan.steps.toy_steps import some_steps
from tests.plan.toy_plans import shape
from tests.plan.verify import verify
from tests.toy_plans_random import outcome
from tests.toy_wide import Builder

CASES = cases(12)


@pytest.fixture(autouse=True)
def other_places_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "is_remote", lambda place: False)


@pytest.mark.heavy
@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize("seed", range(SEED, SEED + CASES))
def test_random_steps_change_no_row(seed: int, skips: bool) -> None:
    draw = random.Random(seed)
    try:
        pipeline = Builder(draw, fails="raise" if skips else None).build().pipeline
        lower(pipeline.node, Choice())
    except cedar.PipelineError:
        pytest.skip("no such pipeline can be")
    policy = Skip() if skips else None
    written = outcome(pipeline.loader(plan="off", executor="inline", on_error=policy, format="arrow"))
    if written.error is not None and written.error[0] == "PipelineError":
        pytest.skip("no such pipeline can run")
    for _ in range(4):
        plan, steps = some_steps(facts_of(pipeline.node, pipeline.node, partial(_skips, policy)), draw)
        verify(lower(plan.root, Choice(), pipeline.node))
        with contextlib.suppress(Unclear):
            why = check_effects(Binding(pipeline.node, policy, Env()), plan)
            assert why is None, (why, steps)
        loader = pipeline.loader(plan=plan, executor="inline", on_error=policy, format="arrow")
        loader._epochs.job.plans.first_rows._strict = False
        loader._epochs.job.plans._admitted = True  # nothing but its steps says that it is right
        found = outcome(loader)
        whole = (
            min(len(found.units), len(written.units)) if written.error else max(len(found.units), len(written.units))
        )
        assert (found.units[:whole], found.error) == (written.units[:whole], written.error), steps
        if not skips:
            assert shape(plan_from(text_of(plan), pipeline)) == shape(plan)
