"""Steps drawn by lot, and plans made of those that may be taken."""

from __future__ import annotations

import random

from cedar.core.errors import CedarError
from cedar.plan import graph
from cedar.plan.data import Plan
from cedar.plan.graph import Node
from cedar.plan.steps import (
    Cache,
    Cross,
    DropResults,
    Facts,
    Group,
    Keep,
    KeepOrder,
    Place,
    PushColumns,
    PushFilter,
    Reorder,
    Share,
    Step,
)  # fmt: skip
from cedar.plan.steps.pushdown import columns_needed, unread
from cedar.plan.steps.sweep import Sweep, one_step, run_pass


def drawn(node: Node, facts: Facts, draw: random.Random) -> Step:
    """Any step at a node, most of which may not be taken."""
    schema = [list(child.schema or ()) for child in node.inputs]
    some = tuple(tuple(name for name in names if draw.random() < 0.8) for names in schema)
    order = list(range(draw.randint(2, 4)))
    draw.shuffle(order)
    needed = columns_needed(node, facts) if not node.inputs else None
    kinds: list[Step] = [
        Reorder(tuple(order)), Reorder((1, 0)), Cross("down"), Cross("up", draw.randint(1, 2), draw.randint(1, 2)),
        Group(draw.randint(1, 2)), PushFilter(), Share(), Cache(draw.choice([None, 0, 1, 2])),
        DropResults((draw.randint(0, 2),)), Keep(some), Keep(unread(node, facts) or ((),)),
        PushColumns(needed or ()), PushColumns(tuple(node.schema or ())[draw.randint(0, 1) :]),
    ]  # fmt: skip
    return draw.choice(kinds)


def take(facts: Facts, number: int, step: Step) -> tuple[Facts, Sweep] | None:
    """The graph after a step at a node, by its number; None if it may not be taken."""

    def ask(at: int, node: Node, known: Facts) -> Step | None:
        return step if at == number and step.check(node, known) is None else None

    root, sweep = run_pass(facts, ask, step.downward)
    return (facts.at(root), sweep) if sweep.steps else None


def some_steps(facts: Facts, draw: random.Random, tries: int = 100) -> tuple[Plan, list[str]]:
    """A plan of legal steps, and what they are."""
    sweeps: list[Sweep] = []
    taken: list[str] = []
    for _ in range(tries):
        nodes = graph.walk(facts.root)
        number = draw.randrange(len(nodes))
        step = drawn(nodes[number], facts, draw)
        try:
            found = take(facts, number, step)
        except CedarError:  # the graph cannot be: inputs of a concat have other columns
            continue
        if found is not None:
            facts, sweep = found
            sweeps.append(sweep)
            taken.append(f"{step} at {nodes[number].operator.label()}")
    if draw.random() < 0.5:
        places = [
            draw.choice(["", "threads", "processes"]) if not n.inputs or n.operator.inputs == 1 else ""
            for n in graph.walk(facts.root)
        ]
        place = Place(tuple(places))
        if place.check(facts.root, facts) is None:
            root, sweep = one_step(facts, place)
            facts, sweeps = facts.at(root), [*sweeps, sweep]
    root, sweep = one_step(facts, KeepOrder())
    return Plan(facts.logical, root, method="exact", sweeps=(*sweeps, sweep)), taken
