"""Sweep: applies steps at the nodes of a graph in one pass, or replays recorded steps.

A pass asks a rule for a step at every node and rebuilds the graph once, so its cost is linear in the number of nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from cedar.core.errors import CedarError, PlanError
from cedar.plan import graph
from cedar.plan.graph import Node
from cedar.plan.lower import changes
from cedar.plan.steps.facts import Facts, all_of, spread, union
from cedar.plan.steps.step import Step, fitted

_OPTIMIZE_AGAIN = "optimize this pipeline and save that plan"


@dataclass(frozen=True)
class Taken:
    """A step that was applied, and the node's index (inputs first) in the graph before the pass."""

    at: int
    step: Step


@dataclass(frozen=True)
class Sweep:
    """The steps of one pass.

    Args:
        steps: the applied steps, in ascending order of node index.
        downward: whether the pass went from outputs to inputs.
    """

    steps: tuple[Taken, ...]
    downward: bool = False


Ask: TypeAlias = Callable[[int, Node, Facts], "Step | None"]
"""The step to take at a node, already checked, if there is one; it is given the node's number and the facts."""


class Pass:
    """Asks a rule for a step at every node of a graph, and applies the steps.

    Args:
        facts: facts of the graph.
        ask: returns the step to apply at a node, or None.
        downward: True visits outputs before inputs, so that steps see which columns the changed later nodes need.
    """

    def __init__(self, facts: Facts, ask: Ask, downward: bool) -> None:
        self.facts = facts.moving()
        self._ask, self._downwards = ask, downward
        self._root = facts.root
        self.taken: list[Taken] = []

    @property
    def sweep(self) -> Sweep:
        """The steps that were applied."""
        return Sweep(tuple(sorted(self.taken, key=lambda each: each.at)), self._downwards)

    def run(self) -> Node:
        """Return the graph after the pass.

        Raises:
            CedarError: the steps lead to an invalid graph.
        """
        nodes = list(graph.walk(self._root))
        return (self._downward if self._downwards else self._upward)(nodes)

    def _upward(self, nodes: list[Node]) -> Node:
        """Visit each node after its inputs have been rebuilt."""
        done: dict[int, Node] = {}
        for number, node in enumerate(nodes):
            current = node
            if self.taken:
                current = fitted(node, tuple(done.get(id(child), child) for child in node.inputs), self.facts)
                self.facts.replace_node(current, node)
            changed = self._asked(number, current)
            if changed is not node:
                self.facts.replace_node(changed, current)
                done[id(node)] = changed
        return done.get(id(nodes[-1]), nodes[-1])

    def _downward(self, nodes: list[Node]) -> Node:
        live, schemas = self.facts.live, self.facts.schemas
        live.clear()
        live[id(self._root)] = all_of(schemas[id(self._root)])
        old = {id(node) for node in nodes}
        tops: dict[int, Node] = {}
        for number in reversed(range(len(nodes))):
            node = nodes[number]
            top = tops[id(node)] = self._asked(number, node)
            if top is not node:
                live[id(top)] = union(live[id(top)], live[id(node)]) if id(top) in live else live[id(node)]
            for each in [node] if top is node else [*graph.walk(top, old)][::-1]:
                spread(each, live, schemas)
        if not self.taken:
            return self._root
        done: dict[int, Node] = {}
        for node in nodes:
            for each in [node] if tops[id(node)] is node else graph.walk(tops[id(node)], old):
                done[id(each)] = fitted(each, tuple(done[id(child)] for child in each.inputs), self.facts)
            done[id(node)] = done[id(tops[id(node)])]
        return done[id(nodes[-1])]

    def _asked(self, number: int, node: Node) -> Node:
        step = self._ask(number, node, self.facts)
        if step is None:
            return node
        self.taken.append(Taken(number, step))
        changed = step.apply(node, self.facts)
        self.facts.learn(changed)
        return changed


def replay(facts: Facts, sweeps: Sequence[Sweep]) -> Node:
    """Apply recorded steps to the pipeline as written, and check each of them again.

    Args:
        facts: facts of the pipeline as written.

    Raises:
        PlanError: a step may not be applied; the error names the step and the user's line.
    """
    for sweep in sweeps:
        wanted = {each.at: each.step for each in sweep.steps}

        def ask(number: int, node: Node, known: Facts, wanted: dict[int, Step] = wanted) -> Step | None:
            step = wanted.pop(number, None)
            refused = None if step is None else step.check(node, known)
            if refused is not None:
                raise PlanError(
                    f"the plan's step {step} at {known.label(node)}: {refused.reason}",
                    site=node.logical.site,
                    fix=_OPTIMIZE_AGAIN,
                )
            return step

        try:
            facts = facts.at(Pass(facts, ask, sweep.downward).run())
        except PlanError:
            raise
        except CedarError as error:
            reported = ", ".join(str(each.step) for each in sweep.steps)
            raise PlanError(
                f"the plan's step {reported}: {first_line(error)}", site=error.site, fix=_OPTIMIZE_AGAIN
            ) from error
        if wanted:
            raise PlanError(f"the plan has a step at node {min(wanted)}, which is not there", fix="save the plan again")
    return facts.root


def one_step(facts: Facts, step: Step) -> tuple[Node, Sweep]:
    """Return the graph after a step at its last node, and the sweep that records the step."""
    last = len(graph.walk(facts.root)) - 1
    made = Pass(facts, lambda number, *_: step if number == last else None, False)
    return made.run(), made.sweep


def key_of(root: Node, ordinals: dict[int, int]) -> Hashable:
    """Return a key that is equal for graphs with the same operators, connections and executors."""
    numbers: dict[int, int] = {}
    reported: list[Hashable] = []
    for node in graph.walk(root):
        numbers[id(node)] = len(numbers)
        ordinal = ordinals.get(id(node.logical), -1)
        does = changes(node, ordinals) if ordinal >= 0 else (node.operator.label(),)
        reported.append((ordinal, does, node.place, *[numbers[id(child)] for child in node.inputs]))
    return tuple(reported)


def first_line(error: CedarError) -> str:
    """Return the first line of an error message."""
    return str(error).partition("\n")[0]
