"""Improve an order step by step: move tasks of the critical path, keep what is not worse.

The same problem and effort always give the same order, on any machine: effort counts orders tried, not seconds.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TypeAlias

from cedar.trainers.resilient.planner.graph import Graph, Order, Times, measure

Move: TypeAlias = tuple[int, int, int]  # worker, from, to

_NEAR = 1e-9
_WIDTH, _MEMORY = 6, 4


def improve(graph: Graph, order: Order, effort: int, floor: float) -> Order:
    """An order that is no slower, after trying ``effort`` others; ends early at ``floor``, which nothing beats."""
    best, times = order, measure(graph, order)
    if times is None:
        return order
    now, now_times, best_times = best, times, times
    draw = random.Random(0)
    barred: dict[Move, int] = {}  # until so many orders were tried: the search leaves the places that it knows
    tried = 0
    while tried < effort and best_times.period > floor + _NEAR:
        moves = [move for move in _moves(graph, now, now_times) if barred.get(move, 0) <= tried]
        draw.shuffle(moves)
        found: tuple[tuple[float, float], Order, Times, Move] | None = None
        for move in moves[:_WIDTH]:
            after = _moved(now, move)
            tried += 1
            seen = measure(graph, after) if graph.fits(after) else None
            if seen is not None and (found is None or (seen.period, seen.spread) < found[0]):
                found = (seen.period, seen.spread), after, seen, move
        if found is None:
            tried += 1  # where no move is left, begin again at the best
            now, now_times, barred = best, best_times, {}
            continue
        (_, now, now_times, (worker, source, target)) = found
        barred |= {(worker, at + 1, at): tried + _WIDTH * _MEMORY for at in range(target, source)}
        if (now_times.period, now_times.spread) < (best_times.period, best_times.spread):
            best, best_times = now, now_times
    return best


def _moves(graph: Graph, order: Order, times: Times) -> list[Move]:
    """(worker, from, to): tasks of the critical path that may go before the one, or the whole run, ahead of them."""
    found = []
    for worker, at in _critical(graph, order, times):
        nodes = order[worker]
        if at > 0 and nodes[at - 1] // 3 != nodes[at] // 3:
            found.append((worker, at, at - 1))
            back = at - 1
            while back > 0 and nodes[back - 1] // 3 != nodes[at] // 3 and at - back < 4:
                back -= 1
                found.append((worker, at, back))
        if at + 1 < len(nodes) and nodes[at + 1] // 3 != nodes[at] // 3:
            found.append((worker, at + 1, at))
    return sorted(set(found))


def _moved(order: Order, move: Move) -> Order:
    worker, source, target = move
    after = list(order)
    nodes = list(order[worker])
    nodes.insert(target, nodes.pop(source))
    after[worker] = nodes
    return after


def _critical(graph: Graph, order: Order, times: Times) -> Iterator[tuple[int, int]]:
    """Positions on a path without slack that leads back through the stages that hold each other up."""
    place = {node: (worker, at) for worker, nodes in enumerate(order) for at, node in enumerate(nodes)}
    transfer = graph.problem.costs.transfer
    last = dict.fromkeys(range(graph.problem.stages), 0.0)
    final: dict[int, int] = {}
    for worker, nodes in enumerate(order):
        stage = graph.stage[worker]
        if nodes and times.ends[nodes[-1]] >= last[stage]:
            last[stage], final[stage] = times.ends[nodes[-1]], nodes[-1]
    stage = max(last, key=last.__getitem__)
    seen: set[int] = set()
    while stage not in seen and stage in final:
        seen.add(stage)
        node = final[stage]
        while True:
            worker, at = place[node]
            yield worker, at
            start = times.starts[node]
            source = graph.source(node)
            if source >= 0 and abs(times.ends[source] + transfer - start) < _NEAR:
                node = source
            elif at > 0 and abs(times.ends[order[worker][at - 1]] - start) < _NEAR:
                node = order[worker][at - 1]
            else:
                break
        stage = graph.stage[worker]
        together = next(group for group in graph.groups if stage in group)
        stage = max(together, key=last.__getitem__)
