"""Predictions: a plan's throughput, its bottleneck, and the gain from more hardware."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from cedar.optimizer.cost import RESOURCES, Capacity, ChainCost, Path, Use, add, total
from cedar.optimizer.flow import DataFlow, Load
from cedar.plan.data import Prediction
from cedar.plan.graph import Node
from cedar.plan.lower import Choice
from cedar.profile.figures import cores_kept

_MIN_GAIN = 0.005  # minimum relative gain of a hardware upgrade to be reported
_TWICE = 2.0


@dataclasses.dataclass(frozen=True)
class Model:
    """A graph's costs on a machine: those of chains, and those of stream operators, which are the same in all plans.

    Args:
        fixed: the use of stream operators in seconds per row read: of a core, of the GIL, of the coordinator.
        choice: settings for lowering the graph to stages.
        ordinal: returns a node's number in the pipeline as written.
    """

    capacity: Capacity
    costs: tuple[ChainCost, ...]
    loads: dict[int, Load]
    flow: DataFlow
    fixed: tuple[float, float, float]
    choice: Choice
    ordinal: Callable[[Node], int | None]

    @property
    def base(self) -> Use:
        """The use of operators outside the chains."""
        cores, gil, coordinator = self.fixed
        return (cores / self.capacity.cores, gil, 0.0, 0.0, coordinator)

    def use(self, paths: Sequence[Path]) -> Use:
        """Return the use of each resource by a whole plan."""
        return add(self.base, total(path.use for path in paths))

    def on(self, capacity: Capacity, places: Sequence[str] | None = None) -> Model:
        """Return the model of the same graph on another machine, or with other executors."""
        costs = tuple(
            ChainCost(
                c.chain, self.loads, self.flow, capacity, c.places if places is None else places, self.choice,
                self.ordinal,
            )
            for c in self.costs
        )  # fmt: skip
        return dataclasses.replace(self, capacity=capacity, costs=costs)

    def reevaluate(self, paths: Sequence[Path]) -> list[Path]:
        """Return the paths with their use recomputed for this model."""
        return [
            dataclasses.replace(path, use=cost.evaluate(path.order, path.places, path.start))
            for cost, path in zip(self.costs, paths, strict=True)
        ]


def as_lowered(model: Model) -> list[Path]:
    """Return the paths of the graph in its current order, with the executors of its stages."""
    paths = []
    for cost in model.costs:
        start, *places = (cost.places.index(place) if place in cost.places else 0 for place in cost.chain.places)
        starts = [at for at, _ in cost.starts()]
        start, order = start if start in starts else starts[0], tuple(range(cost.size))
        paths.append(Path(cost.evaluate(order, places, start), order, tuple(places), start))
    return paths


def predict(model: Model, paths: Sequence[Path], more: bool = True) -> Prediction:
    """Predict a plan's throughput and bottleneck, and with ``more``, the gain from more hardware."""
    use = model.use(paths)
    named: dict[str, float] = {}
    for k, seconds in enumerate(use):
        if seconds > 0:
            named[_resource_name(model, k)] = max(seconds, named.get(_resource_name(model, k), 0.0))
    slowest = expected_seconds(model, use)
    return Prediction(
        rows_per_second=1 / slowest if slowest else float("inf"),
        bottleneck=max(named, key=lambda name: named[name]) if named else "",
        more=_upgrade_gains(model, paths, slowest) if more else {},
    )


def expected_seconds(model: Model, use: Use) -> float:
    """Return seconds per row: the use of the most used resource, or more if workers wait for the GIL."""
    work = use[0] * model.capacity.cores
    if not work:
        return max(use)
    at_once = max(1, min(model.capacity.workers, model.capacity.cores))
    return max(*use, work / cores_kept(min(use[1] / work, 1.0), at_once))


def _resource_name(model: Model, k: int) -> str:
    """Return a resource's name for predictions; for workers that mostly wait, the name of what they wait for."""
    if RESOURCES[k] not in {"workers", "one task at a time"}:
        return RESOURCES[k]
    reads = [(model.loads[id(c.chain.base)], c.rate(0)) for c in model.costs if c.chain.sources]
    storage = sum(load.wait * rate for load, rate in reads)
    waits = sum(load.wait * cost.rate(0) for cost in model.costs for load in cost.loads)
    work = sum(load.cpu * rate for load, rate in reads)
    work += sum(load.cpu * cost.rate(0) for cost in model.costs for load in cost.loads)
    if max(storage, waits) <= work:
        return RESOURCES[k]
    return "storage" if storage >= waits else "waiting"


def _upgrade_gains(model: Model, paths: Sequence[Path], slowest: float) -> dict[str, float]:
    """Return the gain of each hardware upgrade, largest first."""
    have = model.capacity
    larger = {
        "one more core": dataclasses.replace(have, cores=have.cores + 1, workers=have.workers + 1),
        "one more worker": dataclasses.replace(have, workers=have.workers + 1),
        "storage twice as fast": dataclasses.replace(have, storage=have.storage * _TWICE),
        "shipping twice as fast": dataclasses.replace(
            have, ship_bytes=have.ship_bytes * _TWICE, ship_seconds=have.ship_seconds / _TWICE
        ),
    }
    gains = {}
    for addition, capacity in larger.items():
        enlarged = model.on(capacity)
        time = expected_seconds(enlarged, enlarged.use(enlarged.reevaluate(paths)))
        gains[addition] = slowest / time - 1 if time else 0.0
    worth = sorted(gains.items(), key=lambda item: -item[1])
    return {addition: gain for addition, gain in worth if gain >= _MIN_GAIN}
