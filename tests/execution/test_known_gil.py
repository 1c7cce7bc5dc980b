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


def _asks(known: Known, **pace: Any) -> bool:
    seen: Any = SimpleNamespace(seconds=1.0, **({"crowded": False, "here": True} | pace))
    known.pace = seen
    return known.asks(Profile("", {}, Machine(2, 1 << 34), workers=2), None)


def test_who_holds_the_gil_is_asked_where_threads_wait_alone() -> None:
    root = cedar.from_items([{"a": 1}]).map(abs, "a").node
    known = Known(Binding(root, None, Env(sampling=True)), Metrics())
    known.workers = 2
    assert _asks(known, busy=1.1)
    assert not _asks(known, busy=1.8), "they keep the cores busy"
    assert not _asks(known, busy=1.8, crowded=True), "or would, if others did not have them"
    assert not _asks(known, busy=0.1, here=False), "processes do the work"
    known.workers = 4
    assert _asks(known, busy=2.2, crowded=True, cores=0.0), "four threads on two cores crowd themselves"
    known._gil = {1: 0.4}
    assert known.takes_turns, "and one of them may do as much"


def test_what_was_found_while_others_had_the_cores_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    root = cedar.from_items([{"a": 1}]).map(abs, "a").node
    known = Known(Binding(root, None, Env(sampling=True)), Metrics())
    known.workers = 2
    answers = iter([1.0, 0.2, 0.1])

    def probed(profile: Profile, *_: Any) -> Profile:
        gil = next(answers)
        return Profile("", {1: OperatorProfile("map", 1, 100, wall=1e-4, cpu=1e-4, gil=gil)}, profile.machine)

    monkeypatch.setattr("cedar.execution.known.with_gil", probed)
    profile = Profile("", {}, Machine(2, 1 << 34), workers=2)
    assert _asks(known, busy=1.1, crowded=True)
    known.ask(profile)
    assert not _asks(known, busy=1.1, crowded=True), "as long as they have them"
    assert _asks(known, busy=1.1)
    known.ask(profile)
    assert known._gil == {1: 0.2}, "it says nothing any more"
    assert not _asks(known, busy=1.1)
    known.ask(profile)
    assert known._gil == {1: 0.2}, "but a run that was not busy holds nobody up"


def test_what_one_thread_showed_is_not_asked_again() -> None:
    root = cedar.from_items([{"a": 1}]).map(abs, "a").node
    known = Known(Binding(root, None, Env(sampling=True)), Metrics())
    known.workers, known._gil, known._doubtful = 2, {1: 0.3}, True
    assert _asks(known, busy=1.1)
    known.hold_the_gil()
    assert known._gil == {1: 1.0}
    assert not _asks(known, busy=1.1)


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
