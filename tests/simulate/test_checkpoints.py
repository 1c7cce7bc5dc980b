"""Ways to save state: the time that each leaves of a job."""

import statistics
from dataclasses import replace

import pytest

from cedar.simulate.checkpoints import (
    CheckpointOptions,
    Scheme,
    effective,
    schemes,
    smallest_window,
)


def test_effective_time_is_what_the_formula_says():
    """1 / (1 + stall / (iteration * every)) / (1 + E[R] / MTBF), E[R] being half an interval where all go back."""
    for scheme, lost in (
        (Scheme("dense", every=50, stall=10.0, load=20.0), 50 * 1.2 / 2 + 20 + 30),
        (Scheme("local", every=10, lag=1.0, load=5.0, replay=0.8), (15 + 1 - 10 / 6) * 0.8 + 5 + 30),
    ):
        mtbf = 20_000.0
        found = statistics.fmean(effective(scheme, 1.0, 30.0, mtbf, 2e6, seed) for seed in range(5))
        expected = 1 / (1 + scheme.stall / scheme.every) / (1 + lost / mtbf)
        assert found == pytest.approx(expected, rel=2e-3)


def test_windows_fit_the_links_and_dense_checkpoints_follow_the_failures():
    options = CheckpointOptions(2e9, storage=1.0)
    often, rarely = schemes(options, 3.0, 600.0), schemes(options, 3.0, 36_000.0)
    assert often[0].every < rarely[0].every
    assert [one.every for one in often[1:]] == [one.every for one in rarely[1:]]
    assert smallest_window(replace(options, network=1e3, host=1e3), 3.0) == 1
    assert smallest_window(replace(options, network=12.0), 3.0) < smallest_window(replace(options, network=8.0), 3.0)


def test_what_is_saved_in_parts_outlives_failures_that_dense_checkpoints_do_not():
    found = {}
    for mtbf in (600.0, 36_000.0):
        for one in schemes(CheckpointOptions(2e9, storage=0.5), 3.0, mtbf, alone=0.8):
            found[one.name, mtbf] = effective(one, 3.0, 20.0, mtbf, 86_400)
    assert found["moevement", 600.0] > found["checkfreq", 600.0] > found["dense", 600.0]
    assert min(found[name, 36_000.0] for name in ("checkfreq", "gemini", "moevement")) > 0.98
