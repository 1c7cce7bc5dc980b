"""Watchers: which tasks look closely."""

from __future__ import annotations

from cedar.engine.watcher import Watcher


def test_tasks_are_measured_early_while_they_grow_and_now_and_then() -> None:
    watcher = Watcher(details=2, every=64)
    assert [n for n in range(1, 130) if watcher.next(0) == "detail"] == [2, 3, 12, 16, 24, 32, 48, 64, 128]
    watcher.measure_more(2)
    assert [n for n in range(130, 140) if watcher.next(0) == "detail"] == [130, 131]
    assert [n for n in range(1, 5) if watcher.next(1) == "detail"] == [2, 3], "a stage that begins later"


def test_tasks_that_grow_in_later_epochs_are_not_measured_again() -> None:
    watcher = Watcher(every=64)
    assert [n for n in range(1, 130) if watcher.next(0) == "detail"] == [64, 128]


def test_operators_that_were_not_seen_are_sought() -> None:
    watcher = Watcher(details=1, every=0)
    assert sum(watcher.next(0, sought=True) == "detail" for _ in range(1000)) == 255
    assert watcher.next(1) == ""
