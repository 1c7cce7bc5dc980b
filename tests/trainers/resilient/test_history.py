"""A stage that has lost all its workers goes back to the checkpoint alone, and does its steps again from logs."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from functools import cache

import pytest
import torch

from cedar.trainers.resilient.control.protocol import RECOVERY
from cedar.trainers.resilient.executor import FinishedWork, Waiting
from cedar.trainers.resilient.history import History, find_sources
from cedar.trainers.resilient.model import Transformer
from cedar.trainers.resilient.schedule import Instruction, Worker
from cedar.trainers.resilient.trainer import Trainer
from tests.trainers.resilient.toy_grid import Crew, Killed, job

MODEL = Transformer(vocabulary=17, length=5, layers=3, width=8, heads=2, dropout=0.1)
CLIP = 0.4  # some steps exceed it, and some do not
MODES = ["sync", "staggered"]
pytestmark = pytest.mark.timeout(300)


def crew(mode: str, every: int = 2, **more: object) -> Crew:
    run = job(stages=3, tied=(0, 2), mode=mode, steps=6, replay=True)
    return Crew(run, model=MODEL, every=every, clip=CLIP, **more)


def counted(run: Crew) -> Counter[tuple[Worker, int]]:
    """How often each worker takes each step by the schedule, once the run has ended."""
    done: Counter[tuple[Worker, int]] = Counter()

    def watch(worker: Worker, step: int, at: int, instruction: Instruction) -> None:
        if instruction.kind == "STEP" and at >= 0:
            done[worker, step] += 1

    run.watch = watch
    return done


@cache
def usual(mode: str, every: int) -> Counter[tuple[Worker, int]]:
    """The same without failures: staggered workers take a step twice if that before it turns out to be clipped."""
    run = crew(mode, every)
    done = counted(run)
    run.run()
    return done


@pytest.fixture(scope="module")
def whole() -> dict[Worker, str]:
    torch.set_num_threads(1)  # as each test has: bits depend on it
    return crew("sync").run()


def lost(stage: int, step: int) -> dict[Worker, tuple[int, int]]:
    return {Worker(stage, 0): (step, 2), Worker(stage, 1): (step, 7)}


@pytest.mark.heavy
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("stage", "step", "every"), [(0, 3, 2), (1, 5, 2), (2, 1, 2), (1, 3, 2), (1, 5, 9)])
def test_a_lost_stage_does_its_steps_again_alone(
    whole: dict[Worker, str], mode: str, stage: int, step: int, every: int
) -> None:
    run = crew(mode, every, kills=lost(stage, step))
    done, expected = counted(run), usual(mode, every)
    found = run.run()
    assert found == {worker: whole[worker] for worker in found}
    assert len(found) == 6
    assert set(run.restores[1:]) == {"replay"}
    others = [one for one in expected if one[0].stage != stage and one[1] < step - 1]
    assert {one: done[one] for one in others} == {one: expected[one] for one in others}  # they take no step again
    keys = [RECOVERY(generation, Worker(stage, 0)) for generation in range(2, run.generation + 1)]
    times = [one for one in map(run.board.get, keys) if one is not None]
    assert times
    assert all(one["connected"] <= one["agreed"] <= one["planned"] <= one["redo"] for one in times)
    if step % 2:
        last = Worker(stage, 0), step - 1
        assert done[last] == expected[last]  # by the schedule; again, it is done from logs


@pytest.mark.heavy
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("who", [Worker(1, 1), Worker(0, 0), Worker(2, 1)])
def test_a_failure_while_steps_are_done_again_changes_no_bit(whole: dict[Worker, str], mode: str, who: Worker) -> None:
    run = crew(mode, kills=lost(1, 5))
    fired: list[int] = []

    def watch(worker: Worker, step: int, at: int, instruction: Instruction) -> None:
        if len(run.restores) == 2 and worker == who and not fired and (at >= 0 or who.stage != 1):
            fired.append(step)
            raise Killed

    run.watch = watch
    found = run.run()
    assert fired
    assert found == {worker: whole[worker] for worker in found}


@pytest.mark.heavy
@pytest.mark.parametrize("mode", MODES)
def test_where_logs_are_gone_with_a_neighbor_all_restore(whole: dict[Worker, str], mode: str) -> None:
    """Worker (0, 1) dies in step 3, in which all are, with what it had sent since step 2; then stage 1 dies."""
    first = Worker(0, 1)
    run = crew(mode, kills={first: (3, 6), Worker(1, 0): (3, 10), Worker(1, 1): (3, 12)})

    def watch(worker: Worker, step: int, at: int, _: Instruction) -> None:
        end = time.monotonic() + 60
        while step == 3 and time.monotonic() < end and (
            (worker == first and at == 6 and any(one.state.version < 3 for one in run.trainers.values()))
            or (worker.stage == 1 and at == 10 and first in run.members)
        ):  # fmt: skip
            time.sleep(0.001)

    run.watch = watch
    found = run.run()
    assert found == {worker: whole[worker] for worker in found}
    assert "restore" in run.restores[1:]


def test_a_wait_for_a_stage_that_does_its_steps_again_has_no_limit() -> None:
    """A replay that took longer than the patience of the others never ended. After it, waits have a limit again."""
    run = crew("sync", kills=lost(1, 3))
    limits: dict[int, set[float]] = defaultdict(set)

    def watch(worker: Worker, *_: object) -> None:
        if hasattr(run.trainers[worker], "waiting"):
            waiting = run.trainers[worker].waiting
            limits[waiting.generation].add(waiting.patience)

    run.watch = watch
    run.run()
    assert limits.pop(1) == {run.job.patience}
    assert {run.job.patience, math.inf} in limits.values()


def test_a_worker_that_waits_to_join_has_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """It died while the others redid their steps, after they had been asked to wait for it."""
    limits: dict[int, set[float]] = defaultdict(set)
    idle = Trainer.idle

    def watched(self: Trainer, waiting: Waiting) -> None:
        if not self._has_state:
            limits[waiting.generation].add(waiting.patience)
        idle(self, waiting)

    monkeypatch.setattr(Trainer, "idle", watched)
    run = crew("sync", kills=lost(1, 3))
    run.run()
    assert limits.pop(0) == {run.job.patience}
    assert set.union(*limits.values()) == {math.inf}


def test_some_steps_are_clipped_and_some_are_not() -> None:
    """So that the tests above do both again."""
    run = crew("sync", every=9)
    run.run()
    for trainer in run.trainers.values():
        scales = [trainer.history.scales[step] for step in range(5)]
        assert 1.0 in scales
        assert any(scale is not None and scale < 1 for scale in scales)


def test_logs_are_kept_from_the_checkpoint_on() -> None:
    run = crew("sync")
    run.run()
    for trainer in run.trainers.values():
        assert min(trainer.history.steps, default=9) >= 4
        assert trainer.logged > 0


def test_who_sends_what_is_found_or_refused() -> None:
    history = History(first=False, last=False)
    kept = FinishedWork(0, outputs={(0, 0): torch.zeros(2)}, gradients={(0, 0): torch.ones(2)})
    history.add(0, kept, None)
    history.log_scale(0, 0.5)
    told = {Worker(0, 1): history.describe(), Worker(2, 0): history.describe(), Worker(0, 2): history.describe()}
    found = find_sources(told, 1, range(1), stages=3, keys=[(0, 0)], tied=(0, 2), staggered=False)
    assert found is not None
    assert list(found.messages(0, [(0, 0)])) == [
        (Worker(0, 1), "outputs", (0, 0)), (Worker(2, 0), "gradients", (0, 0)),
    ]  # fmt: skip
    assert found.scales == {0: 0.5}
    for steps, keys, stage, tied in ((2, 1, 1, ()), (1, 2, 1, ()), (1, 1, 0, (0, 2))):
        wanted = [(0, number) for number in range(keys)]
        assert find_sources(told, stage, range(steps), stages=3, keys=wanted, tied=tied, staggered=False) is None
    history.forget(1)
    assert history.nbytes == 0
