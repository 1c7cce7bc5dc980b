"""Searches for the orders and executors of one chain: an exact search, and a local search for long chains.

The exact search is dynamic programming over sets of operators that have run. Partial orders of the same set whose rows
are on the same executor have the same continuations. The search keeps only orders that no other order beats in every
resource, and drops orders that cannot beat a known plan.

The local search serves chains with too many orders to enumerate, and gives the exact search its first bound. It starts
from the order as written, moves one operator at a time, and chooses the executors for a fixed order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cedar.optimizer.arrange import Precedence
from cedar.optimizer.cost import NOTHING, ROUNDING, ChainCost, Path, Use, add, dominates

MAX_SETS = 1 << 12  # the number of subsets of twelve operators that may run in any order
MAX_COMPARISONS = 2_000_000  # comparisons of two partial orders in the exact search, over all chains
_WIDTH = 8  # states per set of operators and executor that the local search keeps
_MIN_IMPROVEMENT = 0.001  # the local search ends when a round improves a path by less


@dataclass(slots=True)
class _OrderState:
    """A partial order, stored as its last operator and the state before it."""

    use: Use
    parent: _OrderState | None
    operator: int
    place: int


def exact_paths(
    cost: ChainCost,
    precedence: Precedence,
    others: Use,
    bound: float,
    limit: int = MAX_COMPARISONS,
    width: int | None = None,
) -> list[Path] | None:
    """Return a chain's orders and executors that can be part of a plan whose largest use is at most ``bound``.

    Omit paths that another path to the same executor beats in every resource. Return None if the search takes too long.

    Args:
        others: a lower bound on the use of the rest of the plan.
        limit: how often to compare two states at most.
        width: how many states to keep for each set of operators and executor; None keeps all.
    """
    layers: list[list[int]] = [[0]]  # the sets of operators that may have run, grouped by size
    for _ in precedence.before:
        layers.append(sorted({done | 1 << i for done in layers[-1] for i in precedence.ready(done)}))
        if sum(map(len, layers)) > MAX_SETS:
            return None
    room = _upper_bounds(cost, precedence, layers, others, bound * (1.0 + ROUNDING))
    states: dict[tuple[int, int], list[_OrderState]] = {
        (0, cost.location_after_reading(at)): [_OrderState(use, None, -1, at)]
        for at, use in cost.starts()
        if _fits(use, room[0])
    }
    for layer in layers[:-1]:
        following: dict[tuple[int, int], list[_OrderState]] = {}
        for done in layer:
            for i in precedence.ready(done):
                limit -= _extend(states, following, cost, room, done, i)
            if limit < 0:
                return None
        for (done, _), front in following.items():
            if width is not None and len(front) > width:
                front.sort(key=lambda state: _tightest(state.use, room[done]))
                del front[width:]
        states = following
    paths = [_path(cost, state, at) for (_, at), front in states.items() for state in front]
    return [path for path in paths if _fits(path.use, room[cost.full])]


def _extend(
    states: dict[tuple[int, int], list[_OrderState]],
    following: dict[tuple[int, int], list[_OrderState]],
    cost: ChainCost,
    room: dict[int, Use],
    done: int,
    i: int,
) -> int:
    """Extend the states of ``done`` by operator ``i`` on every executor. Return the number of comparisons."""
    compared = 0
    after = done | 1 << i
    free = room[after]
    for at in range(-1, 2 * len(cost.places)):
        reached = states.get((done, at))
        if not reached:
            continue
        for place in range(len(cost.places)):
            step = cost.step(NOTHING, done, at, i, place)
            front = following.setdefault((after, cost.location_after(at, i, place)), [])
            for state in reached:
                compared += 1 + len(front)
                was = state.use
                use = (was[0] + step[0], was[1] + step[1], was[2] + step[2], was[3] + step[3], was[4] + step[4])
                if not _fits(use, free) or any(dominates(other.use, use) for other in front):
                    continue
                front[:] = [other for other in front if not dominates(use, other.use)]
                front.append(_OrderState(use, state, i, place))
    return compared


def _fits(use: Use, room: Use) -> bool:
    return use[0] <= room[0] and use[1] <= room[1] and use[2] <= room[2] and use[3] <= room[3] and use[4] <= room[4]


def _tightest(use: Use, room: Use) -> tuple[float, float]:
    """Return how far a state exceeds its room, in the resource with the least room left and in total."""
    beyond = [a - b for a, b in zip(use, room, strict=True)]
    return max(beyond), sum(beyond)


def _upper_bounds(
    cost: ChainCost, precedence: Precedence, layers: list[list[int]], others: Use, bound: float
) -> dict[int, Use]:
    """Return the most that a state may use so that the rest of the chain and ``others`` stay within the bound."""
    least = [cost.min_use(i) for i in range(cost.size)]
    rest: dict[int, Use] = {cost.full: NOTHING}
    for layer in reversed(layers[:-1]):
        for done in layer:
            best = [float("inf")] * 5
            for i in precedence.ready(done):
                weight, unit, behind = cost.weight(done, i), least[i], rest[done | 1 << i]
                for k in range(5):
                    needed = weight * unit[k] + behind[k]
                    best[k] = min(best[k], needed)
            rest[done] = (best[0], best[1], best[2], best[3], best[4])
    return {
        done: tuple(bound - others[k] - use[k] + ROUNDING * bound for k in range(5))  # type: ignore[misc]
        for done, use in rest.items()
    }


def _path(cost: ChainCost, state: _OrderState, at: int) -> Path:
    order: list[int] = []
    places: list[int] = []
    current = state
    while current.parent is not None:
        order.append(current.operator)
        places.append(current.place)
        current = current.parent
    return Path(cost.finish(state.use, at), tuple(order[::-1]), tuple(places[::-1]), current.place)


# ---- chains with many orders -----------------------------------------------------------------------------------------


def improved_path(cost: ChainCost, precedence: Precedence, others: Use, path: Path) -> Path:
    """Return a path that is as good or better, by choosing executors and moving operators forward in turns."""

    def rank(use: Use) -> tuple[float, float]:
        every = add(use, others)
        return max(every), sum(every)

    while True:
        before = path
        fixed = Precedence(tuple(sum(1 << j for j in path.order[: path.order.index(i)]) for i in range(cost.size)), {})
        placed = exact_paths(cost, fixed, others, max(add(path.use, others)), width=_WIDTH)
        path = min([path, *(placed or ())], key=lambda each: rank(each.use))
        for i in range(cost.size):
            path = min([path, *_moved_forward(cost, precedence, path, i)], key=lambda each: rank(each.use))
        pairs = zip(rank(path.use), rank(before.use), strict=True)
        if all(now >= then * (1 - _MIN_IMPROVEMENT) for now, then in pairs):
            return path


def _moved_forward(cost: ChainCost, precedence: Precedence, path: Path, i: int) -> Iterator[Path]:
    """Yield the path with operator ``i`` at each earlier position, after the operators that must run before it.

    The operators that move keep their executors, or get the executor of the operator before them.
    """
    if cost.loads[i].keep >= 1 and not any(cost.columns.change(i)):
        return  # no other operator would have less to do
    place, stop = dict(zip(path.order, path.places, strict=True)), path.order.index(i) + 1
    for k in range(stop):
        passed = path.order[k:stop]
        group = [j for j in passed if j == i or precedence.before[i] >> j & 1]
        order = (*path.order[:k], *group, *(j for j in passed if j not in group), *path.order[stop:])
        kept = tuple(place[j] for j in order)
        joined = (*kept[:k], *(kept[max(k - 1, 0)] for _ in group), *kept[k + len(group) :])
        for places in {kept, joined}:
            yield Path(cost.evaluate(order, places, path.start), order, places, path.start)
