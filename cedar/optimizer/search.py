"""Search: chooses the order of every chain and the executor of every operator together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from cedar.core.sizes import size_text
from cedar.operators.base import StreamOperator
from cedar.optimizer import joint
from cedar.optimizer.arrange import Arranged, find_chains, steps_of
from cedar.optimizer.budget import Budget, Cluster
from cedar.optimizer.cost import INLINE, REMOTE, RESOURCES, Capacity, ChainCost
from cedar.optimizer.facts import Facts
from cedar.optimizer.flow import DataFlow, find_flow
from cedar.optimizer.joint import Method, PathChoice
from cedar.optimizer.loads import Load, find_loads
from cedar.optimizer.ordering import Precedence, Swap, find_precedence
from cedar.optimizer.predict import Model, as_lowered, expected_seconds, predict
from cedar.optimizer.reasons import SearchChoice, explain_choice
from cedar.plan import graph
from cedar.plan.data import Decision, Prediction
from cedar.plan.graph import Node
from cedar.plan.lower import Choice as Lowering
from cedar.plan.lower import lower
from cedar.plan.steps.commute import may_swap
from cedar.plan.steps.sweep import Sweep
from cedar.profile import Profile

MIN_GAIN = 0.03  # a plan must gain more than this over the order as written
_SETTLE_SLACK = 0.03  # moves that together gain less are undone, so that repeated measurements choose the same plan
_GIL_BOUND_SHARE = 0.9  # share of time with the GIL held above which one thread is as fast as two
_PLAIN = Lowering()
_TASKS_PER_WORKER = 2  # tasks in flight for each worker
_PROCESS_BYTES = 64 << 20  # bytes of memory that an idle worker process uses
_GATHERING_GIL_SHARE = 0.5  # share of the time for building batches that holds the GIL; large copies release it


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    Args:
        root: the graph with its chains in the chosen order, and ``place`` set on row operators and sources.
        sweeps: the steps that produced the graph.
        executor: the executor of operators whose ``place`` is not set.
        workers: how many tasks run concurrently.
        method: "exact" if every legal order of every chain was considered.
        seconds: expected seconds per row read under the chosen plan.
        written: expected seconds per row read of the input graph, on the single executor that suits it best.
        decisions: which operators moved, which did not, and why.
    """

    root: Node
    sweeps: tuple[Sweep, ...]
    executor: str
    workers: int
    method: Method
    seconds: float
    written: float
    decisions: tuple[Decision, ...]


def search(
    root: Node,
    facts: Facts,
    budget: Budget,
    executors: Sequence[str],
    workers: int,
    *,
    most_workers: int | None = None,
    turns: bool = True,
    swap: Swap = may_swap,
    cluster: Cluster | None = None,
    lowering: Lowering = _PLAIN,
) -> SearchResult:
    """Find the best order and executors for a graph that rules have rewritten.

    Args:
        facts: facts with a profile.
        executors: the allowed executors: "inline", "threads" and "processes".
        workers: how many tasks run concurrently; the search may raise it to ``most_workers`` if waiting limits the run.
        turns: use one thread if several threads would only wait for the GIL. False keeps several threads.
        swap: returns why two operators may not be swapped, or None if they may.
        cluster: a cluster that may run operators, with its measured overhead.
        lowering: settings for lowering the graph to stages.
    """
    model = _model(root, facts, budget, executors, workers, lowering)
    precedences = [find_precedence(cost.chain, facts, swap) for cost in model.costs]
    choice = _choose(model, precedences, cluster)
    wanted = _wanted_workers(choice.plan, most_workers)
    if wanted > choice.plan.model.capacity.workers:
        model = model.on(dataclasses.replace(model.capacity, workers=wanted))
        choice = _choose(model, precedences, cluster)
    if turns and most_workers is not None and _gil_bound(choice.plan):
        model = model.on(dataclasses.replace(model.capacity, workers=1))
        choice = _choose(model, precedences, cluster)
    choice = _fit_memory(choice, facts, budget)
    arranged, sweeps, refused = steps_of(root, facts, _arranged(choice.plan))
    return SearchResult(
        root=arranged,
        sweeps=sweeps,
        executor=_executor(choice.plan, model),
        workers=choice.plan.model.capacity.workers,
        method=choice.method,
        seconds=_seconds_per_row(choice.plan),
        written=_seconds_per_row(choice.written),
        decisions=(*explain_choice(choice, facts, precedences), *refused),
    )


