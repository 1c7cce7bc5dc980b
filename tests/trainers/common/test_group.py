"""The ranks that train together: what they share out, and what one of them alone is."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.errors import CedarError
from cedar.trainers.common.group import Group, cut, exchange_rows


def test_groups_of_ranks_need_all_processes(crew):
    assert 'exchange="ring"' in crew.run(refused, ranks=2)[0]


def refused(group):
    try:
        group.register_runs()
    except CedarError as error:
        return str(error)


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
