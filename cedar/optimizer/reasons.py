"""Explains the search's choices, with figures that users can check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cedar.optimizer.cost import ChainCost
from cedar.optimizer.facts import Facts
from cedar.optimizer.joint import Method, PathChoice
from cedar.optimizer.loads import Load
from cedar.optimizer.ordering import Path, Precedence
from cedar.plan.data import Decision
from cedar.plan.graph import Node

_MIN_GAIN = 0.03  # fraction of the plan's time that a refused move must gain to be reported
_MAX_REFUSALS = 5


@dataclass(frozen=True)
class SearchChoice:
    """The plan that a search chose, and the plans it was compared with.

    Args:
        plan: the chosen plan.
        written: the best plan with the order as written and a single executor.
        local: the best plan that runs everything in this process.
        method: "exact" or "beam", the search method.
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
    before, after = cost.sizes_of(i)
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
