"""Searches for the orders and executors of one chain: an exact search, and a beam search for long chains.

The exact search is dynamic programming over sets of operators that have run. Partial orders of the same set whose rows
are on the same executor have the same continuations. The search keeps only orders that no other order beats in every
resource, and drops orders that cannot beat a known plan.

The beam search serves chains with too many orders to enumerate, and gives the exact search its first bound. A state is
scored by completing it to a plan: the remaining operators run on the executor that has the state's rows, in a fixed
order by rows dropped per cost.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from cedar.optimizer.arrange import Precedence
from cedar.optimizer.cost import NOTHING, ROUNDING, ChainCost, Path, Use, add, dominates, keep_best

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
    layers: list[list[int]] = [[0]]  # the sets of operators that may have run, grouped by size
    for _ in precedence.before:
        layers.append(sorted({done | 1 << i for done in layers[-1] for i in precedence.ready(done)}))
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


_MIN_WIDTH = 12  # minimum number of states kept per executor
_WIDTH = 480  # divided by the number of operators, so that short chains get a wider beam


@dataclass(slots=True)
class _BeamState:
    score: float
    use: Use
    done: int
    at: int
    order: tuple[int, ...]
    places: tuple[int, ...]
    start: int


def beam_paths(cost: ChainCost, precedence: Precedence, others: Use) -> list[Path]:
    """Return good orders and executors for a chain, given the resources that the rest of the plan uses."""
    static = _static_order(cost, precedence)
    width = max(_MIN_WIDTH, _WIDTH // max(1, cost.size))
    states = [_BeamState(0.0, use, 0, cost.location_after_reading(at), (), (), at) for at, use in cost.starts()]
    for _ in range(cost.size):
        states = _best_states(_children(states, cost, precedence, static, others), width)
    paths = [Path(cost.finish(s.use, s.at), s.order, s.places, s.start) for s in states]
    return keep_best(paths)


def _children(
    states: list[_BeamState], cost: ChainCost, precedence: Precedence, static: list[int], others: Use
) -> list[_BeamState]:
    children = []
    for state in states:
        rests = [_Remainder(cost, static, state.done, place) for place in range(len(cost.places))]
        for i in precedence.ready(state.done):
            for place, rest in enumerate(rests):
                use, at = cost.step(state.use, state.done, state.at, i, place), cost.location_after(state.at, i, place)
                behind = add(use, rest.without(i))
                if cost.remote[place]:
                    behind = cost.finish(behind, place)
                score, order, places = max(add(behind, others)) + sum(behind) * 1e-6, state.order, state.places
                children.append(
                    _BeamState(score, use, state.done | 1 << i, at, (*order, i), (*places, place), state.start)
                )
    return children


def _best_states(states: list[_BeamState], width: int) -> list[_BeamState]:
    """Keep the best state for each set of finished operators and executor, at most ``width`` states per executor."""
    kept: list[_BeamState] = []
    seen: set[tuple[int, int]] = set()
    left: defaultdict[int, int] = defaultdict(lambda: width)
    for state in sorted(states, key=lambda s: (s.score, s.order)):
        key = (state.done, state.at)
        if left[state.at] and key not in seen:
            seen.add(key)
            left[state.at] -= 1
            kept.append(state)
    return kept


class _Remainder:
    """The resources that the remaining operators use on one executor in the static order, with any one left out."""

    def __init__(self, cost: ChainCost, static: list[int], done: int, place: int) -> None:
        rate = cost.rate(done)
        before: Use = (0.0, 0.0, 0.0, 0.0, 0.0)
        self._parts: dict[int, tuple[Use, Use, float]] = {}
        for i in static:
            if not done >> i & 1:
                unit = cost.units[i][place]
                own = (unit[0] * rate, unit[1] * rate, unit[2] * rate, unit[3] * rate, unit[4] * rate)
                keep = cost.loads[i].keep
                self._parts[i] = (before, own, keep)
                before = add(before, own)
                rate *= keep
        self._all = before

    def without(self, i: int) -> Use:
        """Return what the others use if ``i`` runs first, so that operators ordered before it see fewer rows."""
        before, own, keep = self._parts[i]
        whole = self._all
        return (
            before[0] * keep + whole[0] - before[0] - own[0],
            before[1] * keep + whole[1] - before[1] - own[1],
            before[2] * keep + whole[2] - before[2] - own[2],
            before[3] * keep + whole[3] - before[3] - own[3],
            before[4] * keep + whole[4] - before[4] - own[4],
        )


def _static_order(cost: ChainCost, precedence: Precedence) -> list[int]:
    """Order operators by rows dropped per cost, highest first, each counted with the operators it must run after."""
    order: list[int] = []
    done = 0
    while done != cost.full:
        best, best_rank = -1, 0.0
        for i in range(cost.size):
            if done >> i & 1:
                continue
            rank = _rank(cost, precedence.before[i] & ~done | 1 << i)
            if best < 0 or rank > best_rank:
                best, best_rank = i, rank
        for i in _members(precedence.before[best] & ~done | 1 << best):
            order.append(i)
            done |= 1 << i
    return order


def _members(mask: int) -> list[int]:
    return [i for i in range(mask.bit_length()) if mask >> i & 1]


def _rank(cost: ChainCost, mask: int) -> float:
    """Return the rows that a group of operators drops per unit of cost if they run in the order as written."""
    rate, spent = 1.0, 1e-15
    for i in _members(mask):
        spent += rate * sum(cost.units[i][0])
        rate *= cost.loads[i].keep
    return (1.0 - rate) / spent
