"""Keep, DropResults, KeepOrder: columns that nothing reads go, and those that come out are in their order."""

from __future__ import annotations

from dataclasses import dataclass

from cedar.operators.base import Schema
from cedar.plan.graph import Node
from cedar.plan.steps.edit import only, rebuilt, restore_order, tidy
from cedar.plan.steps.facts import Facts, Refusal
from cedar.plan.steps.live import Names, alike, needs_each
from cedar.plan.steps.step import Step


@dataclass(frozen=True)
class Keep(Step):
    """Drops columns below an operator that neither it nor anything above reads.

    Which columns are read follows from effects, from the end of the pipeline down, where all columns that come out are
    read. Inputs that have the same columns keep the same.

    Args:
        columns: of each input; () keeps all of it.
    """

    columns: tuple[tuple[str, ...], ...]
    downward = True

    def check(self, graph: Node, facts: Facts) -> Refusal | None:
        if len(self.columns) != len(graph.inputs) or not any(self.columns):
            return Refusal("it has other inputs")
        live = needs_each(graph, facts.live.get(id(graph)), facts.schemas)
        for child, names, needed in zip(graph.inputs, self.columns, live, strict=True):
            if not names:
                continue
            schema = facts.schemas[id(child)]
            if schema is None or needed is None or not set(names) < set(schema):
                return Refusal("which columns there are is not known, or all are kept")
            if lost := sorted(needed.intersection(schema) - set(names)):
                return Refusal(f"column {lost[0]!r} is read")
            if list(names) != [name for name in schema if name in names]:
                return Refusal("they are in another order than they come in")
        if alike(graph.operator) and len({frozenset(names) for names in self.columns}) > 1:
            return Refusal("its inputs have the same columns")
        return None

    def apply(self, graph: Node, facts: Facts) -> Node:
        pairs = zip(graph.inputs, self.columns, strict=True)
        return rebuilt(graph, tuple(only(child, names) if names else child for child, names in pairs), facts)


def unread(node: Node, facts: Facts) -> tuple[tuple[str, ...], ...]:
    """The columns to keep of each input of a node, where some are not read."""
    live = needs_each(node, facts.live.get(id(node)), facts.schemas)
    kept = tuple(_kept(facts.schemas[id(child)], names) for child, names in zip(node.inputs, live, strict=True))
    return () if alike(node.operator) and not all(kept) else kept


def _kept(schema: Schema, live: Names) -> tuple[str, ...]:
    """The columns to keep of an input; none where all are needed, or where it is not known."""
    if schema is None or live is None or live >= set(schema):
        return ()
    return tuple(name for name in schema if name in live)


@dataclass(frozen=True)
class DropResults(Step):
    """Does not compute results of expressions that nothing reads.

    They must not be able to fail: an error of the pipeline as written is one of the plan, too.

    Args:
        results: places in the operator's ``results``.
    """

    results: tuple[int, ...]
    downward = True

    def check(self, graph: Node, facts: Facts) -> Refusal | None:
        names, live = graph.operator.results, facts.live.get(id(graph))
        if not self.results or any(not 0 <= i < len(names) for i in self.results):
            return Refusal("it has no such results")
        for i in self.results:
            name = names[i]
            if live is None or name is None or name in live:
                return Refusal(f"{name} is read")
            if not graph.operator.never_fails(i, facts.schemas[id(graph.inputs[0])]):
                return Refusal(f"nothing reads {name}, but they may fail on some row")
        fewer = graph.operator.without(self.results)
        return Refusal("nothing would be left to do") if fewer is not None and not fewer.results else None

    def apply(self, graph: Node, facts: Facts) -> Node:
        fewer = graph.operator.without(self.results)
        return graph.inputs[0] if fewer is None else rebuilt(graph, graph.inputs, facts, fewer)


@dataclass(frozen=True)
class KeepOrder(Step):
    """Puts the columns into the order of the pipeline as written, wherever it shows; taken when others are done.

    It selects all columns that are there in another order, and leaves out selections of the optimizer that do nothing.
    """

    def check(self, graph: Node, facts: Facts) -> Refusal | None:
        return None

    def apply(self, graph: Node, facts: Facts) -> Node:
        tidied = tidy(graph, facts)
        return restore_order(tidied, facts.at(tidied))
