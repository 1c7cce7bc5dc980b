"""Facts and profiles for tests of the search: figures as given, no run."""

from __future__ import annotations

import itertools
from dataclasses import replace

from cedar.optimizer.arrange import find_chains
from cedar.optimizer.cost import Capacity, ChainCost
from cedar.optimizer.flow import find_flow, find_loads
from cedar.optimizer.predict import Model
from cedar.plan import graph
from cedar.plan.lower import Choice, lower
from cedar.plan.steps import step
from cedar.profile import Machine, OperatorProfile, Profile

MACHINE = Machine(cores=4, memory=1 << 34, ship_seconds=5e-4, ship_bytes=1e9, start_seconds=1.0)


PLAIN = Choice()


def figures(cpu, wall=None, keep=1.0, gil=0.0, rows=1000, calls=10, columns=None):
    wall = cpu if wall is None else wall
    return OperatorProfile("op", calls, rows, wall, cpu, keep, columns=columns or {}, gil=gil)


def facts_of(root, measured, machine=MACHINE, workers=1, executor="threads", rows=1000, streams=False):
    """Facts with a profile: ``measured`` are figures by ordinal."""
    profile = Profile("", measured, machine, rows=rows, workers=workers, executor=executor)
    return step.facts_of(root, root, lambda node: False, profile, streams=lambda node: streams)


def model_of(root, facts, places=("threads",), cores=4, workers=4, choice=PLAIN):
    loads = find_loads(root, facts)
    flow = find_flow(root, facts, loads)
    capacity = Capacity(cores, workers, facts.profile.machine.ship_bytes, facts.profile.machine.ship_seconds)
    chains = find_chains(lower(root, replace(choice, workers=lambda _: workers), facts.logical), facts)
    costs = tuple(ChainCost(chain, loads, flow, capacity, places, choice, facts.ordinal) for chain in chains)
    return Model(capacity, costs, loads, flow, (0.0, 0.0, 0.0), choice, facts.ordinal)


def cost_of(root, facts, **options):
    """Of the only chain."""
    (cost,) = model_of(root, facts, **options).costs
    return cost


def all_paths(cost, precedence):
    """The use of every legal order, with every placing."""
    for order in itertools.permutations(range(cost.size)):
        seen = 0
        for i in order:
            if precedence.before[i] & ~seen:
                break
            seen |= 1 << i
        else:
            for places in itertools.product(range(len(cost.places)), repeat=cost.size):
                for start, _ in cost.starts():
                    yield cost.evaluate(order, places, start)


def names(root):
    """What the row operators are called, lowest first."""
    return [node.operator.label() for node in graph.walk(root)]
