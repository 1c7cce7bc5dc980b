"""Mixtures of experts as stages: the losses of torch in one process, the same bits any code that dies, and however
often.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from cedar.core.errors import CedarError
from cedar.nn import Router, SymiMoE, router_losses
from cedar.trainers import AdamWOptions, PipelineOptions, ResilientPipeline, RunOptions, Workers
from cedar.trainers.common.compute import keyed
from cedar.trainers.common.group import Group
from cedar.trainers.resilient.data import MicroBatches, Source
from cedar.trainers.resilient.model import AdamW, Engine
from cedar.trainers.resilient.schedule import Worker
from cedar.trainers.resilient.sharing import check_module
from tests.how_much import LONG
from tests.trainers.resilient import toy_grid
from tests.trainers.resilient.toy_grid import Crew, job

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="as the other tests of trainers")
WIDTH, STEPS, STAGES = 8, 4, 3


class Block(nn.Module):
    """Experts next to a residual, between a map from tokens, or to logits, at the ends."""

    def __init__(self, stage: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, WIDTH) if stage == 0 else None
        self.norm, self.drop = nn.LayerNorm(WIDTH), nn.Dropout(0.1)
        self.experts = SymiMoE(
            lambda _: nn.Sequential(nn.Linear(WIDTH, 12), nn.GELU(), nn.Linear(12, WIDTH)),
            Router(WIDTH, experts=4, top_k=2), capacity=1.25, shared=[nn.Linear(WIDTH, WIDTH)], aux_loss=0.1,
            z_loss=0.01,
        )  # fmt: skip
        self.logits = nn.Linear(WIDTH, 11) if stage == STAGES - 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.tokens is not None:
            x = self.tokens(x)
        x = x + self.drop(self.experts(self.norm(x)))
        return x if self.logits is None else self.logits(x)


def modules(dtype: torch.dtype = torch.float32) -> list[nn.Module]:
    with keyed("cpu", 5):  # threads make them at the same time
        return [Block(stage).to(dtype) for stage in range(STAGES)]


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batch(step: int) -> tuple[Any, Any]:
    tokens = torch.randint(0, 11, (12, 6), generator=torch.Generator().manual_seed(step))
    return tokens[:, :-1], tokens[:, 1:]


def engine(stage: int, stages: int, *_: object, dtype: torch.dtype = torch.float32) -> Engine:
    made = Engine(modules(dtype)[stage], stage, stages, loss_of, prefix=f"{stage}.", share=1 / 6)
    made.find_signatures(batch(0)[0][:2] if stage == 0 else torch.zeros(2, 5, WIDTH, dtype=dtype))
    made.load(made.initial_state)
    return made


JOB = job(stages=STAGES, tied=())


@pytest.fixture(autouse=True)
def _experts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy_grid, "engine", engine)
    monkeypatch.setattr(toy_grid, "Tokens", lambda: MicroBatches(Source(batch), 3, 2, 12))


@cache
def whole(clip: float) -> dict[Worker, str]:
    return Crew(JOB, clip=clip).run()


@pytest.mark.heavy
def test_stages_train_as_torch_does_in_one_process_with_the_losses_of_their_routers() -> None:
    engines = [engine(stage, STAGES, dtype=torch.float64) for stage in range(STAGES)]
    states = [one.initial_state for one in engines]
    plain = modules(torch.float64)
    parameters = [dict(module.named_parameters()) for module in plain]
    optimizers = [
        torch.optim.AdamW([
            {"params": [p for p in named.values() if p.dim() > 1], "weight_decay": 0.01},
            {"params": [p for p in named.values() if p.dim() <= 1], "weight_decay": 0.0},
        ], lr=1e-2, betas=(0.9, 0.95))
        for named in parameters
    ]  # fmt: skip
    rule, inputs, auxiliary = AdamW(AdamWOptions(rate=1e-2, schedule="constant", clip=0.0)), batch, set()
    for step in range(STEPS):
        (x, targets), keys = inputs(step), [(replica, number) for replica in range(2) for number in range(3)]
        totals, told = [torch.zeros_like(state.master) for state in states], []
        for one, state in zip(engines, states, strict=True):
            one.reset()
            one.load(state)
        for at, key in enumerate(keys):
            rows = slice(2 * at, 2 * at + 2)
            found, gradient = x[rows], None
            for one in engines:
                found = one.forward(step, key, found, targets[rows] if one.last else None)
            told.append(engines[-1].losses[key])
            for number in reversed(range(STAGES)):
                gradient = engines[number].backward_input(key, gradient)
                totals[number] += engines[number].backward_weight(key)
        losses = []
        for at, key in enumerate(keys):
            rows = slice(2 * at, 2 * at + 2)
            found = x[rows]
            for number, module in enumerate(plain):
                with keyed("cpu", 0, number, step, *key):
                    found = module(found)
            loss, beside = loss_of(found, targets[rows]), torch.stack([router_losses(module) for module in plain]).sum()
            auxiliary.add(float(beside.detach()) > 0.1)
            ((loss + beside) / 6).backward()
            losses.append(float(loss.detach()))
        assert max(abs(a - b) for a, b in zip(told, losses, strict=True)) < 1e-10
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        states = [rule.step(s, t, e.layout, 1.0) for s, t, e in zip(states, totals, engines, strict=True)]
    assert auxiliary == {True}
    for one, state, named in zip(engines, states, parameters, strict=True):
        for name, value in one.layout.pieces(state.master).items():
            assert torch.allclose(value, named[name.partition(".")[2]], rtol=0, atol=1e-10)


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(100 if LONG else 6))
def test_a_death_among_experts_changes_no_bit(seed: int) -> None:
    """One worker, or a whole stage, which replays what its neighbors logged; ``make test-long`` tries 100."""
    draw = random.Random(seed)
    stage, step, mode = draw.randrange(STAGES), draw.randrange(STEPS), draw.choice(["sync", "staggered"])
    clip, rejoin = draw.choice([0.0, 0.3]), draw.random() < 0.5
    gone = [draw.randrange(2)] if seed % 2 else [0, 1]
    kills = {Worker(stage, replica): (step, draw.randrange(18)) for replica in gone}
    crew = Crew(
        job(stages=STAGES, tied=(), mode=mode, replay=True), kills, rejoin=rejoin and len(gone) == 1, clip=clip,
        every=2 if len(gone) == 2 else 0,
    )  # fmt: skip
    expected, found = whole(clip), crew.run()
    assert found == {worker: expected[worker] for worker in found}, kills
    if len(gone) == 2:
        assert set(crew.restores[1:]) == {"replay"}


@pytest.mark.heavy
def test_processes_with_experts_outlive_a_worker_and_a_stage(tmp_path: Path) -> None:
    ended = []
    for name, chaos in (("whole", ""), ("killed", "kill=1@step2:5, kill=2@step5:3, kill=3@step5:3")):
        lines: list[Mapping[str, Any]] = []
        made = ResilientPipeline(
            modules(), loss_of, batch, Workers(replicas=2), batch=12, optimizer=AdamWOptions(rate=1e-2),
            pipeline=PipelineOptions(micro_batches=3),
            run=RunOptions(folder=str(tmp_path / name), steps=7, save_every=3),
        )  # fmt: skip
        record = made.train(quiet=True, chaos=chaos, on_metrics=lines.append)
        ended.append({one["digest"] for one in record.ended.values()})
        assert [line["step"] for line in lines] == list(range(7))
    assert {event.what for event in record.events} >= {"failure", "replay"}
    assert ended[0] == ended[1]
    assert len(ended[0]) == STAGES


def test_experts_that_cannot_be_a_stage_are_told() -> None:
    class Two(Group):
        def __init__(self) -> None:
            super().__init__()
            self.size = 2

    make = lambda _: nn.Linear(WIDTH, WIDTH)
    for layer in (
        SymiMoE(make, Router(WIDTH, 2), bias_rate=0.1),
        SymiMoE(make, Router(WIDTH, 2), Two()),
    ):
        with pytest.raises(CedarError, match="stage 1 has a SymiMoE whose experts are on several ranks"):
            check_module(layer, 1)
