"""Optimizer state that never moves: in whose memory it is, and which slice of what."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from cedar.trainers.common.group import Group
from cedar.trainers.moe.options import OptimizerOptions
from cedar.trainers.moe.shards import Shards, changed

SIZE = 10


def test_offloaded_state_stays_in_host_memory():
    """On a device that computes nothing and refuses what lies elsewhere."""
    with FakeTensorMode():
        device, hosts = torch.device("cuda"), ((0, 1, 2),)
        shards = Shards("e", 3, SIZE, Group(), weights=torch.bfloat16, options=OptimizerOptions(offload=True),
                        device=device)  # fmt: skip
        found = shards.collect(torch.ones(3, SIZE, device=device), hosts)
        shards.master += found
        weights = shards.publish(hosts)
        kept = (shards.master, *shards.slices, found)
        assert {value.device.type for value in kept} == {"cpu"}
        assert (weights.device.type, weights.dtype) == ("cuda", torch.bfloat16)


class OneOf(Group):
    """A rank of some that are not there."""

    def __init__(self, rank, size):
        super().__init__()
        self.rank, self.size = rank, size

    def exchange(self, rows, send, receive, phase):
        """As if all others sent what this one has."""
        own = rows.split(list(send))[self.rank]
        return torch.cat([own[:count] for count in receive])


def test_slices_of_all_ranks_are_the_whole():
    rows = torch.arange(2.0 * SIZE).view(2, SIZE)
    found = []
    for rank in range(4):
        shards = Shards("e", 2, SIZE, OneOf(rank, 4), weights=torch.float32, options=OptimizerOptions(),
                        device=torch.device("cpu"))  # fmt: skip
        shards.adopt(rows, ((0, 1),) * 4, (0, 1))
        assert shards.master.shape == (2, 3)
        found.append(shards.master)
    assert torch.equal(torch.cat(found, 1)[:, :SIZE], rows)
    assert shards.master[:, 1:].tolist() == [[0.0, 0.0]] * 2  # of the last rank


def test_slices_take_over_what_changed_and_keep_the_digits_of_the_rest():
    master = torch.tensor([1.001, 2.002, -3.0])
    weights = master.bfloat16()
    weights[1] = 7.0
    assert torch.equal(changed(master, weights), torch.tensor([1.001, 7.0, -3.0]))


def test_slices_are_views_of_the_masters_in_any_dtype():
    shards = Shards("e", 1, 5, Group(), weights=torch.bfloat16, options=OptimizerOptions(),
                    device=torch.device("cpu"), widths=[2, 3])  # fmt: skip
    shards.master.copy_(torch.arange(5.0))
    shards.move(torch.float64, torch.device("cpu"))
    shards.master += 1
    assert [part.tolist() for part in shards.slices] == [[1.0, 2.0], [3.0, 4.0, 5.0]]
    assert shards.master.dtype == shards.wire == torch.float64
