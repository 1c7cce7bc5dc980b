"""Exact search: dynamic programming over sets of operators that have run.

Partial orders of the same set whose rows are on the same executor have the same continuations. The search keeps only
orders that no other order beats in every resource, and drops orders that cannot beat a known plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from cedar.optimizer.cost import NOTHING, ChainCost, Use
from cedar.optimizer.ordering import ROUNDING, Path, Precedence, dominates, keep_best

MAX_SETS = 1 << 12  # the number of subsets of twelve operators that may run in any order


MAX_STATES = 150_000  # limit over all chains


@dataclass
class SearchBudget:
    """How many more states a search may explore."""

    left: int


@dataclass(slots=True)
class _OrderState:
    """A partial order, stored as its last operator and the state before it."""

    use: Use
    parent: _OrderState | None
    operator: int
    place: int


def exact_paths(
    cost: ChainCost, precedence: Precedence, others: Use, bound: float, effort: SearchBudget
) -> list[Path] | None:
    """Return a chain's orders and executors that can be part of a plan whose largest use is at most ``bound``.

    Omit paths that another path beats in every resource. Return None if the search needs too many states.

    Args:
        others: a lower bound on the use of the rest of the plan.
    """
    layers = _layers(precedence)
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
                effort.left -= _extend(states, following, cost, room, done, i)
            if effort.left < 0:
                return None
        states = following
    paths = [_path(cost, state, at) for (_, at), front in states.items() for state in front]
    return keep_best([p for p in paths if _fits(p.use, room[cost.full])])


def _extend(
    states: dict[tuple[int, int], list[_OrderState]],
    following: dict[tuple[int, int], list[_OrderState]],
    cost: ChainCost,
    room: dict[int, Use],
    done: int,
    i: int,
) -> int:
    """Extend the states of ``done`` by operator ``i`` on every executor. Return how many states were explored."""
    tried = 0
    after = done | 1 << i
    free = room[after]
    for at in range(-1, 2 * len(cost.places)):
        reached = states.get((done, at))
        if not reached:
            continue
        for place in range(len(cost.places)):
            step = cost.step(NOTHING, done, at, i, place)
            front = following.setdefault((after, cost.location_after(at, i, place)), [])
            tried += len(reached)
            for state in reached:
                was = state.use
                use = (was[0] + step[0], was[1] + step[1], was[2] + step[2], was[3] + step[3], was[4] + step[4])
                if not _fits(use, free) or any(dominates(other.use, use) for other in front):
                    continue
                front[:] = [other for other in front if not dominates(use, other.use)]
                front.append(_OrderState(use, state, i, place))
    return tried


def _fits(use: Use, room: Use) -> bool:
    return use[0] <= room[0] and use[1] <= room[1] and use[2] <= room[2] and use[3] <= room[3] and use[4] <= room[4]


def _layers(precedence: Precedence) -> list[list[int]]:
    """Return the sets of operators that may have run, grouped by size."""
    layers: list[list[int]] = [[0]]
    for _ in precedence.before:
        layers.append(sorted({done | 1 << i for done in layers[-1] for i in precedence.ready(done)}))
    return layers


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
