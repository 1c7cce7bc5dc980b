"""Find the best schedule with CP-SAT of OR-tools, for small grids, and bound the period. Needs the extra ``schedules``.

Workers repeat their lists, and begin a step only after their previous optimizer step. So a period T is possible if and
only if every stage does one step, from its first F to its optimizer, within T. A model of one step is therefore enough
to find the period of endless repetition.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

from cedar.trainers.resilient.planner.graph import Graph, Order, measure
from cedar.trainers.resilient.planner.problem import Problem
from cedar.trainers.resilient.planner.search import Plan, make_plan, search
from cedar.trainers.resilient.schedule import Costs, ScheduleError


def exact(problem: Problem, seconds: float = 60, workers: int | None = None) -> Plan:
    """Return the schedule with the shortest period for the problem's routes, or the best one found in ``seconds``.

    Args:
        problem: the problem. Costs that are not integers are rounded to 1/60 of a micro-batch. Then nothing is proven,
            and the heuristic's plan is returned if its period is shorter.
        seconds: time limit; when it is reached, the best schedule so far is returned, with the proven bound.
        workers: threads of the solver; default: one per core.

    Raises:
        ScheduleError: OR-tools is not installed.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise ScheduleError("exact plans need OR-tools", fix="pip install 'cedar-data[schedules]'") from error
    graph, rounded = Graph.from_problem(problem), Graph.from_problem(replace(problem, costs=_integer_costs(problem)))
    first = order = search(graph)[0]
    model, starts = _model(cp_model, rounded, order)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    if workers:
        solver.parameters.num_workers = workers
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE or status == cp_model.MODEL_INVALID:  # noqa: PLR1714 - may not be hashable
        raise ScheduleError("no schedule fits", fix="this is a fault of the planner: please report the problem")
    if status in {cp_model.OPTIMAL, cp_model.FEASIBLE}:
        when = {node: solver.value(start) for node, start in starts.items()}
        order = [sorted(nodes, key=lambda node: (when[node], node)) for nodes in order]
    if rounded.problem.costs == problem.costs:
        return make_plan(problem, graph, order, "exact", solver.best_objective_bound)
    return min((make_plan(problem, graph, one, "exact") for one in (order, first)), key=lambda planned: planned.period)


def _model(cp_model: Any, graph: Graph, order: Order) -> tuple[Any, dict[int, Any]]:
    """Return the model and the start variable of each node. The solver starts its search from ``order``."""
    problem = graph.problem
    whole = [(int(f), int(b), int(w)) for f, b, w in graph.costs]
    transfer, after = int(problem.costs.transfer), int(problem.costs.reduce + problem.costs.step)
    hint = measure(graph, order)
    assert hint is not None, "the heuristic's order can be carried out"
    max_period = int(hint.period + 1)
    horizon = max_period * problem.stages  # enough, since the times in which neighboring stages do a step overlap
    begin = min(hint.starts.values())
    model = cp_model.CpModel()
    starts: dict[int, Any] = {}
    period = model.new_int_var(int(problem.bound), max_period, "period")
    opens = [model.new_int_var(0, horizon, f"opens {stage}") for stage in range(problem.stages)]
    closes = [model.new_int_var(0, horizon, f"closes {stage}") for stage in range(problem.stages)]
    for worker, nodes in enumerate(order):
        stage = graph.stage[worker]
        tasks = []
        for node in nodes:
            starts[node] = start = model.new_int_var(0, horizon, f"start {node}")
            model.add_hint(start, round(hint.starts[node] - begin))
            cost = whole[stage][node % 3]
            tasks.append(model.new_fixed_size_interval_var(start, cost, f"task {node}"))
            model.add(opens[stage] <= start)
            model.add(closes[stage] >= start + cost)
        model.add_no_overlap(tasks)
        if problem.caps[stage] is not None:
            kept = []
            for node in nodes:
                if node % 3 == 0:
                    size = model.new_int_var(0, horizon, f"kept {node}")
                    end = starts[node + 2] + whole[stage][2]
                    kept.append(model.new_interval_var(starts[node], size, end, f"keeps {node}"))
            model.add_cumulative(kept, [1] * len(kept), graph.caps[worker])
    for node, start in starts.items():
        stage = graph.stage[graph.owner[node // 3]]
        if node % 3:
            model.add(start >= starts[node - 1] + whole[stage][node % 3 - 1])
        source = graph.source(node)
        if source >= 0:
            source_stage = graph.stage[graph.owner[source // 3]]
            model.add(start >= starts[source] + whole[source_stage][source % 3] + transfer)
    for group in graph.groups:
        for one in group:
            for other in group:
                model.add(period >= closes[one] + after - opens[other])
    _break_symmetry(model, graph, order, starts)
    model.minimize(period)
    return model, starts


def _break_symmetry(model: Any, graph: Graph, order: Order, starts: dict[int, Any]) -> None:
    """Fix the order in which interchangeable micro-batches, which have the same route, start at stage 0."""
    alike: dict[tuple[int, ...], list[int]] = {}
    for nodes in order:
        for node in nodes:
            if node % 3 == 0 and node // 3 < graph.size:
                route = tuple(graph.owner[node // 3 :: graph.size])
                alike.setdefault(route, []).append(node)
    for nodes in alike.values():
        for sooner, later in pairwise(nodes):
            model.add(starts[sooner] < starts[later])


def _integer_costs(problem: Problem) -> Costs:
    """Return the costs rounded to integers, because the solver requires integers."""
    each = vars(problem.costs).values()
    values = [one for value in each for one in (value if isinstance(value, tuple) else (value,))]
    if all(value == int(value) for value in values):
        return problem.costs
    unit = max(problem.costs.slot(problem.stages) / 60, max(values) / 100)

    def whole(value: float | tuple[float, ...]) -> Any:
        return tuple(map(whole, value)) if isinstance(value, tuple) else round(value / unit)

    return Costs(*map(whole, each))
