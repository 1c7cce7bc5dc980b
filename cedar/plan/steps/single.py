"""Share, Loosen, Replace, Cache and Place: steps that change single operators or the executors that run them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from cedar.datasets.base import Read
from cedar.operators.base import Mergeable, Operator
from cedar.operators.cache import Cache as CacheOperator
from cedar.operators.transform import Chainable, Link
from cedar.plan import graph as graphs
from cedar.plan.graph import Node
from cedar.plan.places import kind
from cedar.plan.steps.order import may_skip
from cedar.plan.steps.step import Facts, Refusal, Step, rebuilt, run_below, shared, with_inputs


@dataclass(frozen=True)
class Share(Step):
    """Reuse the result of an equal operator on the same input instead of computing it again.

    Three kinds of operators are not shared: random ones, because their draws differ; operators that may skip rows,
    because each counts its own skips; and sources and stream operators, because each has its own state.
    """

    def check(self, graph: Node, facts: Facts) -> Refusal | None:
        other = equal_before(graph, facts)
        if other is None:
            return Refusal("no equal operator draws from the same rows")
        if graph.effects.random:
            return Refusal(f"it is random, and draws other numbers than {facts.label(other)}")
        if may_skip(graph, facts) or may_skip(other, facts):
            return Refusal(f"both it and {facts.label(other)} count the rows that they skip")
        return None

    def apply(self, graph: Node, facts: Facts) -> Node:
        other = equal_before(graph, facts)
        assert other is not None
        return other


def equal_before(node: Node, facts: Facts) -> Node | None:
    """Return the first equal row operator with the same input that comes before this one, if any."""
    if not node.is_row_operator or node.storage is not None:
        return None
    below = node.inputs[0]
    for other in facts.consumers[id(below)]:
        if other is node:
            return None
        if len(other.inputs) == 1 and other.inputs[0] is below and _equal(other, node):
            return other
    return None


def _equal(first: Node, second: Node) -> bool:
    one, other = first.operator, second.operator
    same = one is other
    if isinstance(one, Mergeable) and isinstance(other, Mergeable):
        same = same or one.merge_key() == other.merge_key()
    return same and first.place == second.place


@dataclass(frozen=True)
class Loosen(Step):
    """With ``exact=False``, let a transform use a cheaper method within its declared tolerance.

    The tolerance depends on the transforms of the same column that follow this one, up to the node.

    Args:
        below: how many transforms the loosened one is before the node.
    """

    below: int

    def check(self, graph: Node, facts: Facts) -> Refusal | None:
        run = run_below(graph, self.below + 1)
        links = [] if run is None else [node.link for node in run]
        chain = [link for link in links if link is not None]
        if run is None or facts.exact or len(chain) < len(run) or not chain[0].exact:
            return Refusal("results have to be exact")
        if not all(joins(lower, upper) for lower, upper in pairwise(chain)):
            return Refusal("the transforms above it do not run as one with it")
        if any(shared(node, facts) for node in run[:-1]):
            return Refusal("others draw from it, too")
        tolerance = chain[0].transform.tolerance([link.transform for link in chain[1:]])
        return None if tolerance else Refusal("the operators above need the exact result")

    def apply(self, graph: Node, facts: Facts) -> Node:
        run = run_below(graph, self.below + 1)
        assert run is not None
        operator = run[0].operator
        assert isinstance(operator, Chainable)
        current = rebuilt(run[0], run[0].inputs, facts, operator.loosened())
        for node in run[1:]:
            current = rebuilt(node, (current,), facts)
        return current


def joins(lower: Link, upper: Link) -> bool:
    """Return whether a chain fuses the two transforms into one kernel."""
    chain = lower.transform.chain
    return chain is not None and upper.transform.chain is chain and chain.joins([lower], upper)


@dataclass(frozen=True)
class Replace(Step):
    """Replace adjacent row operators by one operator that its author declares equivalent.

    The author and audits during the run ensure that results are equivalent. The step checks that no other node reads
    from the replaced operators, that they skip no rows, and that output columns and types are the same. It does not
    replace operators that the optimizer inserted or that are replacements themselves.

    Args:
        operator: the replacement.
        operators: the number of operators to replace; the node is the last of them.
    """

    operator: Operator
    operators: int = 1

    def check(self, graph: Node, facts: Facts) -> Refusal | None:
        run = run_below(graph, self.operators)
        if run is None or not all(len(node.inputs) == 1 and node.is_row_operator for node in run):
            return Refusal("it is not a run of row operators")
        if self.operator.inputs != 1 or not Node(self.operator, run[0].inputs).is_row_operator:
            return Refusal(f"{self.operator.label()} is not a row operator")
        for node in run:
            if node is not graph and (why := shared(node, facts)) is not None:
                return Refusal(why)
            if may_skip(node, facts):
                return Refusal(f"{facts.label(node)} may skip rows")
            if facts.ordinal(node) is None:
                return Refusal(f"{node.operator.label()} was inserted by the optimizer")
        if graph.operator is not graph.logical.operator and len(run) == 1:
            return Refusal(f"{graph.operator.label()} already replaces another operator")
        before, after = graph.schema, self.operator.schema(run[0].inputs[0].schema)
        if before is not None and after is not None and before != after:
            return Refusal("the output columns would differ")
        return None

    def apply(self, graph: Node, facts: Facts) -> Node:
        run = run_below(graph, self.operators)
        assert run is not None
        return rebuilt(graph, run[0].inputs, facts, self.operator)


@dataclass(frozen=True)
class Cache(Step):
    """Insert, move or remove the cache among the row operators right after a source.

    The operators before the cache must give the same rows in every epoch, so none may be random, and the source must
    have splits. A cache for which the user set a location stays; the step may move or remove ``cache("auto")``.

    Args:
        above: the number of operators between the source and the cache; None removes the cache.
        where: the location of an inserted cache, as in ``cache(where)``.
        layout: True stores the rows in another layout at that location, for ``Budget(layout=)``.
    """

    above: int | None
    where: str = "auto"
    layout: bool = False

    def fields(self) -> dict[str, Any]:
        return {"above": self.above}  # saved plans contain no folders, so a loaded plan uses ``cache("auto")``

    def check(self, graph: Node, facts: Facts) -> Refusal | None:
        chain = chain_below(graph, facts)
        if chain is None:
            return Refusal("it is not the last of the operators right above a source")
        source, *above = chain
        hints = [node for node in above if node.storage is not None]
        work = [node for node in above if node.storage is None]
        if any(node.storage != "auto" for node in hints) or len(hints) > 1:
            return Refusal("the pipeline says where rows are kept")
        if self.above is None:
            return None if hints else Refusal("there is no cache to remove")
        if facts.streams(source):
            return Refusal(f"of {facts.label(source)}, it cannot be split")
        if not 0 <= self.above <= len(work) or any(node.effects.random for node in work[: self.above]):
            return Refusal("what is below it is not the same in every epoch")
        if hints and above.index(hints[0]) == self.above:
            return Refusal("it is already there")
        if not hints and kept_above(graph, facts):
            return Refusal("rows are kept further up")
        return None

    def apply(self, graph: Node, facts: Facts) -> Node:
        chain = chain_below(graph, facts)
        assert chain is not None
        source, *above = chain
        hint = next((node for node in above if node.storage is not None), None)
        work = [node for node in above if node is not hint]
        kept: list[Node] = []
        if self.above is not None:
            operator = CacheOperator(self.where, layout=True) if self.layout else CacheOperator(self.where)
            kept = [hint or Node(operator, (source,))]
        current = source
        at = 0 if self.above is None else self.above
        for node in (*work[:at], *kept, *work[at:]):
            current = node if node.inputs[0] is current else rebuilt(node, (current,), facts)
        return current


def chain_below(top: Node, facts: Facts) -> list[Node] | None:
    """Return a source and the row operators after it up to ``top``, source first; None if ``top`` is not the last."""
    above = facts.consumers[id(top)]
    if len(above) == 1 and above[0].is_row_operator:
        return None
    chain = [top]
    while chain[-1].is_row_operator and len(facts.consumers[id(chain[-1].inputs[0])]) == 1:
        chain.append(chain[-1].inputs[0])
    return chain[::-1] if isinstance(chain[-1].operator, Read) else None


def kept_above(node: Node, facts: Facts) -> bool:
    """Return whether a later cache already stores the chain's rows."""
    caches = (n for n in graphs.walk(facts.root) if n.storage is not None)
    return any(any(below is node for below in graphs.walk(cache)) for cache in caches)


@dataclass(frozen=True)
class Place(Step):
    """Assign operators and sources to executors. A row operator's results do not depend on its executor.

    Args:
        places: the executor of each node, inputs first; "" means that the run chooses it.
    """

    places: tuple[str, ...]

    def fields(self) -> dict[str, Any]:
        return {"places": [kind(place) for place in self.places]}

    def check(self, graph: Node, facts: Facts) -> Refusal | None:
        nodes = graphs.walk(graph)
        if len(nodes) != len(self.places):
            return Refusal("the graph has other operators")
        for node, place in zip(nodes, self.places, strict=True):
            if place and node.inputs and not node.is_row_operator and node.exact_rows is None:
                return Refusal(f"{facts.label(node)} needs order or state, which the run's own process has")
        return None

    def apply(self, graph: Node, facts: Facts) -> Node:
        done: dict[int, Node] = {}
        for node, place in zip(graphs.walk(graph), self.places, strict=True):
            made = with_inputs(node, tuple([done[id(child)] for child in node.inputs]), facts)
            if place != made.place:
                made = dataclasses.replace(rebuilt(node, made.inputs, facts), place=place)
            done[id(node)] = made
        return done[id(graph)]
