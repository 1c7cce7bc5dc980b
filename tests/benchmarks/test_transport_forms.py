"""The benchmark of the transport in its shortest form: what it runs is right, whatever it takes."""

import json

import pytest

from benchmarks import transport, transport_runs
from tests.how_much import LONG


def test_a_killed_parent_leaves_no_worker():
    pids, took = transport._killed()
    assert pids == []
    assert took >= 0


@pytest.mark.skipif(not LONG, reason="make test-long runs it")
def test_abandoned_loaders_are_counted_before_and_after():
    child = transport._child(transport_runs.ABANDON, "4")
    out, errors = child.communicate(timeout=100)
    before, after, _ = json.loads(out)
    assert errors == ""
    assert (before[0], before[2:4]) == (after[0], after[2:4])
    assert after[1] <= before[1] + 3  # a worker's arena is made when it first sends something large
