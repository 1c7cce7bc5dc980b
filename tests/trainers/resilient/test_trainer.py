"""Whole runs in threads: any code that dies wherever, the weights at the end are those of a run without failures."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
import torch

from cedar.trainers.resilient.executor import Waiting
from cedar.trainers.resilient.schedule import Worker, grid
from tests.trainers.resilient.toy_grid import Crew, job

CLIP = 0.42  # bites at two of the four steps
MODES = ["sync", "staggered"]
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def fault_free() -> dict[float, dict[Worker, str]]:
    """By the clip."""
    torch.set_num_threads(1)
    return {clip: Crew(clip=clip).run() for clip in (0.0, CLIP)}


@pytest.mark.heavy
def test_both_modes_give_the_same_weights(fault_free: dict[float, dict[Worker, str]]) -> None:
    assert fault_free[0.0] != fault_free[CLIP]
    for clip, expected in fault_free.items():
        staggered = Crew(job(mode="staggered"), clip=clip)
        assert staggered.run() == expected
        assert len({expected[worker] for worker in grid(2, 2)}) == 2


@pytest.mark.heavy
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(8))
def test_a_death_at_any_instruction_changes_no_bit(
    fault_free: dict[float, dict[Worker, str]], mode: str, seed: int
) -> None:
    draw = random.Random(f"{mode} {seed}")
    worker = draw.choice(list(grid(2, 2)))
    clip = draw.choice([0.0, CLIP])
    kill = draw.randrange(4), draw.randrange(18)
    crew = Crew(job(mode=mode, logs=draw.random() < 0.7), {worker: kill}, rejoin=draw.random() < 0.5, clip=clip)
    found = crew.run()
    assert len(found) >= 3
    assert found == {worker: fault_free[clip][worker] for worker in found}, kill


@pytest.mark.parametrize("mode", MODES)
def test_two_failures_at_once_change_no_bit(fault_free: dict[float, dict[Worker, str]], mode: str) -> None:
    kills = {Worker(0, 1): (1, 4), Worker(1, 0): (1, 4)}
    crew = Crew(job(mode=mode), kills, clip=CLIP)
    assert crew.run() == {worker: fault_free[CLIP][worker] for worker in (Worker(0, 0), Worker(1, 1))}


@pytest.mark.parametrize("mode", MODES)
def test_a_failure_during_recovery_changes_no_bit(fault_free: dict[float, dict[Worker, str]], mode: str) -> None:
    """The second worker dies on its first instruction of the generation that the first death began."""
    crew = Crew(job(mode=mode), {Worker(0, 1): (2, 5)}, clip=CLIP)

    def watch(worker: Worker, step: int, at: int, done: object) -> None:
        if crew.generation == 2 and worker == Worker(1, 1) and step == 2:
            from tests.trainers.resilient.toy_grid import Killed

            raise Killed

    crew.watch = watch
    assert crew.run() == {worker: fault_free[CLIP][worker] for worker in (Worker(0, 0), Worker(1, 0))}


@pytest.mark.parametrize("mode", MODES)
def test_whoever_waits_says_so(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be taken for hung as long as the others take: at a checkpoint for their norms, for instance."""
    crew = Crew(job(mode=mode), {Worker(0, 1): (1, 4)}, rejoin=True, every=1)
    silent: set[str] = set()
    until = Waiting.until

    def watched(self: Waiting, ready: Any, what: str) -> None:
        name = threading.current_thread().name
        silent.update(what for worker, waits in crew.waits.items() if name == f"trainer {worker}" and not waits)
        until(self, ready, what)

    monkeypatch.setattr(Waiting, "until", watched)
    crew.run()
    assert not silent


def test_staggered_keeps_one_undo_copy() -> None:
    sync, staggered = Crew(job(steps=2)), Crew(job(steps=2, mode="staggered"))
    sync.run()
    staggered.run()
    for worker, trainer in staggered.trainers.items():
        alone = sync.trainers[worker].peak
        assert alone < trainer.peak <= 2 * alone + 4 * trainer.engine.layout.size


def test_fast_runs_end_near_exact_ones() -> None:
    crew, exact = Crew(job(reduction="fast"), {Worker(1, 1): (1, 6)}), Crew()
    crew.run()
    exact.run()
    one, two = (c.trainers[Worker(0, 0)].state.master for c in (crew, exact))
    assert torch.allclose(one, two, atol=1e-3)


@pytest.mark.parametrize("mode", MODES)
def test_gradients_that_are_not_finite_skip_the_step_everywhere(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from cedar.trainers.resilient.model import Engine

    real = Engine.backward_weight

    def spoilt(self: Engine, key: tuple[int, int]) -> torch.Tensor:
        row = real(self, key)
        return row * float("nan") if self.last and key == (0, 1) and spoil else row

    spoil = True
    monkeypatch.setattr(Engine, "backward_weight", spoilt)
    crew = Crew(job(mode=mode, steps=2))
    crew.run()
    for trainer in crew.trainers.values():
        assert (trainer.state.version, trainer.state.updates) == (2, 0)
        assert torch.equal(trainer.state.master, trainer.engine.initial_state.master)
