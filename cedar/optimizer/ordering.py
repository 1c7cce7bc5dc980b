"""Orders of a chain's operators: precedence constraints, and complete orders with the resources that they use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from cedar.optimizer.arrange import OperatorChain
from cedar.optimizer.cost import ChainCost, Use, add
from cedar.optimizer.facts import Facts, Refusal
from cedar.plan.graph import Node

Swap: TypeAlias = Callable[[Node, Node, Facts], "Refusal | None"]
ROUNDING = 1e-9  # relative tolerance for sums of floats that were added in different orders


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


def count_sets(precedence: Precedence, limit: int) -> int:
    """Count the sets of operators that a valid order can begin with; stop counting above ``limit``."""
    layer, count = {0}, 1
    while layer and count <= limit:
        layer = {done | 1 << i for done in layer for i in precedence.ready(done)}
        count += len(layer)
    return count


@dataclass(frozen=True, slots=True)
class Path:
    """A complete order of a chain, its executors (as indices into the allowed ones), and its use of resources."""

    use: Use
    order: tuple[int, ...]
    places: tuple[int, ...]
    start: int


def as_written(cost: ChainCost, place: int) -> Path:
    """Return the graph's own order, with all operators on one executor."""
    first, _ = cost.starts()[0]
    start = first if first < 0 else place
    order, places = tuple(range(cost.size)), (place,) * cost.size
    return Path(cost.evaluate(order, places, start), order, places, start)


def keep_best(paths: Sequence[Path]) -> list[Path]:
    """Keep paths that no other path beats in every resource, and the first of several equal paths."""
    kept: list[Path] = []
    for path in paths:
        if not any(dominates(other.use, path.use) for other in kept):
            kept = [other for other in kept if not dominates(path.use, other.use)]
            kept.append(path)
    return kept


def dominates(a: Use, b: Use) -> bool:
    """Return whether ``a`` uses no more of any resource than ``b``."""
    more = 1.0 + ROUNDING
    return (
        a[2] <= b[2] * more and a[0] <= b[0] * more and a[1] <= b[1] * more and a[3] <= b[3] * more
        and a[4] <= b[4] * more
    )  # fmt: skip


def settle(path: Path, cost: ChainCost, others: Use, limit: float) -> Path:
    """Undo moves that gain almost nothing, while the use of the most used resource stays within ``limit``.

    As a result, repeated measurements choose the same plan, and a plan shows only moves that matter.
    """
    current, changed = path, True
    while changed:
        changed = False
        for simpler in _simpler(current, cost):
            use = cost.evaluate(*simpler)
            if max(add(use, others)) <= limit:
                order, places, start = simpler
                current, changed = Path(use, order, places, start), True
                break
    return current


Choice: TypeAlias = "tuple[tuple[int, ...], tuple[int, ...], int]"


def _simpler(path: Path, cost: ChainCost) -> Iterator[Choice]:
    """Yield paths one step closer to the order as written, or with fewer changes of executor."""
    order, places, start = path.order, path.places, path.start
    for k in range(len(order) - 1):
        if order[k] > order[k + 1]:
            swapped = (*order[:k], order[k + 1], order[k], *order[k + 2 :])
            moved = (*places[:k], places[k + 1], places[k], *places[k + 2 :])
            yield swapped, moved, start
            if moved != places:
                yield swapped, places, start
    yield from _fewer_places(order, places, start, cost)


def _fewer_places(order: tuple[int, ...], places: tuple[int, ...], start: int, cost: ChainCost) -> Iterator[Choice]:
    """Yield paths in which consecutive operators on the same executor move to the default executor."""
    if start >= 0 and start != 0 and not cost.remote[0]:
        yield order, places, 0
    k = 0
    while k < len(places):
        end = k
        while end < len(places) and places[end] == places[k]:
            end += 1
        if places[k] != 0:
            yield order, (*places[:k], *((0,) * (end - k)), *places[end:]), start
            if end - k > 1:
                yield order, (*places[:k], 0, *places[k + 1 :]), start
                yield order, (*places[: end - 1], 0, *places[end:]), start
        k = end