def predict_lowered(
    root: Node,
    facts: Facts,
    budget: Budget,
    executors: Sequence[str],
    workers: int,
    lowering: Lowering = _PLAIN,
    cluster: Cluster | None = None,
    more: bool = True,
) -> Prediction:
    """Predict the performance of a graph after ``lower``; with ``more``, also the gain from more hardware."""
    model = _model(root, facts, budget, executors, workers, lowering)
    if cluster is not None:
        model = _with_cluster(model, tuple(place for place in _places(executors) if place != REMOTE), cluster)
    return predict(model, as_lowered(model), more)


# ---- the model -------------------------------------------------------------------------------------------------------


def _model(
    root: Node, facts: Facts, budget: Budget, executors: Sequence[str], workers: int, lowering: Lowering
) -> Model:
    assert facts.profile is not None, "a search follows a measurement"
    machine = facts.profile.machine
    loads = find_loads(root, facts)
    flow = find_flow(root, facts, loads)
    places = _places(executors)
    capacity = Capacity(
        cores=max(1, min(budget.cpus or machine.cores, machine.cores)),
        workers=1 if places == (INLINE,) else max(1, workers),
        ship_bytes=machine.ship_bytes,
        ship_seconds=machine.ship_seconds,
    )
    chains = find_chains(lower(root, lowering, facts.logical), facts)
    costs = tuple(ChainCost(chain, loads, flow, capacity, places, lowering, facts.ordinal) for chain in chains)
    return Model(capacity, costs, loads, flow, _stream_costs(root, facts.profile, loads, flow), lowering, facts.ordinal)


def _places(executors: Sequence[str]) -> tuple[str, ...]:
    """Return the executors to consider, the default first. Omit "inline" if threads are allowed: it is never faster."""
    local = next((place for place in ("threads", INLINE) if place in executors), None)
    return tuple(place for place in (local, REMOTE if REMOTE in executors else None) if place) or ("threads",)


def _stream_costs(root: Node, profile: Profile, loads: dict[int, Load], flow: DataFlow) -> tuple[float, float, float]:
    """Return seconds per row read (core, GIL, coordinator) of stream operators and of handling batches."""
    cores, gil, coordinator = (
        profile.own + profile.around,
        profile.own + _GATHERING_GIL_SHARE * profile.around,
        profile.own,
    )
    for node in graph.walk(root):
        if isinstance(node.operator, StreamOperator):
            load, rate = loads[id(node)], sum(flow.rate[id(child)] for child in node.inputs)
            cores += rate * load.cpu
            gil += rate * load.cpu * load.gil
            coordinator += rate * load.busy
    return cores, gil, coordinator


# ---- choosing --------------------------------------------------------------------------------------------------------


def _choose(model: Model, precedences: Sequence[Precedence], cluster: Cluster | None) -> SearchChoice:
    """Return the best plan, or the order as written if it is about as fast. Plans may use processes or a cluster."""
    places = model.costs[0].places if model.costs else ("threads",)
    local = tuple(place for place in places if place != REMOTE)
    as_written = [joint.written(model.on(model.capacity, (place,))) for place in places]
    written = min(as_written, key=lambda plan: _seconds_per_row(plan) * (1 + MIN_GAIN * plan.remote))
    plans = [joint.best(model.on(model.capacity, allowed), precedences) for allowed in {local: 0, places: 0} if allowed]
    if cluster is not None:
        plans.append(joint.best(_with_cluster(model, local, cluster), precedences))
    method: Method = "beam" if any(by == "beam" for _, by in plans) else "exact"
    plan = min((plan for plan, _ in plans), key=_seconds_per_row)
    if _seconds_per_row(plan) > _seconds_per_row(written) * (1 - MIN_GAIN):
        plan = written
    else:
        settled = plan.settled(_SETTLE_SLACK)
        plan = settled if _seconds_per_row(settled) < _seconds_per_row(written) else plan
    return SearchChoice(plan, written, plans[0][0], method, processes=REMOTE in places)


