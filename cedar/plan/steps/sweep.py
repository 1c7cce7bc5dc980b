"""Sweep: applies steps at the nodes of a graph in one pass, or replays recorded steps.

A pass asks a rule for a step at every node and rebuilds the graph once, so its cost is linear in the number of nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from cedar.core.boundary import first_line
from cedar.core.errors import CedarError, PlanError
from cedar.plan import graph
from cedar.plan.graph import Node
from cedar.plan.lower import changes
from cedar.plan.steps.step import Facts, Step, all_of, fitted, spread, union

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


def run_pass(facts: Facts, ask: Ask, downward: bool = False) -> tuple[Node, Sweep]:
    """Ask for a step at every node of a graph and apply the steps. Return the new graph and the applied steps.

    Args:
        facts: facts of the graph.
        ask: returns the step to apply at a node, or None.
        downward: True visits outputs before inputs, so that steps see which columns the changed later nodes need.

    Raises:
        CedarError: the steps lead to an invalid graph.
    """
    facts = replace(facts, consumers=dict(facts.consumers), live=dict(facts.live))  # of a graph that changes
    taken: list[Taken] = []

    def asked(number: int, node: Node) -> Node:
        step = ask(number, node, facts)
        if step is None:
            return node
        taken.append(Taken(number, step))
        changed = step.apply(node, facts)
        facts.learn(changed)
        return changed

    visit = _visit_outputs_first if downward else _visit_inputs_first
    root = visit(graph.walk(facts.root), facts, asked)
    return root, Sweep(tuple(taken[::-1] if downward else taken), downward)


def _visit_inputs_first(nodes: list[Node], facts: Facts, asked: Callable[[int, Node], Node]) -> Node:
    done: dict[int, Node] = {}
    for number, node in enumerate(nodes):
        current = node
        if done:
            current = fitted(node, tuple([done.get(id(child), child) for child in node.inputs]), facts)
            facts.replace_node(current, node)
        changed = asked(number, current)
        if changed is not node:
            facts.replace_node(changed, current)
            done[id(node)] = changed
    return done.get(id(nodes[-1]), nodes[-1])


def _visit_outputs_first(nodes: list[Node], facts: Facts, asked: Callable[[int, Node], Node]) -> Node:
    live, root = facts.live, nodes[-1]
    live.clear()
    live[id(root)] = all_of(root.schema)
    old = set(map(id, nodes))
    tops: dict[int, Node] = {}
    unchanged = True
    for number in reversed(range(len(nodes))):
        node = nodes[number]
        top = tops[id(node)] = asked(number, node)
        if top is node:
            spread(node, live)
            continue
        unchanged = False
        live[id(top)] = union(live[id(top)], live[id(node)]) if id(top) in live else live[id(node)]
        for each in reversed(graph.walk(top, old)):
            spread(each, live)
    if unchanged:
        return root
    done: dict[int, Node] = {}
    for node in nodes:
        for each in [node] if tops[id(node)] is node else graph.walk(tops[id(node)], old):
            done[id(each)] = fitted(each, tuple(done[id(child)] for child in each.inputs), facts)
        done[id(node)] = done[id(tops[id(node)])]
    return done[id(root)]


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
            facts = facts.at(run_pass(facts, ask, sweep.downward)[0])
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
    number = len(graph.walk(facts.root)) - 1
    return step.apply(facts.root, facts), Sweep((Taken(number, step),))


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
