"""Workers that wait for one lock."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.profile.queueing import cores_kept, lock_share


@given(st.floats(0, 1), st.integers(1, 64))
def test_a_lock_leaves_between_one_and_all(share, workers):
    kept = cores_kept(share, workers)
    assert 1 - 1e-9 <= kept <= workers + 1e-9
    assert kept <= 1 / max(share, 1e-9) + 1e-6
    assert kept <= cores_kept(share, workers + 1) + 1e-9
    assert kept >= cores_kept(min(1.0, share + 0.05), workers) - 1e-9


@given(st.floats(0.05, 1), st.integers(2, 16))
def test_the_share_is_found_again(share, workers):
    kept = cores_kept(share, workers)
    assert cores_kept(lock_share(kept, workers), workers) == pytest.approx(kept, rel=1e-3)


@pytest.mark.parametrize(("share", "workers"), [(0.3, 2), (0.6, 2), (0.5, 4)])
def test_it_is_what_a_simulation_gives(share, workers):
    """Steps of random length, with the lock and without, in turns."""
    draw, work, free = random.Random(1), 0.0, 0.0
    ready = sorted((draw.expovariate(1 / (1 - share)), i) for i in range(workers))
    for _ in range(40_000):
        now, worker = ready.pop(0)
        held, alone = draw.expovariate(1 / share), draw.expovariate(1 / (1 - share))
        free = max(now, free) + held
        work += held + alone
        ready.append((free + alone, worker))
        ready.sort()
    assert work / free == pytest.approx(cores_kept(share, workers), rel=0.03)