def _seconds_per_row(plan: PathChoice) -> float:
    """Return expected seconds per row."""
    return expected_seconds(plan.model, plan.model.use(plan.paths))


def _with_cluster(model: Model, local: tuple[str, ...], cluster: Cluster) -> Model:
    """Return the model with a cluster as an additional executor."""
    capacity = dataclasses.replace(
        model.capacity, cluster=cluster.address, threads=cluster.threads, ship_bytes=cluster.ship_bytes,
        ship_seconds=cluster.ship_seconds,
    )  # fmt: skip
    return model.on(capacity, (*local, cluster.address))


def _wanted_workers(plan: PathChoice, most: int | None) -> int:
    """Return the number of workers at which waiting no longer limits the plan."""
    have = plan.model.capacity.workers
    use = plan.model.use(plan.paths)
    kept = use[RESOURCES.index("workers")]
    rest = max((each for name, each in zip(RESOURCES, use, strict=True) if name != "workers"), default=0.0)
    if most is None or most <= have or kept <= rest * (1 + MIN_GAIN):
        return have
    return most if not rest else min(most, math.ceil(kept * have / rest))


def _gil_bound(plan: PathChoice) -> bool:
    """Return whether threads would mostly wait for the GIL. One thread is then as fast, as it never switches."""
    if plan.remote:
        return False
    use = plan.model.use(plan.paths)
    busy = use[RESOURCES.index("workers")] * plan.model.capacity.workers
    return busy > 0 and use[RESOURCES.index("GIL")] >= _GIL_BOUND_SHARE * busy


def _fit_memory(choice: SearchChoice, facts: Facts, budget: Budget) -> SearchChoice:
    """Reduce the number of workers if the rows in flight would not fit in memory."""
    assert facts.profile is not None
    limit = budget.memory_bytes or facts.profile.machine.memory
    plan = choice.plan
    each = _TASKS_PER_WORKER * sum(
        cost.task_bytes(path.order) for cost, path in zip(plan.model.costs, plan.paths, strict=True)
    )
    each += _PROCESS_BYTES if plan.remote else 0
    have = plan.model.capacity.workers
    fitting = max(1, int(limit / each)) if each else have
    if fitting >= have:
        return choice
    model = plan.model.on(dataclasses.replace(plan.model.capacity, workers=fitting))
    fewer = PathChoice(model, tuple(model.reevaluate(plan.paths)))
    note = Decision(
        "memory", f"{fitting} of {have} workers", True, f"each holds {size_text(each)}, rows on their way included"
    )
    return dataclasses.replace(choice, plan=fewer, notes=(*choice.notes, note))


# ---- the graph -------------------------------------------------------------------------------------------------------


def _arranged(plan: PathChoice) -> list[Arranged]:
    arranged = []
    for cost, path in zip(plan.model.costs, plan.paths, strict=True):
        places = tuple(cost.places[place] for place in path.places)
        arranged.append(Arranged(cost.chain, path.order, places, cost.places[path.start] if path.start >= 0 else ""))
    return arranged


def _executor(plan: PathChoice, model: Model) -> str:
    """Return the executor that runs operators in the coordinator's process, or the default if none does."""
    if not plan.model.costs:
        return "threads"
    local = {
        cost.places[at]
        for cost, path in zip(plan.model.costs, plan.paths, strict=True)
        for at in (path.start, *path.places)
        if at >= 0 and not cost.remote[at]
    }
    return min(local, default=model.costs[0].places[0])
