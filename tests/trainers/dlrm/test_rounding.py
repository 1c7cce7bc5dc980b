"""Stochastic rounding to float16: to a neighbor, without bias, by bits that are spread evenly."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from cedar.trainers.dlrm.tables import row_keys, to_half, uniform


@given(
    st.lists(st.floats(-60000, 60000, width=32, allow_subnormal=False), min_size=1, max_size=20), st.integers(0, 999)
)
def test_a_value_goes_to_one_of_its_two_neighbors(values, chance):
    given_values = torch.tensor(values, dtype=torch.float32)
    found = to_half(given_values, torch.full_like(given_values, chance / 1000)).numpy()
    for value, half in zip(np.float32(values), found, strict=True):
        near = np.float16(value)
        other = np.nextafter(near, np.float16(np.inf) if value > near else np.float16(-np.inf))
        low, high = sorted([float(near), float(near) if float(near) == value else float(other)])
        assert low <= value <= high
        assert float(half) in (low, high)


def test_the_mean_is_the_value_also_where_float16_has_few_digits():
    for value in (1.0001, -3.3e-5, 2e-8, -5e-8, 0.0, 1024.3):
        values = torch.full((100, 1000), value)
        keys = row_keys(torch.full((100,), 5), torch.arange(100))
        found = to_half(values, uniform(keys, 1000)).double()
        spread = float(found.max() - found.min())
        assert abs(float(found.mean()) - float(np.float32(value))) <= 5 * spread / 2 / 100_000**0.5


def test_random_numbers_are_spread_evenly_and_do_not_repeat():
    found = uniform(row_keys(torch.zeros(1000, dtype=torch.int64), torch.arange(1000)), 64)
    assert 0 <= float(found.min()) <= float(found.max()) < 1
    counts = torch.histc(found, 64, 0, 1)
    assert float(((counts - 1000) ** 2 / 1000).sum()) < 120  # chi-squared with 63 degrees of freedom
    assert abs(float((found[1:] - 0.5).flatten() @ (found[:-1] - 0.5).flatten()) / 63936) < 0.002
