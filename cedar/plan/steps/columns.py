"""Keep, DropResults, KeepOrder: steps that drop columns that no operator reads, and restore the order of columns."""

from __future__ import annotations

from dataclasses import dataclass

from cedar.operators.base import Schema
from cedar.operators.expressions import SeparateResults
from cedar.plan import graph as graphs
from cedar.plan.graph import Node
from cedar.plan.steps.facts import Facts, Refusal, alike, needs_each
from cedar.plan.steps.step import Step, is_inserted, only, rebuilt, with_inputs


@dataclass(frozen=True)
class Keep(Step):
    """Drop columns of an operator's inputs that neither this operator nor any later one reads.

    Which columns are read is derived from the operators' declared effects, from the output back to the sources. All
    output columns of the pipeline count as read. Inputs that must have the same columns keep the same ones.

    Args:
        columns: for each input, the columns to keep; () keeps all.
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
                return Refusal("its columns are unknown, or all are kept")
            if lost := sorted(needed.intersection(schema) - set(names)):
                return Refusal(f"column {lost[0]!r} is read")
            if list(names) != [name for name in schema if name in names]:
                return Refusal("their order differs from the input's")
        if alike(graph) and len({frozenset(names) for names in self.columns}) > 1:
            return Refusal("its inputs have the same columns")
        return None

    def apply(self, graph: Node, facts: Facts) -> Node:
        pairs = zip(graph.inputs, self.columns, strict=True)
        return rebuilt(graph, tuple(only(child, names) if names else child for child, names in pairs), facts)


def unread(node: Node, facts: Facts) -> tuple[tuple[str, ...], ...]:
    """Return, for each input of a node, the columns to keep; () if all columns are read."""
    live = needs_each(node, facts.live.get(id(node)), facts.schemas)
    kept: list[tuple[str, ...]] = []
    for child, names in zip(node.inputs, live, strict=True):
        schema = facts.schemas[id(child)]
        if schema is None or names is None or names >= set(schema):  # unknown, or all are needed
            kept.append(())
        else:
            kept.append(tuple([name for name in schema if name in names]))
    return () if alike(node) and not all(kept) else tuple(kept)


@dataclass(frozen=True)
class DropResults(Step):
    """Do not compute results of expressions that no operator reads.

    Only results that cannot fail are omitted, because the plan must raise every error of the pipeline as written.

    Args:
        results: indices into the operator's ``results``.
    """

    results: tuple[int, ...]
    downward = True

    def check(self, graph: Node, facts: Facts) -> Refusal | None:
        operator, live = graph.operator, facts.live.get(id(graph))
        names = operator.results if isinstance(operator, SeparateResults) else ()
        known = bool(self.results) and all(0 <= i < len(names) for i in self.results)
        if not isinstance(operator, SeparateResults) or not known:
            return Refusal("it has no such results")
        for i in self.results:
            name = names[i]
            if live is None or name is None or name in live:
                return Refusal(f"{name} is read")
            if not operator.never_fails(i, facts.schemas[id(graph.inputs[0])]):
                return Refusal(f"nothing reads {name}, but they may fail on some row")
        fewer = operator.without(self.results)
        return Refusal("no result would be left") if fewer is not None and not fewer.results else None

    def apply(self, graph: Node, facts: Facts) -> Node:
        assert isinstance(graph.operator, SeparateResults)
        fewer = graph.operator.without(self.results)
        return graph.inputs[0] if fewer is None else rebuilt(graph, graph.inputs, facts, fewer)


@dataclass(frozen=True)
class KeepOrder(Step):
    """Restore the column order of the pipeline as written wherever the order affects results. This is the last step.

    It inserts selections where the order differs, and removes the optimizer's selections that have no effect.
    """

    def check(self, graph: Node, facts: Facts) -> Refusal | None:
        return None

    def apply(self, graph: Node, facts: Facts) -> Node:
        tidied = tidy(graph, facts)
        return restore_order(tidied, facts.at(tidied))


def tidy(root: Node, facts: Facts) -> Node:
    """Remove the optimizer's selections that select all columns or are followed by another such selection."""
    done: dict[int, Node] = {}
    for current in graphs.walk(root):
        node = with_inputs(current, tuple(done[id(child)] for child in current.inputs), facts)
        if is_inserted(node, facts):
            below, schema = node.inputs[0], facts.schemas[id(current.inputs[0])]
            if schema is not None and tuple(schema) == node.projection:
                node = below
            elif is_inserted(below, facts):
                node = rebuilt(node, below.inputs, facts)
        done[id(current)] = node
    return done[id(root)]


def restore_order(root: Node, facts: Facts) -> Node:
    """Return the graph with columns in the order of the pipeline as written, wherever the order affects results.

    The order affects the output, functions of whole rows, expressions that select by type, and caches. It is also
    restored before a node after which the columns are unknown. ``facts`` must describe ``root``.
    """
    written = graphs.schemas(facts.logical)
    done: dict[int, Node] = {}
    for node in graphs.walk(root):
        inputs = [done[id(child)] for child in node.inputs]
        if facts.ordinal(node) is not None and len(node.logical.inputs) == len(inputs):
            sees = node.effects.reads is None or node.storage is not None
            for i, child in enumerate(node.inputs):
                lost = facts.schemas[id(node)] is None and facts.schemas[id(child)] is not None
                if sees or lost:
                    names = _wanted(facts.schemas[id(child)], written[id(node.logical.inputs[i])])
                    inputs[i] = only(inputs[i], names) if names else inputs[i]
        done[id(node)] = with_inputs(node, tuple(inputs), facts)
    names = _wanted(facts.schemas[id(root)], written[id(facts.logical)])
    if not names:
        return done[id(root)]
    top = done[id(root)]
    return only(top.inputs[0] if is_inserted(top, facts) else top, names)


def _wanted(rewritten: Schema, written: Schema) -> tuple[str, ...]:
    """Return the names in the order as written if the rewritten order differs; otherwise ()."""
    if rewritten is None or written is None or list(rewritten) == list(written) or set(rewritten) != set(written):
        return ()
    return tuple(written)
