"""Reorder: another order of row operators."""

from __future__ import annotations

from dataclasses import dataclass

from cedar.plan.graph import Node
from cedar.plan.steps.commute import may_swap
from cedar.plan.steps.edit import is_inserted, rebuilt
from cedar.plan.steps.facts import Facts, Refusal
from cedar.plan.steps.step import Step, shared


@dataclass(frozen=True)
class Reorder(Step):
    """Puts a run of row operators into another order.

    A row operator does to a row what it does whatever other rows there are. Two that stand side by side give the same
    row in either order where neither reads or drops what the other writes, rows are dropped or repeated alike, draws go
    by the row's key, and each row that fails is skipped by the same one (``may_swap``). Any order is reached by swaps
    of neighbors, each of a pair that changes order, so it is enough that each of these pairs may.

    Selections that the optimizer put in for the order of columns alone leave the run: it is restored once all steps are
    done. Those that drop columns stay, as a ``drop`` above may do without these columns by now.

    Args:
        order: of the operators, lowest first: places in the run as it is, the top being the last.
    """

    order: tuple[int, ...]

    def check(self, graph: Node, facts: Facts) -> Refusal | None:
        found = self._run(graph, facts)
        if found is None or sorted(self.order) != list(range(len(self.order))):
            return Refusal("there is no such run of operators")
        run, between, _ = found
        if self.order == tuple(range(len(run))) and len(between) < len(run):
            return Refusal("the operators stand in this order already")
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
        """The operators, lowest first; all nodes below the top that belong to the run; and what they draw from."""
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
    """A selection of the optimizer that changes the order of columns alone."""
    if not is_inserted(node, facts):
        return False
    schema = facts.schemas[id(node.inputs[0])]
    return schema is not None and set(schema) == set(node.operator.projection or ())
