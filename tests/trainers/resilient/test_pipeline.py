"""Any modules as stages: the same losses as torch in one process, the same bits any code that dies."""

from __future__ import annotations

import random
import sys
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from cedar.core.errors import CedarError
from cedar.trainers import ResilientPipeline, RunOptions, Workers
from cedar.trainers.common.compute import keyed
from cedar.trainers.resilient.data import MicroBatches, Source
from cedar.trainers.resilient.model import Engine
from cedar.trainers.resilient.schedule import Worker
from tests.how_much import LONG
from tests.trainers.resilient import toy_grid
from tests.trainers.resilient.toy_grid import Crew, job

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.waits,
    pytest.mark.timeout(400),
    pytest.mark.skipif(sys.platform != "linux", reason="workers are forked, and die with their supervisor on Linux"),
]


# ---- many kills, as threads ------------------------------------------------------------------------------------------


class Narrow(nn.Module):
    """Its boundary has another shape than its input: stages need not be alike."""

    def __init__(self) -> None:
        super().__init__()
        self.cut, self.drop = nn.Conv1d(3, 4, 2, stride=2), nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.drop(self.cut(x)).relu()
        return found


def modules() -> list[nn.Module]:
    with keyed("cpu", 1):  # threads make them at the same time
        middle = nn.Sequential(nn.Conv1d(4, 6, 1), nn.GELU(), nn.GroupNorm(2, 6))
        return [Narrow(), middle, nn.Sequential(nn.Flatten(), nn.Linear(24, 5))]


def batch(step: int) -> tuple[Any, Any]:
    draw = torch.Generator().manual_seed(step)
    return torch.randn(12, 3, 8, generator=draw), torch.randint(0, 5, (12,), generator=draw)


def foreign(stage: int, stages: int, *_: object) -> Engine:
    made = Engine(modules()[stage], stage, stages, functional.cross_entropy, prefix=f"{stage}.", share=1 / 6)
    x = batch(0)[0][:2]
    for module in modules()[:stage]:
        x = module.eval()(x).detach()
    made.find_signatures(x)
    made.load(made.initial_state)
    return made


JOB = job(stages=3, tied=())


@cache
def whole(clip: float) -> dict[Worker, str]:
    return Crew(JOB, clip=clip).run()


@pytest.fixture(autouse=True)
def _foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy_grid, "engine", foreign)
    monkeypatch.setattr(toy_grid, "Tokens", lambda: MicroBatches(Source(batch), 3, 2, 12))


@pytest.mark.parametrize("seed", range(200 if LONG else 8))
def test_a_death_among_foreign_stages_changes_no_bit(seed: int) -> None:
    """``make test-long`` tries 200."""
    draw = random.Random(seed)
    kill = {Worker(draw.randrange(3), draw.randrange(2)): (draw.randrange(4), draw.randrange(18))}
    mode, clip = draw.choice(["sync", "staggered"]), draw.choice([0.0, 0.3])
    expected = whole(clip)
    found = Crew(job(stages=3, tied=(), mode=mode), kill, rejoin=draw.random() < 0.5, clip=clip).run()
    assert found == {worker: expected[worker] for worker in found}, kill


def test_who_joins_while_stages_are_ahead_holds_nobody_up() -> None:
    """They waited for the norm of a stage that waited for them: until their patience was over."""
    crew = Crew(job(stages=3, tied=(), mode="staggered"), {Worker(0, 1): (0, 12)}, rejoin=True)
    assert crew.run() == whole(0.0)


def test_what_cannot_be_trained_is_told() -> None:
    with pytest.raises(CedarError, match="a batch of 9 rows cannot be cut into 2 x 4 micro-batches"):
        _ = ResilientPipeline(modules(), functional.cross_entropy, batch, batch=9).rows
    run = RunOptions(device="cuda:99")
    with pytest.raises(CedarError, match="run.device is 'cuda:99', but torch sees"):
        ResilientPipeline(modules(), functional.cross_entropy, batch, Workers(), batch=8, run=run).train()


def test_settings_may_be_integers_of_numpy() -> None:
    """They could not be written as JSON."""
    run = RunOptions(device="cpu", steps=np.int64(9), sparse_window=np.int64(2))
    told = ResilientPipeline(modules(), functional.cross_entropy, batch, batch=8, run=run).description["run"]
    assert (told["steps"], told["sparse_window"]) == (9, 2)


class Turned(nn.Module):
    """Holds a complex buffer, as rotary embeddings do."""

    turns: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("turns", torch.polar(torch.ones(4), torch.arange(4.0)), persistent=False)
        self.map = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turned = torch.view_as_complex(self.map(x).float().unflatten(-1, (4, 2))) * self.turns
        return torch.view_as_real(turned).flatten(-2).to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_complex_buffers_stay_complex_whatever_the_dtype(dtype: torch.dtype) -> None:
    wanted, x = Turned(), torch.randn(3, 8)
    turned = Turned()
    turned.load_state_dict(wanted.state_dict())
    engine = Engine(turned, 0, 2, functional.mse_loss, dtype=dtype)
    found = engine.forward(0, (0, 0), x)
    assert turned.turns.is_complex()
    assert found.dtype == dtype
    near = {torch.float32: 1e-6, torch.float64: 1e-6, torch.bfloat16: 0.05}[dtype]
    assert torch.allclose(found.float(), wanted(x), atol=near)
