"""Plans that a planner may make of a pipeline, drawn by lot; plans that change while they run; runs that compare."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import cedar
from cedar.engine.first_rows import FirstRows
from cedar.engine.plan_control import Plans
from cedar.optimizer.arrange import Arranged, find_chains, find_precedence, steps_of
from cedar.optimizer.planner import AutoPlanner
from cedar.optimizer.rewrite import rewrite
from cedar.optimizer.rules import MOVES, RULES, TRIMS
from cedar.pipeline.planning import planner_for
from cedar.plan import graph
from cedar.plan.data import Budget, Decision, Difference, Plan
from cedar.plan.graph import Node
from cedar.plan.lower import Choice, lower
from cedar.plan.steps.order import may_swap
from cedar.profile import Machine, OperatorProfile, Profile

# ---- plans -----------------------------------------------------------------------------------------------------------


def profile(root: Node, draw: random.Random) -> Profile:
    """Figures drawn by lot, over several orders of magnitude."""
    figures = {}
    for ordinal, node in enumerate(graph.walk(root)):
        cpu = 10 ** draw.uniform(-8, -3)
        wall = cpu * draw.choice([1.0, 1.0, 1.3, 20.0])
        keep = draw.choice([1.0, 0.9, 0.5, 0.01]) if node.operator.effects().rows != "1:1" else 1.0
        sizes = 10 ** draw.uniform(0, 4), 10 ** draw.uniform(0, 4)
        figures[ordinal] = OperatorProfile("op", 10, 1000, wall, cpu, keep, *sizes, gil=draw.choice([0.0, 0.5, 1.0]))
    machine = Machine(draw.choice([1, 4, 64]), 1 << 34, ship_seconds=5e-4, ship_bytes=1e9, start_seconds=0.0)
    return Profile("", figures, machine, rows=1000, workers=2, executor="threads")


def planner(root: Node, draw: random.Random | None = None, skips: bool = False) -> AutoPlanner:
    made = planner_for(root, Budget(), "auto", 2, cedar.Skip() if skips else None, exact=True)
    if draw is not None:
        made.executors = draw.choice([("threads",), ("threads", "processes"), ("inline",)])
        names = [rule.__name__ for rule in RULES] + ["order"]
        made.refused = frozenset(draw.sample(names, draw.choice([0, 0, 1, 3])))
    return made


def plans_of(root: Node, draw: random.Random, count: int, skips: bool = False) -> list[Plan]:
    """What a planner may make of a pipeline: its rules, some rule alone, and the best for profiles drawn by lot."""
    plans = [planner(root, skips=skips).begin()]
    alone = draw.choice(RULES)
    one = planner(root, skips=skips)
    one.refused = frozenset(rule.__name__ for rule in RULES if rule is not alone)
    plans.append(one.begin())
    for number in range(count):
        made = planner(root, draw, skips)
        plans.append(by_lot(made, draw) if number % 2 else made.best(profile(root, draw)))
    return plans


def by_lot(made: AutoPlanner, draw: random.Random) -> Plan:
    """Any order that a search may choose, however bad, in any places."""
    figures = profile(made.root, draw)
    moves = rewrite(made._facts(made.root, figures), MOVES)
    moved, decisions = moves.root, list(moves.decisions)
    facts = made._facts(moved, figures)
    arranged = []
    for chain in find_chains(lower(moved, Choice(), made.root), facts):
        precedence = find_precedence(chain, facts, may_swap)
        order: list[int] = []
        done = 0
        while len(order) < len(chain.nodes):
            order.append(draw.choice(list(precedence.ready(done))))
            done |= 1 << order[-1]
        places = tuple(draw.choice(["threads", "threads", "processes"]) for _ in order)
        arranged.append(Arranged(chain, tuple(order), places, draw.choice(["threads", "processes"])))
        decisions.append(Decision("order", " ".join(map(str, order)), applied=order != sorted(order)))
    ordered, sweeps, refused = steps_of(moved, facts, arranged)
    assert not refused
    trims = rewrite(made._facts(ordered, figures), TRIMS)
    steps = (*moves.sweeps, *sweeps, *trims.sweeps)
    return Plan(made.root, trims.root, (*decisions, *trims.decisions), method="local", sweeps=steps)


_CHANGES = 40  # a plan that changes before a row is delivered begins where the one before it did


class Driven(Plans):
    """Another plan at every k-th window's end, in a fixed order."""

    every: int
    turn: int
    order: list[Plan]

    @staticmethod
    def drive(loader: cedar.Loader, plans: Sequence[Plan], every: int) -> None:
        """Make a loader's plans change."""
        found: Any = loader._epochs.job.plans
        found.__class__ = Driven
        found.every, found.turn, found.order = every, 0, list(plans)
        found.current = found.order[0]

    def poll(self) -> None:
        self.turn += 1
        if self.turn % self.every == 0 and self._next is None and len(self.history) < _CHANGES:
            self._schedule_switch(self.order[self.turn // self.every % len(self.order)], "in turn")


def audited(loader: cedar.Loader, every: int = 5) -> None:
    """Let one in so many pieces that a plan gives be compared with the pipeline as written, the first one too."""
    found: Any = loader._epochs.job.plans
    pieces = itertools.count()
    found.audits.share = 1.0  # as long as it takes
    found.audit_due = lambda _: found.rewrites and next(pieces) % every == 0


def check_once(patch: pytest.MonkeyPatch) -> None:
    """Let loaders that are given one plan of one pipeline share the audit of its first rows."""
    known: dict[tuple[Any, ...], tuple[Any, ...]] = {}  # with what the key names, so that no other gets its id
    difference = FirstRows.difference

    def shared(self: FirstRows, plan: Plan, *_: Any) -> Difference | None:
        key = (id(plan), id(self.written.root), self.world)
        if key not in known:
            known[key] = (plan, self.written, difference(self, plan))
        found: Difference | None = known[key][-1]
        return found

    patch.setattr(FirstRows, "difference", shared)


# ---- runs ------------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Outcome:
    """What a run gave, and what it ended in."""

    units: list[Any]
    error: tuple[Any, ...] | None
    states: list[Any]

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Outcome) and self.units == other.units and self.error == other.error


def plain(value: Any) -> Any:
    """A column or value as something that compares bit by bit."""
    if hasattr(value, "to_list"):  # jagged
        return ["jagged", plain(value.values), plain(value.offsets)]
    if isinstance(value, pa.Table):
        return [
            [name, str(c.type), repr(c.to_pylist())] for name, c in zip(value.column_names, value.columns, strict=True)
        ]
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "f":  # polars gives a NaN of either sign, by the number of rows in a block
            value = np.where(np.isnan(value), value.dtype.type(np.nan), value)
        body = [plain(v) for v in value.tolist()] if value.dtype == object else value.tobytes().hex()
        return [str(value.dtype), list(value.shape), body]
    if isinstance(value, dict):
        return [[name, plain(inner)] for name, inner in value.items()]
    return [type(value).__name__, repr(value)]


def outcome(loader: cedar.Loader, stop: int | None = None, states: bool = False) -> Outcome:
    """One epoch, or its first ``stop`` units; with the state after each."""
    found = Outcome([], None, [])
    try:
        if states:
            found.states.append(loader.state_dict())
        if stop != 0:
            for unit in loader:
                found.units.append(plain(unit))
                if states:
                    found.states.append(loader.state_dict())
                if stop is not None and len(found.units) >= stop:
                    break
    except cedar.CedarError as error:
        cause = error.__cause__
        found.error = (
            type(error).__name__,
            error.what,
            str(error.row),
            str(error.site),
            type(cause).__name__,
            str(cause),
        )
    finally:
        loader.close()
    return found
