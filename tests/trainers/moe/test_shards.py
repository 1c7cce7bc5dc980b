"""Optimizer state that never moves: in whose memory it is, and which slice of what."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from cedar.trainers.common.group import Group
from cedar.trainers.moe.options import OptimizerOptions
from cedar.trainers.moe.shards import Shards

SIZE = 10


def test_offloaded_state_stays_in_host_memory():
    """On a device that computes nothing and refuses what lies elsewhere."""
    with FakeTensorMode():
        device, hosts = torch.device("cuda"), ((0, 1, 2),)
        shards = Shards("e", 3, SIZE, Group(), weights=torch.bfloat16, options=OptimizerOptions(offload=True),
                        device=device)  # fmt: skip
        found = shards.collect(torch.ones(3, SIZE, device=device), hosts)
        shards.update(found, rate=0.1, decay=0.1, betas=(0.9, 0.9), eps=1e-8, step=1)
        weights = shards.publish(hosts)
        kept = (shards.master, shards.first, shards.second, found)
        assert {value.device.type for value in kept} == {"cpu"}
        assert (weights.device.type, weights.dtype) == ("cuda", torch.bfloat16)


class OneOf(Group):
    """A rank of some that are not there."""

    def __init__(self, rank, size):
        super().__init__()
        self.rank, self.size = rank, size


def test_slices_of_all_ranks_are_the_whole_and_what_fills_them_up_is_not_saved():
    rows = torch.arange(2.0 * SIZE).view(2, SIZE)
    found = torch.full((2, SIZE), -1.0)
    for rank in range(4):
        shards = Shards("e", 2, SIZE, OneOf(rank, 4), weights=torch.float32, options=OptimizerOptions(),
                        device=torch.device("cpu"))  # fmt: skip
        shards.fill(lambda at: rows[at])
        assert shards.master.shape == (2, 3)
        part = shards.saved()["e.master"]
        assert part.shape == (2, SIZE)
        found[:, part.start[1] : part.start[1] + part.tensor.shape[1]] = part.tensor
    assert torch.equal(found, rows)
    assert shards.master[:, 1:].tolist() == [[0.0, 0.0]] * 2  # of the last rank


def test_rows_that_stand_still_keep_their_weights_and_moments():
    shards = Shards("e", 2, SIZE, Group(), weights=torch.float32, options=OptimizerOptions(),
                    device=torch.device("cpu"))  # fmt: skip
    shards.fill(lambda at: torch.full((SIZE,), float(at)))
    shards.update(torch.ones(2, SIZE), rate=0.5, decay=0.0, betas=(0.9, 0.9), eps=0.0, step=1, still=(1,))
    assert torch.allclose(shards.master, torch.tensor([[-0.5], [1.0]]).expand(2, SIZE))
    assert shards.first[1].tolist() == shards.second[1].tolist() == [0.0] * SIZE
