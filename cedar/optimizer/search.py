"""Search: chooses the order of every chain and the executor of every operator together, and explains its choice."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cedar.core.limits import size_text
from cedar.operators.base import StreamOperator
from cedar.optimizer import joint
from cedar.optimizer.arrange import Arranged, Precedence, Swap, find_chains, find_precedence, steps_of
from cedar.optimizer.cost import INLINE, RESOURCES, Capacity, ChainCost, Path
from cedar.optimizer.flow import DataFlow, Load, find_flow, find_loads
from cedar.optimizer.joint import Method, PathChoice
from cedar.optimizer.predict import Model, as_lowered, expected_seconds, predict
from cedar.plan import graph
from cedar.plan.data import Budget, Cluster, Decision, Prediction
from cedar.plan.graph import Node
from cedar.plan.lower import Choice as Lowering
from cedar.plan.lower import lower
from cedar.plan.places import REMOTE
from cedar.plan.steps.order import may_swap
from cedar.plan.steps.step import Facts
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
    method: Method = "local" if any(by == "local" for _, by in plans) else "exact"
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


_MIN_GAIN = 0.03  # fraction of the plan's time that a refused move must gain to be reported
_MAX_REFUSALS = 5


@dataclass(frozen=True)
class SearchChoice:
    """The plan that a search chose, and the plans it was compared with.

    Args:
        plan: the chosen plan.
        written: the best plan with the order as written and a single executor.
        local: the best plan that runs everything in this process.
        method: "exact" or "local", the search method.
        processes: whether plans could use worker processes.
    """

    plan: PathChoice
    written: PathChoice
    local: PathChoice
    method: Method
    processes: bool = False
    notes: tuple[Decision, ...] = ()


def explain_choice(choice: SearchChoice, facts: Facts, precedences: Sequence[Precedence]) -> tuple[Decision, ...]:
    """Return decisions about moved operators, refused moves, executors and missing measurements."""
    decisions: list[Decision] = []
    for cost, path, precedence in zip(choice.plan.model.costs, choice.plan.paths, precedences, strict=True):
        decisions += _order_decisions(cost, path, facts)
        decisions += _refusal_decisions(cost, path, precedence, facts, choice.plan.slowest)
        decisions += _unmeasured(cost, facts)
    return (*decisions, *_place_decisions(choice, facts), *choice.notes)


def _order_decisions(cost: ChainCost, path: Path, facts: Facts) -> Iterator[Decision]:
    """Yield a decision for each operator that moved before others, with the figures that justified it."""
    nodes, loads = cost.chain.nodes, cost.loads
    for k, i in enumerate(path.order):
        passed = sorted(j for j in path.order[k + 1 :] if j < i)
        if not passed:
            continue
        names = ", ".join(facts.label(nodes[j]) for j in passed)
        costly = max(passed, key=lambda j: loads[j].busy)
        why = [f"keeps {loads[i].keep:.0%} of rows"] if loads[i].keep < 1 else []
        why += [f"costs {_time(loads[i].busy)}", *_sizes(cost, i)]
        yield Decision(
            "order",
            f"{facts.label(nodes[i])} before {names}",
            True,
            f"{', '.join(why)}; {facts.label(nodes[costly])} costs {_time(loads[costly].busy)}",
        )


def _sizes(cost: ChainCost, i: int) -> list[str]:
    """Describe the factor by which an operator changes the size of the columns that it reads and writes."""
    before, after = cost.columns.change(i)
    return [f"{after / before:.2g}x the bytes"] if before and after and abs(after / before - 1) > 0.01 else []


def _refusal_decisions(
    cost: ChainCost, path: Path, precedence: Precedence, facts: Facts, slowest: float
) -> list[Decision]:
    """Return the refused moves of filters that would have saved the most time."""
    nodes, refused = cost.chain.nodes, []
    done = 0
    weights = {}
    for i in path.order:
        weights[i] = cost.weight(done, i)
        done |= 1 << i
    for (below, above), refusal in precedence.refusals.items():
        saved = weights[below] * cost.loads[below].cpu * (1 - cost.loads[above].keep) / cost.capacity.cores
        if saved > _MIN_GAIN * slowest:
            swap = f"{facts.label(nodes[above])} before {facts.label(nodes[below])}"
            refused.append((saved, Decision("order", swap, False, refusal.reason)))
    refused.sort(key=lambda item: -item[0])
    return [decision for _, decision in refused[:_MAX_REFUSALS]]


def _unmeasured(cost: ChainCost, facts: Facts) -> Iterator[Decision]:
    for node, load in zip(cost.chain.nodes, cost.loads, strict=True):
        if not load.measured:
            yield Decision("profile", facts.label(node), False, "no row reached it: taken as a typical operator")


def _place_decisions(choice: SearchChoice, facts: Facts) -> Iterator[Decision]:
    """Yield decisions for operators in worker processes; without any, one for the operator that holds the GIL most."""
    plan = choice.plan
    if plan.remote:
        gain = choice.local.slowest / plan.slowest if plan.slowest else 1.0
        for cost, path in zip(plan.model.costs, plan.paths, strict=True):
            yield from _remote_runs(cost, path, plan.model.loads, facts, gain)
        return
    use = plan.model.use(plan.paths)
    if choice.processes and use[1] and use[1] >= max(use):
        loads = [(node, load) for cost in plan.model.costs for node, load in _working_nodes(cost, plan.model.loads)]
        node, load = max(loads, key=lambda item: item[1].cpu * item[1].gil)
        label, share = facts.label(node), load.gil
        why = f"it holds the GIL {share:.0%} of its time, but processes would not pay for shipping"
        yield Decision("place", f"{label} in processes", False, why)


def _working_nodes(cost: ChainCost, loads: dict[int, Load]) -> list[tuple[Node, Load]]:
    """Return a chain's operators with their loads, after its source if the chain starts at one."""
    base = cost.chain.base
    return [
        *([(base, loads[id(base)])] if cost.chain.sources else []),
        *zip(cost.chain.nodes, cost.loads, strict=True),
    ]


def _remote_runs(cost: ChainCost, path: Path, loads: dict[int, Load], facts: Facts, gain: float) -> Iterator[Decision]:
    run: list[tuple[Node, Load]] = []
    if path.start >= 0 and cost.remote[path.start] and cost.chain.base.effects.per_row:
        run.append((cost.chain.base, loads[id(cost.chain.base)]))
    for i, place in [*zip(path.order, path.places, strict=True), (-1, -1)]:
        if place >= 0 and cost.remote[place]:
            run.append((cost.chain.nodes[i], cost.loads[i]))
            continue
        if run:
            work = sum(load.cpu for _, load in run)
            share = sum(load.cpu * load.gil for _, load in run) / work if work else 0.0
            names = ", ".join(facts.label(node) for node, _ in run)
            verb = "holds" if len(run) == 1 else "hold"
            where = cost.capacity.cluster and f"on {cost.capacity.cluster}"
            why = f"{_time(work)} of CPU per row, on {cost.capacity.threads} core(s) there"
            why = why if where else f"{verb} the GIL {share:.0%} of the time"
            yield Decision("place", f"{names} {where or 'in processes'}", True, f"{why}; {gain:.2g}x")
        run = []


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.2g} us"
