"""Windows of sparse checkpoints: no other cut has a smaller largest step."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.trainers.common.windows import choose_window, plan_window, step_bytes


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.data())
def test_no_cut_has_a_smaller_largest_step(sizes, data):
    steps = data.draw(st.integers(1, len(sizes)))
    window = plan_window(sizes, steps)
    assert [at for run in window for at in run] == list(range(len(sizes)))
    assert len(window) == steps
    assert all(window)
    cuts = ((0, *inner, len(sizes)) for inner in combinations(range(1, len(sizes)), steps - 1))
    others = ([range(a, b) for a, b in pairwise(cut)] for cut in cuts)
    largest = lambda runs: max(step_bytes(sizes, runs, at) for at in range(steps))
    assert largest(window) == min(largest(runs) for runs in others)


@given(st.lists(st.integers(1, 40), max_size=8), st.integers(0, 2000))
def test_no_smaller_window_keeps_within_the_bytes(sizes, most):
    largest = lambda steps: max(step_bytes(sizes, plan_window(sizes, steps), at) for at in range(steps))
    fit = [steps for steps in range(1, len(sizes) + 1) if largest(steps) <= most]
    assert choose_window(sizes, most) == min(fit, default=max(len(sizes), 1))


@pytest.mark.parametrize(("steps", "share"), [(3, 0.5), (8, 0.3)])
def test_the_largest_step_is_a_part_of_a_dense_checkpoint(steps, share):
    sizes = [1000] * 40
    window = plan_window(sizes, steps)
    assert max(step_bytes(sizes, window, at) for at in range(steps)) <= share * 12 * sum(sizes)
