"""Expansion: an index select, whose gradient is that of torch's."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from cedar.trainers.dlrm.unique import Expansion, expand, side_by_side


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
