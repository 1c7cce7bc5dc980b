"""How many rows a task gets, by what the last ones took."""

from types import SimpleNamespace
from typing import Any

import pytest

from cedar.engine.streams import stage


def test_tasks_grow_with_the_time_since_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [64.0]
    monkeypatch.setattr(stage, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    stream: Any = SimpleNamespace(tasks=SimpleNamespace(runner=None), per_row=True)
    source: Any = None
    flow = stage.StageFlow(stream, source, [0, 0])
    assert flow._rows == 16
    clock[0] += 1 / 16  # a twentieth of it: whoever waits for the first batch waits for those before it
    flow._adapt(16, 1 / 640, 100)
    assert flow._rows == 32
    clock[0] += 10
    flow._adapt(32, 0.002, 100)
    assert flow._rows == 128
    flow._adapt(128, 0.008, 100)
    flow._adapt(512, 0.032, 100)
    assert flow._rows == 800  # 50 ms
