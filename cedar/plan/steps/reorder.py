"""Reorder: changes the order of row operators."""

from __future__ import annotations

from dataclasses import dataclass

from cedar.plan.graph import Node
from cedar.plan.steps.commute import may_swap
from cedar.plan.steps.edit import is_inserted, rebuilt
from cedar.plan.steps.facts import Facts, Refusal
from cedar.plan.steps.step import Step, shared


@dataclass(frozen=True)
class Reorder(Step):
    """Put adjacent row operators into another order.

    A row operator processes each row independently of other rows. Two adjacent ones give the same row in either order
    if neither reads or drops what the other writes, both drop or repeat rows alike, draws depend on the row's key, and
    the same operator skips each row that fails (``may_swap``). Swaps of neighbors can reach any order, so it is enough
    if each pair that changes order may swap.

    Selections that the optimizer inserted only for the order of columns are removed; the order is restored after all
    steps. Those that drop columns stay, because a later ``drop`` may rely on these columns being gone.

    Args:
        order: indices of the operators in the current order, lowest first.
    """

    order: tuple[int, ...]

    def check(self, graph: Node, facts: Facts) -> Refusal | None:
        found = self._run(graph, facts)
        if found is None or sorted(self.order) != list(range(len(self.order))):
            return Refusal("the graph has no such run of operators")
        run, between, _ = found
        if self.order == tuple(range(len(run))) and len(between) < len(run):
            return Refusal("the operators are already in this order")
        for node in between:
            if (why := shared(node, facts)) is not None:
                return Refusal(why, facts.label(graph))
        rest = list(range(len(run)))
        for i in self.order:
            for below in rest[: rest.index(i)]:
                if (refused := may_swap(run[below], run[i], facts)) is not None:
                    return refused
            rest.remove(i)
        return None

    def apply(self, graph: Node, facts: Facts) -> Node:
        found = self._run(graph, facts)
        assert found is not None
        run, _, current = found
        for i in self.order:
            current = rebuilt(run[i], (current,), facts)
        return current

    def _run(self, top: Node, facts: Facts) -> tuple[list[Node], list[Node], Node] | None:
        """Return the operators (lowest first), all other nodes of the run below the top, and the run's input."""
        run, between = [top], list[Node]()
        while len(run[-1].inputs) == 1:
            below = run[-1].inputs[0]
            inserted = []
            while falls_away(below, facts):
                inserted.append(below)
                below = below.inputs[0]
            between += inserted
            if len(run) == len(self.order):
                return run[::-1], between, below
            run.append(below)
            between.append(below)
        return None


def falls_away(node: Node, facts: Facts) -> bool:
    """Return whether a node is an optimizer's selection that only changes the order of columns."""
    if not is_inserted(node, facts):
        return False
    schema = facts.schemas[id(node.inputs[0])]
    return schema is not None and set(schema) == set(node.operator.projection or ())
