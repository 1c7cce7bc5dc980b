"""How long a step takes under failures: for our plans, for other ways to live with failures, and without failures.

Every system works the same global batch, ``replicas`` x ``micro_batches``. The others are idealised: the batch is split
among their pipelines as suits them best, and they pay nothing for reconfiguration. Their times are those of 1F1B,
(micro_batches + stages - 1) slots for each pipeline, as published; so is their activation memory, that of 1F1B.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from cedar.trainers.resilient.planner import Problem, plan, zero_bubble
from cedar.trainers.resilient.schedule import timeline

REDUNDANCY = 0.15  # what Bamboo's redundant forwards cost a healthy pipeline: an assumption, not a figure of the paper


def one_f_one_b_time(problem: Problem) -> float:
    """A step of 1F1B without failures: what the others are measured by."""
    return _batch([problem.stages], problem.micro_batches, [problem.costs.slot(problem.stages)]) + _after(problem)


def zero_bubble_time(problem: Problem) -> float:
    """A step of zero-bubble without failures, within the problem's memory."""
    schedule = zero_bubble(replace(problem, dead=frozenset(), replicas=1))
    return timeline(schedule, problem.costs, iterations=6).period


def fault_free_time(problem: Problem) -> float:
    """A step of our own plan without failures."""
    return plan(replace(problem, dead=frozenset(), replicas=1), 1).period


def resilient_time(problem: Problem) -> float:
    """A step of our plan for those who are alive."""
    return plan(problem, 1).period


def drop_replica_time(problem: Problem) -> float:
    """A dead worker takes its whole pipeline out; the others share its micro-batches (torchft's unit of failure).

    Example:
        >>> from cedar.trainers.resilient.schedule import Worker
        >>> drop_replica_time(Problem(4, 3, 6, frozenset({Worker(2, 1)})))
        36.0
    """
    healthy = problem.replicas - len({worker.replica for worker in problem.dead})
    slot = problem.costs.slot(problem.stages)
    return _shared([problem.stages] * healthy, problem, [slot] * healthy)


def oobleck_time(problem: Problem) -> float:
    """A damaged pipeline spreads its layers over the workers it has left (Oobleck's templates, idealised).

    Layers can be split at will, pipelines of half the workers or more go on, and micro-batches go where they suit.
    """
    dead = Counter(worker.replica for worker in problem.dead)
    lengths = [problem.stages - dead[replica] for replica in range(problem.replicas)]
    lengths = [length for length in lengths if length >= max(1, problem.stages // 2)]
    slot = sum(sum(problem.costs.stage(stage)) for stage in range(problem.stages))
    return _shared(lengths, problem, [slot / length for length in lengths])


def bamboo_time(problem: Problem) -> float:
    """The worker before a dead one does both stages, with the redundant copy it keeps (Bamboo, idealised).

    Redundant forwards cost a healthy pipeline ``REDUNDANCY``; a pipeline with two neighbours dead is lost. The memory
    of the copies is not counted.
    """
    slots = []
    for replica in range(problem.replicas):
        dead = {worker.stage for worker in problem.dead if worker.replica == replica}
        if any((stage - 1) % problem.stages in dead for stage in dead):
            continue
        slots.append(problem.costs.slot(problem.stages) * (1 + REDUNDANCY) * (2 if dead else 1))
    return _shared([problem.stages] * len(slots), problem, slots)


def throughput_bound(problem: Problem) -> float:
    """What re-routing can keep of the throughput of 1F1B: min(1, (DP - f) / DP * (M + PP - 1) / M), f being the most
    dead of one stage.

    The work of the stage with f dead takes at least that long. The 1 leaves out what a split backward wins without
    failures, too: a plan may be above it, and stands beside its own fault-free plan for that reason.

    Example:
        >>> from cedar.trainers.resilient.schedule import Worker
        >>> throughput_bound(Problem(4, 8, 8, frozenset({Worker(0, i) for i in range(4)})))
        0.6875
    """
    alive = min(len(problem.alive(stage)) for stage in range(problem.stages))
    batches = problem.micro_batches
    return min(1.0, alive / problem.replicas * (batches + problem.stages - 1) / batches)


SYSTEMS: Mapping[str, Callable[[Problem], float]] = MappingProxyType(
    {
        "resilient": resilient_time,
        "oobleck": oobleck_time,
        "bamboo": bamboo_time,
        "drop a replica": drop_replica_time,
    }
)


def _after(problem: Problem) -> float:
    return problem.costs.reduce + problem.costs.step


def _shared(lengths: Sequence[int], problem: Problem, slots: Sequence[float]) -> float:
    if not lengths:
        return math.inf
    return _batch(lengths, problem.replicas * problem.micro_batches, slots) + _after(problem)


def _batch(lengths: Sequence[int], micro_batches: int, slots: Sequence[float]) -> float:
    """The time of the slowest of some pipelines, which share the micro-batches as well as whole ones can be shared."""
    taken = [0] * len(lengths)
    for _ in range(micro_batches):
        next_one = min(range(len(lengths)), key=lambda i: (taken[i] + lengths[i]) * slots[i])
        taken[next_one] += 1
    return float(max((t + length - 1) * slot for t, length, slot in zip(taken, lengths, slots, strict=True) if t))
