"""Memory in bytes: what a stage keeps of a micro-batch, against torch's allocator and against runs; how stages step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from cedar.core.errors import CedarError
from cedar.trainers import AdamWOptions, PipelineOptions, ResilientPipeline, RunOptions, Workers
from cedar.trainers.resilient.footprint import LiveTensorBytes, footprint
from cedar.trainers.resilient.model import Engine
from cedar.trainers.resilient.planner import Problem, plan
from cedar.trainers.resilient.schedule import ScheduleError, Worker
from tests.trainers.resilient import toy_grid


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(16, 32), torch.zeros(16, 4)


def modules() -> list[nn.Module]:
    """Three stages; the second keeps most."""
    return [
        nn.Sequential(nn.Linear(32, 16), nn.GELU()),
        nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 16)),
        nn.Linear(16, 4),
    ]


def pipeline(*, clip: float = 0.0, replicas: int = 2, stages: Sequence[Any] = (), **how: Any) -> ResilientPipeline:
    return ResilientPipeline(
        stages or modules(), functional.mse_loss, batch, Workers(replicas), batch=16,
        optimizer=AdamWOptions(clip=clip), pipeline=PipelineOptions(**{"micro_batches": 4} | how), run=RunOptions(),
    )  # fmt: skip


@pytest.mark.parametrize("stage", range(3))
def test_a_footprint_is_what_torch_has_allocated_and_not_freed(stage: int) -> None:
    engine, many = pipeline().engine(stage), 5
    x = torch.ones(2, (32, 16, 16)[stage])
    size, given = footprint(engine, x, torch.zeros(2, 4) if engine.last else None)
    kept = []
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        for number in range(many):
            kept.append(engine.forward(0, (0, number), x.clone(), torch.zeros(2, 4) if engine.last else None))
    forwards = allocated(seen)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        for number in range(many):
            engine.backward_input((0, number), None if engine.last else torch.ones_like(given))
    most = max(forwards, forwards + allocated(seen))
    assert most / many == pytest.approx(size, abs=16)  # scalars


def allocated(seen: Any) -> int:
    """Bytes that were allocated, less those that were freed."""
    return sum(event.nbytes() for event in seen.profiler.kineto_results.events() if event.name() == "[memory]")


def test_a_size_holds_as_many_micro_batches_of_each_stage_as_fit() -> None:
    sizes = [footprint(pipeline().engine(stage), torch.ones(2, width), torch.zeros(2, 4))[0]
             for stage, width in enumerate((32, 16, 16))]  # fmt: skip
    made = pipeline(memory="12KiB")
    assert made.memory == tuple(12 * 1024 // size for size in sizes)
    assert len({*made.memory}) == 3
    assert made.problem.caps == made.memory
    for dead in (frozenset[Worker](), frozenset({Worker(1, 0)})):
        found = plan(made.job.problem(dead))
        for worker, live in found.facts.live.items():
            assert live <= made.memory[worker.stage]
    assert pipeline(memory="1GiB").problem.bound == pipeline(memory="all").problem.bound


def test_a_size_that_holds_none_is_refused_by_the_stage() -> None:
    with pytest.raises(CedarError, match=r"stage 1 keeps 3.38KiB of activations for a micro-batch, more than the 2KiB"):
        _ = pipeline(memory="2KiB").memory
    with pytest.raises(ValueError, match="memory is '2 apples': give a number, a size like"):
        PipelineOptions(memory="2 apples")
    with pytest.raises(ScheduleError, match=r"the memory is \(2, 1\) for 3 stages"):
        Problem(3, 2, 2, memory=(2, 1))


def test_a_stage_that_fails_says_so() -> None:
    class Counts(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.long()

    with pytest.raises(CedarError, match="stage 1 returned torch.int64"):
        _ = pipeline(stages=[nn.Linear(32, 4), Counts(), nn.Linear(4, 4)], memory="1MiB").memory


class Watched(Engine):
    """Measures what it keeps after each instruction."""

    most: dict[int, int] = {}

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.alive = LiveTensorBytes()

    def forward(self, step: int, key: Any, x: Any, targets: Any = None) -> torch.Tensor:
        with self.alive:
            found = super().forward(step, key, x.clone(), targets)
        self.look_at()
        return found.clone()  # what is sent is kept next to

    def backward_input(self, key: Any, gradient: torch.Tensor | None) -> torch.Tensor | None:
        with self.alive:
            found = super().backward_input(key, None if gradient is None else gradient.clone())
        given, found = found if found is None else found.clone(), None
        self.look_at()
        return given

    def look_at(self) -> None:
        self.most[self.number] = max(self.most.get(self.number, 0), self.alive.nbytes)


@pytest.mark.parametrize("dead", [frozenset[Worker](), frozenset({Worker(1, 1)})])
def test_workers_of_a_real_step_keep_no_more_than_the_size(monkeypatch: pytest.MonkeyPatch, dead: Any) -> None:
    sizes, x = [], toy_grid.Tokens().inputs(0, (0, 0))
    for stage in range(2):
        size, x = footprint(toy_grid.engine(stage), x, toy_grid.Tokens().targets(0, (0, 0)))
        sizes.append(size)
    memory = int(2.5 * max(sizes))
    monkeypatch.setattr(toy_grid, "Engine", Watched)
    Watched.most.clear()
    caps = tuple(memory // size for size in sizes)
    made = plan(Problem(2, 2, 3, dead, caps, tied=(0, 1)))
    toy_grid.once(made.schedule)
    for stage, cap in enumerate(caps):
        busiest = max(live for worker, live in made.facts.live.items() if worker.stage == stage)
        assert busiest <= cap
        assert (busiest - 1) * sizes[stage] < Watched.most[stage] <= memory


# ---- how stages step -------------------------------------------------------------------------------------------------


def test_stages_step_on_their_own_where_it_is_shorter_and_nothing_is_clipped() -> None:
    made = pipeline(memory="all")
    assert made.mode == ("staggered", "with 0 failures a step takes 13 slots instead of 14")
    assert made.job.mode == made.problem.mode == made.description["mode"] == "staggered"
    assert plan(made.problem).period == 13
    assert plan(pipeline(memory="all", mode="sync").problem).period == 14


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (pipeline(clip=1.0, memory="all"), "with clipping, many steps would have to be retaken"),
        (pipeline(mode="sync", memory="all"), "as asked"),
        (pipeline(), "staggered steps would not be shorter"),  # within the memory of 1F1B
        (pipeline(stages=[nn.Linear(32, 4)], memory="all"), "staggered steps would not be shorter"),
    ],
)
def test_stages_step_together_where_that_is_as_good(made: ResilientPipeline, why: str) -> None:
    assert made.mode == ("sync", why)
    assert made.job.mode == "sync"
    assert made.description["mode"] == "sync"
