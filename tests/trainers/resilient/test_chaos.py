"""Failures on purpose: what a line of them says, and when each is due."""

from __future__ import annotations

from cedar.trainers.resilient.chaos import InjectedFault, ScheduledFaults, parse


def test_every_life_takes_the_next_mishap() -> None:
    mishaps = parse("kill=1@step2:3, slow=1@step0, kill=1@step5, rejoin@step4", 4, 6)
    assert mishaps[3] == InjectedFault("rejoin", -1, 4)
    first, second, third = (ScheduledFaults(mishaps, 1, life) for life in range(3))
    assert first.due(2, 2) is None
    assert first.due(2, 3) == mishaps[0]
    assert first.due(3, -1) is None
    assert second.due(2, 3) is None
    assert second.due(6, 0) == mishaps[2]
    assert third.due(9, 9) is None
