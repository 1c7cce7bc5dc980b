"""Which rank holds what: tables by their rows in memory, near the best there is, and no row in two places."""

import itertools
import random
from dataclasses import replace

import pytest
import torch

from cedar.nn import Feature
from cedar.trainers.dlrm.hot import Frequency, choices, filled
from cedar.trainers.dlrm.sharding import place_exactly
from cedar.trainers.dlrm.spread import ShardingRequest, Spread
from tests.trainers.dlrm.toy_frequencies import counted


class OneOf:
    """A rank of some, for plans."""

    rank = 0

    def __init__(self, size):
        self.size = size

    def tell(self, value):
        return [value] * self.size


def highest(found, lookups, costs, owners, ranks, fast, dear):
    """The highest load of a placement, where each rank has its best rows in memory."""
    loads = []
    for rank in range(ranks):
        held = [n for n in costs if owners[n] == rank]
        counts = filled({n: found[n].touched for n in held}, dict.fromkeys(held, 8), fast)
        loads.append(sum(costs[n] + dear * found[n].cold(counts[n], len(lookups[n])) for n in held))
    return max(loads)


def test_the_greedy_plan_of_tiers_is_near_the_solver():
    """Against every way to place tables, each with its best rows in memory; and the solver finds such a best one."""
    pytest.importorskip("ortools")
    draw = random.Random(0)
    for _ in range(15):
        names, ranks, fast, dear = "abcde"[: draw.randint(2, 5)], 2, 8 * draw.randint(1, 8), 9 * 1.0
        lookups = {n: [min(int(draw.paretovariate(0.8)), 60) for _ in range(draw.randint(1, 8))] for n in names}
        found = {n: counted(each) for n, each in lookups.items()}
        costs = {n: sum(each) / draw.choice((64, 640)) for n, each in lookups.items()}
        every = [dict(zip(names, way, strict=True)) for way in itertools.product(range(ranks), repeat=len(names))]
        least = min(highest(found, lookups, costs, owners, ranks, fast, dear) for owners in every)
        wanted = ShardingRequest("tables", costs, found, "greedy", 0, fast, 10.0)
        features = [Feature(n, len(each)) for n, each in lookups.items()]
        plan = Spread(features, dict.fromkeys(names, 1), "rowwise_adagrad", torch.float32, OneOf(ranks), wanted)
        owners = {n: plan.places[n][0].rank for n in names}
        assert highest(found, lookups, costs, owners, ranks, fast, dear) <= 4 / 3 * least + 1e-9
        ways = {n: choices(found[n], len(lookups[n]), costs[n], 8, dear) for n in names}
        best = place_exactly(costs, dict.fromkeys(names, 1), ranks, choices=ways, fast=fast)
        assert highest(found, lookups, costs, best, ranks, fast, dear) == pytest.approx(least)


def test_rows_on_every_rank_take_no_other_place_in_memory():
    numbers = lambda *each: torch.tensor(each, dtype=torch.float64)
    rows = torch.arange(4)
    once = Frequency(rows, numbers(1, 1, 0.1, 0.1), numbers(1, 1, 0.1, 0.1), numbers(1, 1, 0.1, 0.1))
    often = replace(once, asking=numbers(2, 2, 0.1, 0.1), lookups=numbers(9, 8, 0.1, 0.1))
    for found, shared in ((once, {}), (often, {"hist": [0, 1]})):
        wanted = ShardingRequest("hot", None, {"hist": found}, "greedy", 0, 36, 10.0)
        features = [Feature("hist", 4, pooling="attention")]
        plan = Spread(features, {"hist": 2}, "rowwise_adagrad", torch.float32, OneOf(2), wanted)
        assert {name: ids.tolist() for name, ids in plan.shared.items()} == shared
        assert plan.near["hist[rows 0:2]"].tolist() == ([] if shared else [0, 1])
    assert plan.far == [0.0, pytest.approx(0.1)]  # of 36 bytes rows on every rank take 24, and there is room for one
