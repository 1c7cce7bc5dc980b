"""Joint search over all chains of a plan: they share the machine, so their uses of each resource add up.

The search finds every path of each chain that may be part of the best plan, then combines the chains' paths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from cedar.optimizer.arrange import Precedence
from cedar.optimizer.cost import ROUNDING, ChainCost, Path, Use, add, as_written, dominates, total
from cedar.optimizer.paths import MAX_COMPARISONS, exact_paths, improved_path
from cedar.optimizer.predict import Model

Method: TypeAlias = Literal["exact", "local"]
_MAX_COMBINATIONS = 400  # maximum number of combinations of the chains' paths


@dataclass(frozen=True)
class PathChoice:
    """A candidate plan: one path for each chain of the model."""

    model: Model
    paths: tuple[Path, ...]

    @property
    def slowest(self) -> float:
        """The use of the most used resource, in seconds per row read."""
        return max(self.model.use(self.paths))

    @property
    def remote(self) -> bool:
        """Whether some operators run in other processes, on this machine or on a cluster."""
        return any(
            at >= 0 and cost.remote[at]
            for cost, path in zip(self.model.costs, self.paths, strict=True)
            for at in (path.start, *path.places)
        )

    def others(self, k: int) -> Use:
        """Return the use of everything except chain ``k``."""
        return add(self.model.base, total(path.use for j, path in enumerate(self.paths) if j != k))

    def with_path(self, k: int, path: Path) -> PathChoice:
        """Return the plan with another path for chain ``k``."""
        return PathChoice(self.model, (*self.paths[:k], path, *self.paths[k + 1 :]))

    def settled(self, slack: float) -> PathChoice:
        """Undo moves that gain almost nothing, if the most used resource's use grows by at most ``slack`` in total."""
        current, limit = self, self.slowest * (1 + slack)
        for k, cost in enumerate(self.model.costs):
            current = current.with_path(k, settle(current.paths[k], cost, current.others(k), limit))
        return current


def written(model: Model) -> PathChoice:
    """Return the plan with the graph's own orders, with all operators on the model's first executor."""
    return PathChoice(model, tuple(as_written(cost, 0) for cost in model.costs))


def best(model: Model, precedences: Sequence[Precedence]) -> tuple[PathChoice, Method]:
    """Return the plan whose most used resource is used least, and the method that found it."""
    first = _improved(written(model), precedences)
    bound, chains = first.slowest * (1 + 2 * ROUNDING), len(model.costs)
    mixes: list[tuple[Use, dict[int, Path]]] = [(model.base, {})]  # combinations of paths of the chains so far
    whole = True
    for k in sorted(range(chains), key=lambda k: model.costs[k].size):  # short chains first, to bound long ones
        least: Use = tuple(min(use[i] for use, _ in mixes) for i in range(5))  # type: ignore[assignment]
        front = exact_paths(model.costs[k], precedences[k], least, first.slowest, MAX_COMPARISONS // chains)
        grown = [
            (use, {**paths, k: path})
            for before, paths in mixes
            for path in front or [first.paths[k]]
            if max(use := add(before, path.use)) <= bound
        ]
        mixes = _undominated(sorted(grown, key=lambda mix: max(mix[0])))
        whole &= front is not None and len(mixes) <= _MAX_COMBINATIONS
        if not mixes:  # no other plan is as good as the first
            break
    plans = [PathChoice(model, tuple(paths[k] for k in range(chains))) for _, paths in mixes]
    return min([first, *plans], key=_rank), "exact" if whole else "local"


def _rank(candidate: PathChoice) -> tuple[float, float, int]:
    """Rank by the most used resource, then by the sum of all resources, then by distance from the order as written."""
    use = candidate.model.use(candidate.paths)
    turned = sum(a > b for path in candidate.paths for k, a in enumerate(path.order) for b in path.order[k + 1 :])
    return round_off(max(use)), round_off(sum(use)), turned


def round_off(value: float) -> float:
    """Round to nine digits, so that sums in different orders are equal."""
    return float(f"{value:.9g}")


def _improved(candidate: PathChoice, precedences: Sequence[Precedence]) -> PathChoice:
    """Improve one chain after another by local search, in two rounds, to get the first bound."""
    for _ in range(2 if len(precedences) > 1 else 1):
        for k, (cost, precedence) in enumerate(zip(candidate.model.costs, precedences, strict=True)):
            path = improved_path(cost, precedence, candidate.others(k), candidate.paths[k])
            candidate = candidate.with_path(k, path)
    return candidate


def _undominated(mixes: list[tuple[Use, dict[int, Path]]]) -> list[tuple[Use, dict[int, Path]]]:
    """Keep combinations that no other combination beats in every resource, up to one more than the limit."""
    kept: list[tuple[Use, dict[int, Path]]] = []
    for use, paths in mixes:
        if not any(dominates(other, use) for other, _ in kept):
            kept.append((use, paths))
            if len(kept) > _MAX_COMBINATIONS:
                break
    return kept


# ---- settling --------------------------------------------------------------------------------------------------------


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
    # Consecutive operators on the same executor move to the default executor.
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
