"""The policy: how many workers there should be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cedar.cluster.dask.signals import Signal
from cedar.cluster.service.policy import Policy
from tests.cluster.service.toy_signals import signal


def test_a_trainer_that_waits_gets_workers_at_once_up_to_the_most() -> None:
    policy, have = Policy(1, 10), 1
    seen = []
    for _ in range(8):
        have = policy.wanted([signal(0.5, busy=have)], have)
        seen.append(have)
    assert seen == [2, 3, 4, 6, 9, 10, 10, 10]


def test_workers_go_only_after_several_looks_that_agree() -> None:
    policy = Policy(1, 10, patience=3)
    calm = [signal(0.0, busy=2.0)]
    assert [policy.wanted(calm, 8) for _ in range(3)] == [8, 8, 3]
    assert policy.wanted([signal(0.0, busy=2.0), signal(0.3, busy=5.0, run="s")], 8) == 10  # someone waits
    assert [policy.wanted(calm, 10) for _ in range(2)] == [10, 10]


def test_waiting_that_workers_cannot_end_brings_no_workers() -> None:
    assert Policy(1, 10).wanted([signal(1.0, busy=0.5)], 8) == 8


def test_without_trainers_the_least_remain() -> None:
    policy = Policy(2, 10, patience=2)
    assert [policy.wanted([], 6) for _ in range(2)] == [6, 2]


signals = st.builds(signal, st.floats(0, 1), st.floats(0, 50), st.text(max_size=3))


@given(st.lists(st.lists(signals, max_size=4), max_size=8), st.integers(1, 5), st.integers(0, 20))
def test_the_number_of_workers_stays_within_its_bounds(looks: list[list[Signal]], least: int, more: int) -> None:
    policy, have = Policy(least, least + more), least
    for look in looks:
        have = policy.wanted(look, have)
        assert least <= have <= least + more
