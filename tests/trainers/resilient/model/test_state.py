"""Weights and optimizer state as vectors: AdamW is torch's, and no step changes an old state."""

from __future__ import annotations

import torch
from torch import nn

from cedar.trainers.common.config import AdamWOptions
from cedar.trainers.resilient.model import AdamW, Layout, State


def test_adamw_is_torchs() -> None:
    layer = nn.Linear(3, 2)
    layout = Layout.from_parameters(dict(layer.named_parameters()))
    state = State.initial(layout.gather(dict(layer.named_parameters())))
    groups = [{"params": [layer.weight], "weight_decay": 0.1}, {"params": [layer.bias], "weight_decay": 0.0}]
    theirs = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95))
    ours = AdamW(AdamWOptions(rate=0.01, schedule="constant", decay=0.1))
    for seed in range(4):
        for at, parameter in enumerate(layer.parameters()):
            parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(10 * seed + at))
        gradient = layout.gather({name: p.grad for name, p in layer.named_parameters() if p.grad is not None})
        state = ours.step(state, gradient, layout, 1.0)
        theirs.step()
    assert torch.allclose(state.master, layout.gather(dict(layer.named_parameters())), atol=1e-6)


def test_a_step_leaves_the_old_state_alone_and_may_be_skipped() -> None:
    old = State.initial(torch.ones(4))
    copy = old.master.clone()
    optimizer = AdamW(AdamWOptions(rate=0.1, schedule="constant", decay=0.1))
    layout = Layout({"w": (2, 2)})
    new = optimizer.step(old, torch.ones(4), layout, 0.5)
    assert torch.equal(old.master, copy)
    assert not torch.equal(new.master, copy)
    skipped = optimizer.step(new, torch.full((4,), float("nan")), layout, optimizer.scale([float("nan"), 1.0]))
    assert (skipped.version, skipped.updates) == (2, 1)
    assert torch.equal(skipped.master, new.master)
