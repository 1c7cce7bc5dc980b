"""What is taken for known of the GIL before anybody asked."""

from types import SimpleNamespace
from typing import Any

import pytest

import cedar
from cedar.execution.binding import Binding
from cedar.execution.known import Known
from cedar.execution.metrics import Metrics
from cedar.execution.runner import Runner, Runners
from cedar.operators.base import Env
from cedar.profile import Machine, OperatorProfile, Profile


@pytest.mark.parametrize(
    ("cores", "gil"),
    [
        (1.0, None),
        (1.4, None),  # they may idle for an import, or a slow start
        (1.9, pytest.approx(0.1, abs=0.15)),  # whoever is that busy waits for nobody
    ],
)
def test_idle_cores_alone_do_not_say_who_holds_the_gil(cores: float, gil: Any) -> None:
    root = cedar.from_items([{"a": 1}]).map(abs, "a").node
    known = Known(Binding(root, None, Env(sampling=True)), Metrics(seconds={1: 1.0}))
    known.workers = 2
    pace: Any = SimpleNamespace(cores=cores)
    known.pace = pace
    figures = OperatorProfile("map", 1, 100, wall=1e-4, cpu=1e-4)
    profile = Profile("", {1: figures}, Machine(2, 1 << 34), workers=2)
    assert known.completed(profile, local=True).operators[1].gil == gil


def test_processes_are_as_many_as_the_pool_has_that_a_plan_would_use() -> None:
    root = cedar.from_items([{"a": 1}]).map(abs, "a").node
    known = Known(Binding(root, None, Env(sampling=True)), Metrics())
    runner = Runner("threads", 3)
    try:
        runner.others = Runners(runner)
        runner.resize(9)  # threads that wait
        known.start(runner)
        assert (known.workers, known.processes) == (9, 3)
        others = runner.others.of("processes")
        assert others.workers == known.processes
    finally:
        for each in runner.others or ():
            each.close()
