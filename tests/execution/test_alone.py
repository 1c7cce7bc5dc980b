"""One thread that is tried in the place of several."""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import Any

import pytest

import cedar
from cedar.execution import alone
from cedar.execution.alone import Alone
from cedar.execution.binding import Binding
from cedar.execution.known import Known
from cedar.execution.metrics import Metrics
from cedar.execution.pace import Counters
from cedar.operators.base import Env
from cedar.profile import Machine, OperatorProfile, Profile

pytestmark = pytest.mark.timeout(60)
ROWS = 4000


class Numbers:
    """A dataset: it is read in small pieces."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, i: int) -> dict[str, int]:
        return {"x": i}


class Together:
    """Calls that take the longer the more of them there are at once."""

    def __init__(self, power: float) -> None:
        self.power = power
        self.lock = threading.Lock()
        self.inside = 0

    def __call__(self, x: int) -> int:
        with self.lock:
            self.inside += 1
            many = self.inside
        time.sleep(0.001 * many**self.power)
        with self.lock:
            self.inside -= 1
        return x + 1


@pytest.mark.parametrize(("power", "threads"), [(3.0, 1), (0.0, 2)])
def test_one_thread_stays_alone_where_it_does_more(monkeypatch: pytest.MonkeyPatch, power: float, threads: int) -> None:
    monkeypatch.setattr(alone, "_WORTH", 0.0)
    monkeypatch.setattr(alone, "_SECONDS", 0.3)
    monkeypatch.setattr(alone, "_TASKS", 2)
    pipeline = cedar.from_items(Numbers()).map(Together(power), "x").batch(4, last="keep")
    with pipeline.loader(executor="threads", workers=2) as run:
        run._plans.planner.most_workers = 2  # type: ignore[union-attr] # calls that wait are worth more threads
        run._plans._known._gil = {1: 0.3}  # as somebody found
        found = [x for batch in run for x in batch["x"].tolist()]
        tried, kept, history = run._plans._alone._done, run._plans._known.workers, run._plans.history
    assert found == list(range(1, ROWS + 1))
    assert tried
    assert kept == threads
    assert any("one thread does" in why for why in history) == (threads == 1)


@pytest.mark.parametrize("asked", [{"workers": 2}, {"executor": "threads"}])
def test_as_many_threads_as_the_user_asked_for_stay(monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]) -> None:
    monkeypatch.setattr(Alone, "due", lambda _: True)
    with cedar.from_items(Numbers()).map(abs, "x").batch(4).loader(**asked) as run:
        list(run)
        assert not run._plans._alone._threads, "no trial began"


@pytest.mark.parametrize(
    ("gil", "workers", "turns"),
    [({}, 2, False), ({1: 0.05}, 2, False), ({1: 0.3}, 2, True), ({1: 0.3}, 1, False)],
)
def test_threads_take_turns_where_somebody_found_that_they_hold_the_gil(
    gil: dict[int, float], workers: int, turns: bool
) -> None:
    known = _known()
    known.workers, known._gil = workers, gil
    assert known.takes_turns is turns


def test_what_one_thread_does_alone_is_no_sign_that_nobody_holds_the_gil() -> None:
    known = _known()
    known.workers, known._gil = 1, {1: 0.3}
    known.hold_the_gil()
    known.pace._seen = Counters(rows=100, elapsed=1.0, pool=1.0, own=0.6)  # and the loader's own thread
    assert known.pace.cores > 1.5
    figures = OperatorProfile("map", 1, 100, wall=1e-4, cpu=1e-4)
    profile = Profile("", {1: figures}, Machine(2, 1 << 34), workers=1)
    assert known.completed(profile, local=True).operators[1].gil == 1.0


def _known() -> Known:
    root = cedar.from_items([{"a": 1}]).map(abs, "a").node
    return Known(Binding(root, None, Env(sampling=True)), Metrics(seconds={1: 1.0}))


def test_a_trial_that_an_iteration_ends_leaves_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    known = _known()
    known.workers, known._gil = 3, {1: 0.3}
    trial = Alone(known, Metrics())
    trial.begin()
    known.pace._seen = Counters(rows=100, elapsed=1.0)
    assert trial.step(in_flight=6) == 1
    assert trial.stop() == 3
    assert trial.stop() is None
    monkeypatch.setattr(Known, "remaining", lambda _: 10.0)
    known.pace._seen = Counters(rows=100, elapsed=1.0)
    assert not trial._in_time(), "it would end in the middle of the next one"


def test_another_epoch_has_all_threads_again() -> None:
    with cedar.from_items([{"x": i} for i in range(50)]).map(abs, "x").batch(10).loader(workers=2) as run:
        plans = run._plans
        list(run)
        plans._alone.begin()  # one thread was at work when the epoch ended
        plans.current = dataclasses.replace(plans.current, workers=1)
        next(iter(run))
        assert (plans.current.workers, plans._known.workers) == (2, 2)
