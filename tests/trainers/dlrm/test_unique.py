"""Unique rows: an expansion is an index select, whose gradient is that of torch's; and what they must not run."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cedar.trainers.dlrm.unique import Expansion, expand, on_lists, side_by_side, tells_apart


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=12), st.booleans(), st.sampled_from([torch.float32, torch.float64])
)
def test_gradients_add_up_over_the_rows_of_a_unique_row(index, ascending, dtype):
    index = sorted(index) if ascending else index
    inverse = torch.tensor(index)
    unique = int(inverse.max()) + 1
    by = Expansion.of(inverse.int(), unique)
    assert (by.order is None) == (index == sorted(index))
    rows = torch.randn(unique, 2, 3, dtype=dtype)
    ours, theirs = rows.clone().requires_grad_(), rows.clone().requires_grad_()
    scale = torch.randn(len(index), 2, 3, dtype=dtype)
    found, expected = expand(ours, by), theirs[inverse]
    assert torch.equal(found, expected)
    (found * scale).sum().backward()
    (expected * scale).sum().backward()
    assert torch.allclose(ours.grad, theirs.grad, atol=1e-5)


def test_a_batch_without_rows_expands_to_nothing():
    rows = torch.zeros(0, 4, requires_grad=True)
    expand(rows, Expansion.of(torch.zeros(0, dtype=torch.int32), 0)).sum().backward()
    assert rows.grad.shape == (0, 4)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=8), st.lists(st.sampled_from("-ab"), min_size=1, max_size=5))
def test_features_of_several_groups_stand_side_by_side(kinds, which):
    """Features by themselves, and of two groups, one in the order of its index and one not."""
    rows = len(kinds)
    indices = {"a": torch.arange(rows) // 2, "b": torch.tensor(kinds).unique(return_inverse=True)[1].flip(0)}
    by = {name: Expansion.of(index, int(index.max()) + 1) for name, index in indices.items()} | {"-": None}
    parts = [torch.randn(rows if n == "-" else by[n].unique, 3, dtype=torch.float64) for n in which]
    ours, theirs = ([part.clone().requires_grad_() for part in parts] for _ in range(2))
    found = side_by_side(ours, [by[name] for name in which])
    expected = torch.stack([p if n == "-" else p[indices[n]] for n, p in zip(which, theirs, strict=True)], 1)
    assert torch.equal(found, expected)
    scale = torch.randn_like(found)
    (found * scale).sum().backward()
    (expected * scale).sum().backward()
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one.grad, other.grad, atol=1e-12)


@pytest.mark.parametrize(
    "module",
    [
        nn.Dropout(0.1),
        nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)),
        nn.MultiheadAttention(4, 2, dropout=0.1),
        nn.RReLU(),
    ],
)
def test_modules_that_tell_equal_rows_apart_are_named(module):
    assert tells_apart(module)


def test_modules_that_treat_rows_alike_are_taken():
    assert not tells_apart(
        nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.Dropout(0.0), nn.MultiheadAttention(4, 2))
    )


class Summed(nn.Module):
    """Sums of lists, behind a module that sees every value."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, rows, offsets):
        return torch.stack([part.sum(0) for part in self.inner(rows).split(offsets.diff().tolist())])


@given(data=st.data())
def test_lists_are_pooled_on_all_rows_where_equal_ones_differ(data):
    lengths = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=5))
    index = data.draw(st.permutations([*range(len(lengths)), *data.draw(st.lists(st.integers(0, len(lengths) - 1)))]))
    by = Expansion.of(torch.tensor(index), len(lengths))
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    rows = torch.randn(sum(lengths), 3, dtype=torch.float64, requires_grad=True)
    lists = [rows[a:b] for a, b in pairwise(offsets.tolist())]
    every, ends = torch.cat([lists[u] for u in index]), torch.tensor([0, *(lengths[u] for u in index)]).cumsum(0)
    drops, alike = Summed(nn.Dropout(0.5)), Summed(nn.Identity())
    torch.manual_seed(1)
    found, due = on_lists(drops, rows, offsets, by)
    torch.manual_seed(1)
    wanted = drops(every, ends)
    assert due is None
    assert torch.equal(found, wanted)
    gradients = [torch.autograd.grad(one.square().sum(), rows, allow_unused=True)[0] for one in (found, wanted)]
    assert torch.allclose(*gradients, atol=1e-12)
    for module, anyway in ((alike, False), (drops, True), (drops.eval(), False)):
        found, due = on_lists(module, rows, offsets, by, anyway=anyway)
        assert due is by
        assert len(found) == len(lengths)
