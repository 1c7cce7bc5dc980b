"""The ways of rows to slices and to other ranks: sums and bytes against what is written down here."""

import itertools

import pytest
import torch

from cedar.trainers.moe.gradients import moved_rows
from cedar.trainers.moe.options import OptimizerOptions
from cedar.trainers.moe.placement import Placement
from cedar.trainers.moe.shards import Shards
from tests.trainers.moe.test_oracle import CASES, compared

RANKS, SIZE = 4, 10  # slices of three values, the last one of one
PLACEMENTS = [(2, 2, 2, 2), (5, 1, 1, 1), (1, 6, 1), (4, 4), (8,), (1, 2, 5)]


def shards_of(group, rows, **options):
    return Shards("e", rows, SIZE, group, weights=torch.float32, options=OptimizerOptions(**options),
                  device=torch.device("cpu"))  # fmt: skip


def collected(group, replicas, dtype):
    """What all ranks put in, the slices of this rank, twice, and the bytes that it sent once."""
    hosts = Placement(replicas, RANKS, 2).hosts
    draws = torch.Generator().manual_seed(sum(a * 9**b for b, a in enumerate(replicas)))
    sums = [torch.randn(len(held), SIZE, generator=draws) for held in hosts]
    shards = shards_of(group, len(replicas), gradients=dtype)
    group.meter.take()
    mine = sums[group.rank].clone()
    first = shards.collect(mine, hosts)
    sent, _ = group.meter.take()
    assert torch.equal(mine, sums[group.rank])  # they may be looked at again
    return hosts, sums, (first, shards.collect(mine, hosts)), sent


def all_collected(group):
    cases = [*itertools.product(PLACEMENTS, ["float32"]), ((1, 2, 5), "bfloat16")]
    return {case: collected(group, *case) for case in cases}


@pytest.fixture(scope="module")
def found(crews):
    return crews().run(all_collected)


def test_slices_are_the_sums_of_all_ranks_and_the_same_bits_again(found):
    for replicas in PLACEMENTS:
        ranks = [each[replicas, "float32"] for each in found]
        hosts, sums, *_ = ranks[0]
        whole = torch.zeros(len(replicas), SIZE, dtype=torch.float64)
        for held, part in zip(hosts, sums, strict=True):
            whole[list(held)] += part.double()
        assert all(torch.equal(once, again) for _, _, (once, again), _ in ranks)
        together = torch.cat([each[0] for _, _, each, _ in ranks], 1)[:, :SIZE]
        assert torch.allclose(together.double(), whole, rtol=0, atol=2e-6)


def test_bytes_are_those_of_the_formula(found):
    bytes_of = 3 * RANKS * 4  # of an expert's gradients, filled up to whole slices
    for replicas in PLACEMENTS:
        hosts = found[0][replicas, "float32"][0]
        held = [sum(row in rows for rows in hosts) for row in range(len(replicas))]
        sent = sum(each[replicas, "float32"][3]["gradients e"] for each in found)
        assert sent == sum(h * bytes_of * (RANKS - 1) // RANKS for h in held), replicas


def test_gradients_in_bfloat16_are_rounded_on_the_way(found):
    for each in found:
        ours, exact = each[(1, 2, 5), "bfloat16"][2][0], each[(1, 2, 5), "float32"][2][0]
        assert ours.dtype == torch.float32
        assert torch.allclose(ours, exact, rtol=0, atol=0.05)
        assert not torch.equal(ours, exact)


def handed_on(group):
    """The rows that this rank holds after each change of placement, and slices of some of them."""
    seen = []
    for before, after in itertools.pairwise([(2, 2, 2, 2), (5, 1, 1, 1), (1, 1, 1, 5), (2, 2, 2, 2)]):
        old, new = (Placement(replicas, RANKS, 2).hosts for replicas in (before, after))
        rows = torch.arange(4.0)[:, None] * 100 + torch.arange(float(SIZE))
        values = rows[list(old[group.rank])]
        moved = moved_rows(values, old, new, group, "weights e")
        shards = shards_of(group, 4)
        shards.adopt(values, old, (1, 3))
        seen.append((torch.equal(moved, rows[list(new[group.rank])]), shards.master))
    return seen


def test_rows_move_to_the_ranks_that_hold_them_next_and_to_slices(crew):
    for answers in zip(*crew.run(handed_on), strict=True):
        assert all(right for right, _ in answers)
        whole = torch.cat([master for _, master in answers], 1)[:, :SIZE]
        assert whole[:, 0].tolist() == [0.0, 100.0, 0.0, 300.0]
        assert torch.equal(whole[3], 300 + torch.arange(float(SIZE)))


@pytest.mark.heavy
def test_training_with_offloaded_state_is_that_of_one_process(crew):
    case = CASES["several replicas on a rank, five experts"]
    worst, _, placements, _ = compared(crew, case | {"steps": 3, "slots": 4, "optimizer": {"offload": True}}, 4)
    assert max(worst.values()) < 1e-10, worst
    assert len(placements) > 1
