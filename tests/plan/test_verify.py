"""Verify: a plan whose stages or states are broken is refused, and those of random pipelines hold."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest

import cedar
from cedar import col
from cedar.optimizer.rules import RULES
from cedar.plan import graph
from cedar.plan.graph import Node
from cedar.plan.lower import Choice, lower
from cedar.plan.physical import Physical, Stage
from tests.how_much import cases
from tests.plan.toy_stages import all_kinds, numbers
from tests.plan.verify import verify
from tests.toy_pipelines import build
from tests.toy_plans_random import planner, plans_of

CASES = cases(10)


def replaced(physical: Physical, number: int, **changes: Any) -> Physical:
    stages = [*physical.stages]
    stages[number] = dataclasses.replace(stages[number], **changes)
    return dataclasses.replace(physical, stages=tuple(stages))


def each(physical: Physical, *kinds: str) -> Iterator[tuple[int, Stage]]:
    return ((i, stage) for i, stage in enumerate(physical.stages) if stage.kind in kinds)


def an_operator_lost(physical: Physical) -> Iterator[Physical]:
    for i, stage in each(physical, "task", "group", "stream"):
        for k in range(len(stage.operators)):
            yield replaced(physical, i, operators=stage.operators[:k] + stage.operators[k + 1 :])


def an_operator_twice(physical: Physical) -> Iterator[Physical]:
    for i, stage in each(physical, "task", "group", "stream"):
        if stage.operators:
            yield replaced(physical, i, operators=(*stage.operators, stage.operators[-1]))


def an_order_swapped(physical: Physical) -> Iterator[Physical]:
    for i, stage in each(physical, "task"):
        if len(stage.operators) > 1:
            yield replaced(physical, i, operators=stage.operators[::-1])


def a_stream_operator_in_a_task(physical: Physical) -> Iterator[Physical]:
    for i, stage in each(physical, "stream"):
        if len(stage.inputs) == 1:
            yield replaced(physical, i, kind="task", windows=-1)


def a_link_lost(physical: Physical) -> Iterator[Physical]:
    for i, stage in each(physical, "read"):
        first, *rest = stage.segments
        if first.links:
            yield replaced(physical, i, segments=(dataclasses.replace(first, links=first.links[1:], kept=0), *rest))


def a_source_lost(physical: Physical) -> Iterator[Physical]:
    for i, stage in each(physical, "read"):
        yield replaced(physical, i, segments=stage.segments[1:])


def sources_in_another_order(physical: Physical) -> Iterator[Physical]:
    for i, stage in each(physical, "read"):
        if len(stage.segments) > 1:
            yield replaced(physical, i, segments=stage.segments[::-1])


def a_source_twice(physical: Physical) -> Iterator[Physical]:
    for i, stage in each(physical, "read"):
        yield replaced(physical, i, segments=(*stage.segments, stage.segments[-1]))


def windows_lost(physical: Physical) -> Iterator[Physical]:
    for i, stage in each(physical, "read", "window"):
        if stage.windows >= 0:
            yield replaced(physical, i, windows=-1)


def rows_counted_wrongly(physical: Physical) -> Iterator[Physical]:
    for i, stage in each(physical, "read", "task", "group"):
        yield replaced(physical, i, preserves_units=not stage.preserves_units)


def a_stage_passed_by(physical: Physical) -> Iterator[Physical]:
    for i, stage in each(physical, "task", "stream", "group"):
        below = physical.stages[stage.inputs[0]]
        if below.inputs and below.operators:
            yield replaced(physical, i, inputs=(below.inputs[0], *stage.inputs[1:]))


def an_input_too_few(physical: Physical) -> Iterator[Physical]:
    for i, stage in each(physical, "stream", "task", "group", "deal"):
        yield replaced(physical, i, inputs=stage.inputs[1:])


def a_stage_that_draws_from_itself(physical: Physical) -> Iterator[Physical]:
    for i, _ in each(physical, "task", "deal"):
        yield replaced(physical, i, inputs=(i,))


def nobody_deals(physical: Physical) -> Iterator[Physical]:
    yield replaced(physical, physical.deal, kind="task")


def the_end_lost(physical: Physical) -> Iterator[Physical]:
    yield dataclasses.replace(physical, stages=physical.stages[:-1])


def what_others_place_elsewhere(physical: Physical) -> Iterator[Physical]:
    for i, stage in each(physical, "task"):
        if stage.place:
            yield replaced(physical, i, place="nowhere")


MUTANTS: list[Callable[[Physical], Iterator[Physical]]] = [
    an_operator_lost, an_operator_twice, an_order_swapped, a_stream_operator_in_a_task, a_link_lost, a_source_lost,
    sources_in_another_order, a_source_twice, windows_lost, rows_counted_wrongly, a_stage_passed_by,
    an_input_too_few, a_stage_that_draws_from_itself, nobody_deals, the_end_lost, what_others_place_elsewhere,
]  # fmt: skip


def placed(root: Node) -> Node:
    """The same with everything in other processes."""
    return graph.replace(root, lambda node: dataclasses.replace(node, place="processes", origin=_of(root, node)))


def _of(root: Node, node: Node) -> Node:
    return next(each for each in graph.walk(root) if each.operator is node.operator)


@pytest.mark.parametrize("mutate", MUTANTS, ids=[mutate.__name__ for mutate in MUTANTS])
def test_a_broken_plan_is_refused(mutate):
    written = lower(all_kinds().node, Choice())
    plan = lower(placed(written.nodes[-1]), Choice(), written.nodes[-1])
    verify(written)
    verify(plan)
    broken = [*mutate(written), *mutate(plan)]
    assert broken
    for mutant in broken:
        with pytest.raises(cedar.PlanError):
            verify(mutant)


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(CASES))
def test_plans_of_random_pipelines_hold(seed):
    draw = random.Random(seed)
    try:
        root = build(draw).pipeline.node
        plans = plans_of(root, draw, 3)
        written = lower(root, Choice())
    except cedar.PipelineError:
        pytest.skip("no such pipeline can be")
    verify(written)
    for rule in RULES:  # what each of them does by itself
        alone = planner(root)
        alone.refused = frozenset(other.__name__ for other in RULES if other is not rule)
        verify(lower(alone.begin().root, Choice(), root))
    for plan in plans:
        physical = lower(plan.root, Choice(), root)
        verify(physical)
        assert {work.ordinal for work in physical.works if not work.inputs} == {
            i for i, work in enumerate(written.works) if not work.inputs
        }
        for mutate in MUTANTS:
            for mutant in islice(mutate(physical), 3):
                assert mutant == physical or refused(mutant), (mutate.__name__, str(mutant))


def refused(mutant: Physical) -> bool:
    try:
        verify(mutant)
    except cedar.PlanError:
        return True
    return False


def test_a_check_is_quick():
    """Counted in calls of Python: a plan of 20 operators takes no more than some dozen for each."""
    import sys

    p = numbers()
    for i in range(18):
        p = p.with_columns(**{f"c{i}": col("x") + i})
    written = lower(p.batch(4).node, Choice())
    verify(written)
    calls = 0

    def count(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal calls
        calls += event == "call"

    began = time.process_time()
    sys.setprofile(count)
    verify(written)
    sys.setprofile(None)
    assert calls < 30 * len(written.works), (calls, time.process_time() - began)
