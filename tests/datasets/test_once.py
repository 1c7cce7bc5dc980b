from __future__ import annotations

import threading
import time

import cloudpickle

from cedar.datasets.once import once


class Thing:
    def __init__(self) -> None:
        self.made = 0

    @once
    def value(self) -> int:
        time.sleep(0.01)
        self.made += 1
        return self.made

    @once
    def twice(self) -> int:
        return 2 * self.value


def test_it_is_made_once_also_by_many_threads():
    thing = Thing()
    seen: list[int] = []
    threads = [threading.Thread(target=lambda: seen.append(thing.twice)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [2] * 8
    assert thing.made == 1


def test_instances_have_their_own():
    first, second = Thing(), Thing()
    first.made = 5
    assert (first.value, second.value) == (6, 1)


def test_what_is_known_travels():
    thing = Thing()
    assert thing.value == 1
    other = cloudpickle.loads(cloudpickle.dumps(thing))
    assert other.value == 1
    assert other.twice == 2
    assert Thing.value is Thing.__dict__["value"]
