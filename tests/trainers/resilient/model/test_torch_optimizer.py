"""Optimizers of torch make the steps that they make in one process, from any state; others are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from cedar.core.errors import CedarError
from cedar.trainers import TorchOptimizer
from cedar.trainers.resilient.model import Layout, State

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.1),
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "adam": partial(torch.optim.Adam, lr=0.1),
    "adamw": partial(torch.optim.AdamW, lr=0.1),
    "radam": partial(torch.optim.RAdam, lr=0.1),
    "adamax": partial(torch.optim.Adamax, lr=0.1),
    "adagrad": partial(torch.optim.Adagrad, lr=0.1, initial_accumulator_value=0.1),
    "adadelta": partial(torch.optim.Adadelta, lr=1.0),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.1, momentum=0.9),
    "rprop": partial(torch.optim.Rprop, lr=0.1),
}


def groups(parameters: Any) -> list[dict[str, Any]]:
    """Two, by the number of dimensions."""
    every = list(parameters)
    return [
        {"params": [p for p in every if p.dim() > 1], "lr": 0.2},
        {"params": [p for p in every if p.dim() <= 1], "lr": 0.05},
    ]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_torch_and_can_be_made_again(name: str) -> None:
    draw, factor = torch.Generator().manual_seed(0), lambda step: 1 / (1 + step)
    layer, make = nn.Linear(3, 2).double(), OPTIMIZERS[name]
    layout = Layout.from_parameters(dict(layer.named_parameters()), dtype=torch.float64)
    state = State.initial(layout.gather(dict(layer.named_parameters())))
    made = TorchOptimizer(lambda parameters: make(groups(parameters)), factor)
    optimizer = make(groups(layer.parameters()))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    for _ in range(5):
        gradients = {n: torch.randn(p.shape, generator=draw).double() for n, p in layer.named_parameters()}
        for n, p in layer.named_parameters():
            p.grad = gradients[n] * 0.5
        optimizer.step()
        schedule.step()
        before, vector = state.master.clone(), layout.gather(gradients)
        following = made.step(state, vector, layout, 0.5)
        assert torch.equal(made.step(state, vector, layout, 0.5).master, following.master)
        assert torch.equal(state.master, before)
        skipped = made.step(state, vector, layout, None)
        assert (skipped.version, skipped.updates) == (state.version + 1, state.updates)
        state = following
        torch.testing.assert_close(state.master, layout.gather(dict(layer.named_parameters())), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (partial(torch.optim.Adam, amsgrad=True), "Adam cannot step a pipeline: it keeps exp_avg, exp_avg_sq, max_exp"),
        (torch.optim.NAdam, "NAdam cannot step a pipeline: it keeps mu_product"),
        (torch.optim.Adafactor, "Adafactor cannot step a pipeline: it keeps row_var"),
        (torch.optim.LBFGS, "LBFGS cannot step a pipeline: its step fails"),
    ],
)
def test_an_optimizer_that_keeps_more_is_refused_by_name(make: Any, told: str) -> None:
    with pytest.raises(CedarError, match=told):
        _ = TorchOptimizer(make).kept


def test_gradients_are_clipped_by_the_norm_of_all_stages() -> None:
    made = TorchOptimizer(partial(torch.optim.SGD, lr=0.1), clip=3.0)
    assert (made.scale([16.0, 20.0]), made.scale([1.0]), made.scale([float("inf")])) == (0.5, 1.0, None)
