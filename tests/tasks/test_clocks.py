"""Clocks: what threads took of the cores."""

from __future__ import annotations

import os
import threading

from cedar.tasks import clocks
from tests.waiting import eventually


def test_the_time_of_other_threads_is_told_while_they_live() -> None:
    go = threading.Event()

    def works() -> None:
        sum(range(200_000))
        go.wait(30)

    thread = threading.Thread(target=works)
    thread.start()
    before = clocks.spent_by([thread])
    go.set()
    thread.join()
    assert before[0] >= 0.0
    # the system's thread ends a little after Python's
    assert eventually(lambda: not os.path.exists(f"/proc/self/task/{thread.native_id}"))
    assert clocks.spent_by([thread]) == (0.0, 0.0)


def test_what_sending_took_is_told_once() -> None:
    clocks.shipped()
    for _ in range(2):
        clocks.ship(0.0)  # since the clock began
    assert clocks.shipped() > 0
    assert clocks.shipped() == 0.0


def test_readings_are_of_two_clocks() -> None:
    both = clocks.Reading(5.0, 3.0).since(clocks.Reading(1.0, 1.0))
    assert both == clocks.Reading(4.0, 2.0)
    assert both.plus(both) == clocks.Reading(8.0, 4.0)
