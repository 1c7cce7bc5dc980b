"""Observations: two calls add up to one."""

from __future__ import annotations

from cedar.core.observation import Observation


def test_two_calls_are_seen_as_one() -> None:
    one = Observation(3, 2, 30, 20, 0.5, 0.25, {"x": 5, "y": 1})
    two = Observation(1, 1, 10, 10, 0.25, 0.125, {"y": 2, "z": 7})
    assert one + two == Observation(4, 3, 40, 30, 0.75, 0.375, {"x": 5, "y": 3, "z": 7})
    assert one + Observation(0, 0, 0, 0, 0.0, 0.0) == one
