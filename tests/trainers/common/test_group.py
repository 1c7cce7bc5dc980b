"""The ranks that train together: what they share out, and what one of them alone is."""

from __future__ import annotations

import copy
from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from cedar.trainers.common.group import Group, cut, exchange_rows


def sums(group, sizes):
    """Of numbers whose sum depends on their order: what was found, and what adding manually in that of ranks gives."""
    found = []
    for size in sizes:
        every = [torch.rand(size, generator=torch.Generator().manual_seed(rank)) ** 9 for rank in range(group.size)]
        group.meter.take()
        own = group.add(every[group.rank].view(-1, 2) if size % 2 == 0 else every[group.rank], "sum").flatten()
        total = every[0].clone()
        for other in every[1:]:
            total += other
        found.append((own.tolist(), torch.equal(own, total), group.meter.take()[0]["sum"] / (4 * size)))
    return found


def test_sums_are_in_the_order_of_ranks_and_send_what_a_ring_does(crew):
    """Every rank sent all of its numbers to each of the others."""
    sizes = (1, 2, 3, 10, 4096, 4099)
    for ranks in (2, 3, 4):
        answers = crew.run(sums, sizes, ranks=ranks)
        assert all(numbers == other for (numbers, *_), (other, *_) in zip(answers[0], answers[-1], strict=True))
        for answer in answers:
            assert all(right for _, right, _ in answer)
            assert all(sent <= 2.01 * (ranks - 1) / ranks for _, _, sent in answer[4:])


def test_a_copy_of_a_group_is_the_group(crew):
    assert crew.run(copied, ranks=2) == [True, True]


def copied(group):
    return copy.deepcopy({"model": [group]})["model"][0] is group


@given(st.integers(0, 50), st.integers(1, 9))
def test_runs_follow_each_other_and_are_of_one_length_but_for_one(size, count):
    runs = cut(size, count)
    assert [at for run in runs for at in run] == list(range(size))
    assert len(runs) == count
    assert all(a.stop == b.start for a, b in pairwise(runs))
    assert max(map(len, runs)) - min(map(len, runs)) <= 1


def test_one_process_gets_back_what_it_gives_and_sends_nothing():
    group, rows = Group(), torch.randn(3, 2, requires_grad=True)
    assert (group.rank, group.size, group.side) == (0, 1, None)
    assert group.tell({"a": 1}) == [{"a": 1}]
    assert torch.equal(group.gather(rows, "test")[0], rows)
    assert torch.equal(group.add(rows, "test"), rows)
    exchange_rows(rows, group, [3], [3], ("there", "back"), scale=0.5).sum().backward()
    assert rows.grad.tolist() == [[0.5, 0.5]] * 3
    assert group.meter.take()[0] == {}
