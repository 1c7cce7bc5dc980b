"""Chains: the runs of row operators of a graph that a search may reorder, between the operators that hold still."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from cedar import graph
from cedar.datasets.base import Read
from cedar.graph import Node
from cedar.operators.base import RowOperator
from cedar.optimizer.facts import Facts


@dataclass(frozen=True, eq=False)
class Chain:
    """Row operators above a node that holds still, lowest first.

    Args:
        base: what they draw from.
        nodes: the operators in the order of the graph.
        last: a selection that fixes the output's columns, which stays on top.
        reads: ``base`` is a source that nobody else draws from: its reading and the first operators are one stage.
        batched: the unit is the batch.
    """

    base: Node
    nodes: tuple[Node, ...]
    last: Node | None
    reads: bool
    batched: bool

    @property
    def top(self) -> Node:
        """The node that others draw from."""
        return self.last or (self.nodes[-1] if self.nodes else self.base)


def find_chains(root: Node, facts: Facts) -> list[Chain]:
    """Every chain of the graph, lower ones first; sources that are read on their own are chains without operators."""
    nodes = list(graph.walk(root))
    consumers = Counter(id(child) for node in nodes for child in node.inputs)
    above = {id(child): node for node in nodes for child in node.inputs}
    batched = graph.batched(root)
    chains = []
    for node in nodes:
        if isinstance(node.operator, RowOperator):
            follows = above.get(id(node))
            if follows is not None and consumers[id(node)] == 1 and _joins(node, follows):
                continue
            chains.append(_chain(node, consumers, batched, facts))
        elif isinstance(node.operator, Read):
            follows = above.get(id(node))
            if follows is None or consumers[id(node)] > 1 or not _movable(follows):
                chains.append(Chain(node, (), None, reads=True, batched=False))
    return chains


def _movable(node: Node) -> bool:
    """A map_batches that sees exactly so many rows has a stage of its own."""
    return isinstance(node.operator, RowOperator) and node.operator.exact_rows is None


def _joins(below: Node, above: Node) -> bool:
    return _movable(below) and _movable(above)


def _chain(top: Node, consumers: Counter[int], batched: dict[int, bool], facts: Facts) -> Chain:
    run = [top]
    while consumers[id(run[-1].inputs[0])] == 1 and _joins(run[-1].inputs[0], run[-1]):
        run.append(run[-1].inputs[0])
    base = run[-1].inputs[0]
    run.reverse()
    last = run.pop() if _inserted(run[-1], facts) else None
    return Chain(
        base,
        tuple(node for node in run if not _inserted(node, facts)),
        last,
        reads=isinstance(base.operator, Read) and consumers[id(base)] == 1 and _movable(top),
        batched=batched[id(base)],
    )


def _inserted(node: Node, facts: Facts) -> bool:
    """A selection that an optimizer put in: dropped, and put in anew for the order that is chosen."""
    return node.operator.projection is not None and facts.ordinal(node) is None


@dataclass(frozen=True)
class Arranged:
    """A chain in a chosen order.

    Args:
        order: places in ``chain.nodes``, lowest first.
        places: the executor of each operator, in that order.
        start: the executor of the source, where the chain reads.
    """

    chain: Chain
    order: tuple[int, ...]
    places: tuple[str, ...]
    start: str = ""


def rebuild(root: Node, facts: Facts, arranged: Sequence[Arranged]) -> Node:
    """The graph with its chains in the chosen orders and every place set; sharing is kept."""
    by_top = {id(each.chain.top): each for each in arranged}
    inner = {id(n) for a in arranged for n in (*a.chain.nodes, a.chain.last) if n} - set(by_top)
    done: dict[int, Node] = {}
    for node in graph.walk(root):
        chosen = by_top.get(id(node))
        if chosen is not None:
            done[id(node)] = _rebuilt(chosen, done, facts)
        elif id(node) not in inner and not _dropped(node, facts):
            done[id(node)] = _with_inputs(node, tuple(done[id(child)] for child in node.inputs), facts)
        else:  # whoever asks for it is inside a chain too
            done[id(node)] = node
    return done[id(root)]


def _dropped(node: Node, facts: Facts) -> bool:
    return isinstance(node.operator, RowOperator) and _inserted(node, facts)


def _rebuilt(chosen: Arranged, done: dict[int, Node], facts: Facts) -> Node:
    chain = chosen.chain
    if chain.top is chain.base:
        return _placed(chain.base, (), chosen.start, facts)
    current = done[id(chain.base)]
    if chain.reads:
        current = _placed(chain.base, (), chosen.start, facts)
    for index, place in zip(chosen.order, chosen.places, strict=True):
        current = _placed(chain.nodes[index], (current,), place, facts)
    if chain.last is not None:
        current = _placed(chain.last, (current,), current.place, facts)
    return current


def _placed(node: Node, inputs: tuple[Node, ...], place: str, facts: Facts) -> Node:
    return dataclasses.replace(_with_inputs(node, inputs, facts), place=place)


def _with_inputs(node: Node, inputs: tuple[Node, ...], facts: Facts) -> Node:
    if len(inputs) == len(node.inputs) and all(a is b for a, b in zip(inputs, node.inputs, strict=True)):
        return node if node.origin is not None else dataclasses.replace(node, origin=_origin(node, facts))
    return dataclasses.replace(node, inputs=inputs, origin=_origin(node, facts))


def _origin(node: Node, facts: Facts) -> Node | None:
    return None if facts.ordinal(node) is None else node.logical
