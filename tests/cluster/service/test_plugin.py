"""What makes a scheduler a service: loaders that it hears, results that it keeps, what it tells."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from cedar.cluster.dask.kept import KEPT
from cedar.cluster.service.plugin import ServicePlugin
from cedar.cluster.service.policy import Policy
from tests.cluster.service.toy_signals import signal


def test_a_loader_that_says_nothing_any_more_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = ServicePlugin(Policy(), 0)
    plugin.hear(signal(0.5, 1.0, run="a"))
    now = time.monotonic()
    monkeypatch.setattr("cedar.cluster.service.plugin.time.monotonic", lambda: now + 60)
    plugin.hear(signal(0.5, 1.0, run="b"))
    assert [s.run for s in plugin.signals()] == ["b"]


def test_shared_results_are_kept_up_to_a_size_and_those_used_longest_ago_go_first() -> None:
    wanted: list[str] = []
    later: list[Any] = []
    scheduler: Any = SimpleNamespace(
        extensions={}, handlers={}, tasks={},
        loop=SimpleNamespace(add_callback=later.append),
        client_desires_keys=lambda keys, client: wanted.extend(keys),
        client_releases_keys=lambda keys, client, stimulus_id: [wanted.remove(key) for key in keys],
    )  # fmt: skip
    plugin = ServicePlugin(Policy(), 100)
    plugin.attach(scheduler)
    names = [f"{KEPT}{i}" for i in range(3)]
    for name in names:
        scheduler.tasks[name] = SimpleNamespace(nbytes=40)
        plugin.update_graph(scheduler, keys=[name, "another job's"])
        plugin.transition(name, "processing", "memory")
        if name == names[1]:
            plugin.update_graph(scheduler, keys=names[:1])  # used again
        for work in later:
            work()
        later.clear()
    assert wanted == [names[0], names[0], names[2]]
    assert (plugin.asked, plugin.made) == (4, 3), "one of three was removed"
