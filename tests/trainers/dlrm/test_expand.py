"""Expansion: an index select, whose gradient is that of torch's."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cedar.trainers.dlrm.expand import Expansion, expand


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=12), st.booleans(), st.sampled_from([torch.float32, torch.float64])
)
@settings(max_examples=60, deadline=None)
def test_gradients_add_up_over_the_rows_of_a_unique_row(index, ascending, dtype):
    index = sorted(index) if ascending else index
    inverse = torch.tensor(index)
    unique = int(inverse.max()) + 1
    by = Expansion.of(inverse.int(), unique)
    assert (by.ends is not None) == (index == sorted(index))
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
