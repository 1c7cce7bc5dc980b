"""The ways of gradients to the slices: sums and bytes against what is written down here."""

import itertools

import pytest
import torch

from cedar.trainers.moe.options import OptimizerOptions
from cedar.trainers.moe.placement import Placement
from cedar.trainers.moe.shards import Shards
from tests.trainers.moe.test_oracle import CASES, compared

WAYS = ["direct", "ring", "groups"]
RANKS, SIZE = 4, 10  # slices of three values, the last one of one
PLACEMENTS = [(2, 2, 2, 2), (5, 1, 1, 1), (1, 6, 1), (4, 4), (8,), (1, 2, 5)]


def collected(group, way, replicas, dtype):
    """What all ranks put in, the slices of this rank, twice, and the bytes that it sent once."""
    hosts = Placement(replicas, RANKS, 2).hosts
    draws = torch.Generator().manual_seed(sum(a * 9**b for b, a in enumerate(replicas)))
    sums = [torch.randn(len(held), SIZE, generator=draws) for held in hosts]
    shards = Shards("e", len(replicas), SIZE, group, weights=torch.float32,
                    options=OptimizerOptions(exchange=way, gradients=dtype), device=torch.device("cpu"))  # fmt: skip
    if way == "groups":
        group.register_runs()
    group.meter.take()
    mine = sums[group.rank].clone()
    first = shards.collect(mine, hosts)
    sent, _ = group.meter.take()
    assert torch.equal(mine, sums[group.rank])  # they may be looked at again
    return hosts, sums, (first, shards.collect(mine, hosts)), sent


def all_collected(group, cases):
    return [collected(group, *case) for case in cases]


@pytest.fixture(scope="module")
def found(crews):
    cases = [*itertools.product(WAYS, PLACEMENTS, ["float32"]), ("ring", (1, 2, 5), "bfloat16")]
    return dict(zip(cases, zip(*crews().run(all_collected, cases), strict=True), strict=True))


@pytest.mark.parametrize("way", WAYS)
def test_all_ways_give_the_sums_of_all_ranks_and_the_same_bits_again(found, way):
    for replicas in PLACEMENTS:
        ranks = found[way, replicas, "float32"]
        hosts, sums, *_ = ranks[0]
        whole = torch.zeros(len(replicas), SIZE, dtype=torch.float64)
        for held, part in zip(hosts, sums, strict=True):
            whole[list(held)] += part.double()
        for (_, _, (once, again), _), other in zip(ranks, found["direct", replicas, "float32"], strict=True):
            assert torch.equal(once, again)
            assert torch.allclose(once, other[2][0], rtol=0, atol=1e-6)
        together = torch.cat([each[0] for _, _, each, _ in ranks], 1)[:, :SIZE]
        assert torch.allclose(together.double(), whole, rtol=0, atol=2e-6)


@pytest.mark.parametrize("way", WAYS)
def test_bytes_are_those_of_the_formulas(found, way):
    bytes_of = 3 * RANKS * 4  # of an expert's gradients, filled up to whole slices
    for replicas in PLACEMENTS:
        ranks = found[way, replicas, "float32"]
        sent = {phase: sum(one[3].get(f"{phase} e", 0) for one in ranks) for phase in ("reduction", "gradients")}
        held = [sum(row in rows for rows in ranks[0][0]) for row in range(len(replicas))]
        if way == "direct":
            expected = {"reduction": 0, "gradients": sum(h * bytes_of * (RANKS - 1) // RANKS for h in held)}
        else:
            expected = {
                "reduction": sum(2 * (h - 1) * bytes_of for h in held),
                "gradients": sum((RANKS - h) * bytes_of // RANKS for h in held),
            }
        assert sent == expected, replicas


def test_gradients_in_bfloat16_are_rounded_on_the_way(found):
    exact = found["direct", (1, 2, 5), "float32"]
    for ours, other in zip(found["ring", (1, 2, 5), "bfloat16"], exact, strict=True):
        assert ours[2][0].dtype == torch.float32
        assert torch.allclose(ours[2][0], other[2][0], rtol=0, atol=0.05)
        assert not torch.equal(ours[2][0], other[2][0])


@pytest.mark.parametrize("way", ["ring", "groups"])
def test_training_is_that_of_one_process(crew, way):
    name = "several replicas on a rank, five experts"
    case = CASES[name] | {"steps": 3, "slots": 4, "optimizer": {"exchange": way, "offload": True}}
    worst, _, placements, _ = compared(crew, case, 4)
    assert max(worst.values()) < 1e-10, worst
    assert len(placements) > 1
