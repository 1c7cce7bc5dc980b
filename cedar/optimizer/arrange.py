"""Finds the row operators of a plan that the search may reorder and the orders that are legal, and builds the graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TypeAlias

from cedar.operators.base import RowOperator
from cedar.plan import graph
from cedar.plan.data import Decision
from cedar.plan.graph import Node
from cedar.plan.physical import Physical, Stage
from cedar.plan.steps.order import Reorder
from cedar.plan.steps.single import Place
from cedar.plan.steps.step import Facts, Refusal, Step, is_inserted
from cedar.plan.steps.sweep import Sweep, one_step, run_pass


@dataclass(frozen=True, eq=False)
class OperatorChain:
    """Consecutive row operators above a fixed node, in the order in which rows pass through them.

    Args:
        base: the fixed node, whose rows the first operator reads.
        nodes: the operators in graph order.
        last: a final selection that fixes the output columns and does not move; None if the chain has none.
        places: the executors of the base and of each operator, in the plan's stages.
        sources: all sources that the tasks reading ``base`` read; empty if the chain's input comes from another stage.
        tied: bit mask of operators that always run in the tasks that read ``base``.
        batched: whether the chain processes batches instead of rows.
    """

    base: Node
    nodes: tuple[Node, ...]
    last: Node | None
    places: tuple[str, ...]
    sources: tuple[Node, ...]
    tied: int
    batched: bool

    @property
    def top(self) -> Node:
        """The chain's last node, which other nodes read from."""
        return self.last or (self.nodes[-1] if self.nodes else self.base)


def find_chains(physical: Physical, facts: Facts) -> list[OperatorChain]:
    """Return every chain of a plan, inputs first. A source with no row operators above it is an empty chain."""
    works, nodes = physical.works, physical.nodes
    consumers = Counter(i for work in works for i in work.inputs)
    reads = {segment.source: stage for stage in physical.stages for segment in stage.segments}
    places = _places(physical)
    runs: dict[int, tuple[list[int], Stage | None]] = {}  # by top operator: the base and the operators above it
    for i, (work, node) in enumerate(zip(works, nodes, strict=True)):
        if not work.inputs:
            runs[i] = [i], reads[i]
        elif isinstance(node.operator, RowOperator):
            below = work.inputs[0]
            joins = node.is_row_operator and consumers[below] == 1 and below in runs
            joins = joins and (nodes[below].is_row_operator or not works[below].inputs)
            run, stage = runs.pop(below) if joins else ([below], None)
            run.append(i)
            runs[i] = run, stage
    return [_chain(physical, run, stage, places, facts) for run, stage in runs.values()]


def _places(physical: Physical) -> list[str]:
    """Return the executor of each operator."""
    places = [""] * len(physical.works)
    for stage in physical.stages:
        links = (i for each in stage.segments for i in (each.source, *each.links))
        for i in (*stage.operators, *links):
            if isinstance(i, int):
                places[i] = stage.place
    return places


def _chain(
    physical: Physical, run: Sequence[int], stage: Stage | None, places: Sequence[str], facts: Facts
) -> OperatorChain:
    nodes, (base, *inner) = physical.nodes, run
    last = nodes[inner.pop()] if inner and is_inserted(nodes[inner[-1]], facts) else None
    inner = [i for i in inner if not is_inserted(nodes[i], facts)]
    segments = () if stage is None else stage.segments
    tied: set[object] = set()
    for segment in segments:
        if segment.source == base:
            own = takewhile(lambda link: isinstance(link, int), segment.links)
            tied.update(own if len(segments) > 1 else segment.links[: segment.kept])
    return OperatorChain(
        nodes[base],
        tuple(nodes[i] for i in inner),
        last,
        tuple(places[i] for i in (base, *inner)),
        tuple(nodes[each.source] for each in segments),
        sum(1 << k for k, i in enumerate(inner) if i in tied),
        nodes[base].batched,
    )


# ---- legal orders ----------------------------------------------------------------------------------------------------


Swap: TypeAlias = Callable[[Node, Node, Facts], "Refusal | None"]


@dataclass(frozen=True)
class Precedence:
    """Constraints on the order of a chain's operators.

    Args:
        before: for each operator, the bit mask of operators that must run before it, directly or indirectly.
        refusals: (below, above) -> why these two operators may not be swapped.
    """

    before: tuple[int, ...]
    refusals: dict[tuple[int, int], Refusal]

    def ready(self, done: int) -> Iterator[int]:
        """Yield the operators that may run next."""
        for i, needed in enumerate(self.before):
            if not done >> i & 1 and not needed & ~done:
                yield i


def find_precedence(chain: OperatorChain, facts: Facts, may_swap: Swap) -> Precedence:
    """Find the pairs of operators that must keep their order, directly or because of an operator between them."""
    before: list[int] = []
    refusals: dict[tuple[int, int], Refusal] = {}
    for above, node in enumerate(chain.nodes):
        needed = 0
        for below in range(above - 1, -1, -1):
            if needed >> below & 1:
                continue
            refused = may_swap(chain.nodes[below], node, facts)
            if refused is not None:
                refusals[below, above] = refused
                needed |= 1 << below | before[below]
        before.append(needed)
    return Precedence(tuple(before), refusals)


# ---- the graph -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arranged:
    """A chain in a chosen order.

    Args:
        order: indices into ``chain.nodes``, in the order in which rows pass through the operators.
        places: the executor of each operator, in that order.
        start: the executor of the source; empty if the chain does not start at a source.
    """

    chain: OperatorChain
    order: tuple[int, ...]
    places: tuple[str, ...]
    start: str = ""


def steps_of(root: Node, facts: Facts, arranged: Sequence[Arranged]) -> tuple[Node, tuple[Sweep, ...], list[Decision]]:
    """Return the graph with the chosen orders and executors, the steps that produced it, and the refused moves."""
    facts = facts if facts.root is root else facts.at(root)
    nodes = graph.walk(root)
    numbers = {id(node): number for number, node in enumerate(nodes)}
    places = [node.place for node in nodes]
    orders: dict[int, Step] = {}
    for each in arranged:
        chain = each.chain
        if chain.sources:
            places[numbers[id(chain.base)]] = each.start
        for index, place in zip(each.order, each.places, strict=True):
            places[numbers[id(chain.nodes[index])]] = place
        if chain.last is not None:
            places[numbers[id(chain.last)]] = each.places[-1] if each.places else places[numbers[id(chain.base)]]
        if each.order != tuple(range(len(each.order))):
            orders[numbers[id(chain.nodes[-1])]] = Reorder(each.order)
    refused: list[Decision] = []
    sweeps: list[Sweep] = []
    if places != [node.place for node in nodes]:
        placed, sweep = one_step(facts, Place(tuple(places)))
        facts, sweeps = facts.at(placed), [sweep]

    def ask(number: int, node: Node, known: Facts) -> Step | None:
        step = orders.get(number)
        why = None if step is None else step.check(node, known)
        if why is not None:
            refused.append(Decision("order", why.what or known.label(node), applied=False, why=why.reason))
        return step if why is None else None

    if orders:
        made, sweep = run_pass(facts, ask)
        facts = facts.at(made)
        sweeps.append(sweep)
    return facts.root, tuple(sweeps), refused
