"""Reorder: the step that changes the order of row operators."""

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

    A row operator processes each row independently of other rows. ``may_swap`` decides for two adjacent operators
    whether they give the same rows in either order: neither may read or drop a column that the other writes, and the
    same operator must skip each failing row. Any order can be reached by swapping neighbors, so it suffices to check
    each pair of operators whose order changes.

    The step removes selections that the optimizer inserted only for the order of columns, which is restored after all
    steps. It keeps selections that drop columns, because a later ``drop`` may rely on these columns being gone.

    Args:
        order: the new order, as indices of the operators in the current order (inputs first).
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
        """Return the operators (inputs first), the other nodes between them, and the input of the first operator."""
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
    """Return whether the optimizer inserted the node only to change the order of columns."""
    if not is_inserted(node, facts):
        return False
    schema = facts.schemas[id(node.inputs[0])]
    return schema is not None and set(schema) == set(node.projection or ())
