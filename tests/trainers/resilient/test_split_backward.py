"""The backward in two parts gives, bit for bit, what torch gives in one; dropout belongs to the micro-batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from cedar.trainers.resilient.model import AdamW, Layout, Place, Stage, State, dropout
from cedar.trainers.resilient.model.split import Linear, WeightQueue
from tests.trainers.resilient.toy_grid import MODEL, Tokens, engine


def fused(stage: Stage, x: torch.Tensor, targets: torch.Tensor | None, gradient: torch.Tensor | None) -> Stage:
    """A stage's gradients by torch's own layers, in one backward; they are left in ``.grad``."""

    def run(self: Linear, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight, self.bias)

    patch = pytest.MonkeyPatch()
    patch.setattr("cedar.trainers.resilient.model.split.Linear.forward", run)
    patch.setattr(
        "cedar.trainers.resilient.model.stage.linear", lambda x, weight, bias, queue: functional.linear(x, weight, bias)
    )
    patch.setattr(
        "cedar.trainers.resilient.model.split.Embedding.forward", lambda self, i: functional.embedding(i, self.weight)
    )
    with patch.context():
        found = stage(x, Place(3, 0, 1, 2))
        if targets is not None:
            found = functional.cross_entropy(found.flatten(0, 1), targets.flatten()) * (1 / 6)
        found.backward(gradient)
    patch.undo()
    return stage


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("number", "stages"), [(0, 2), (1, 2), (0, 1)])
def test_two_parts_are_bitwise_equal_to_one(number: int, stages: int, tied: bool) -> None:
    model = replace(MODEL, tied=tied)
    mine = engine(number, stages, model)
    first, last = mine.stage.first, mine.stage.last
    x = Tokens().tokens(0, (1, 2)) if first else torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1))
    targets = Tokens().targets(0, (1, 2)) if last else None
    gradient = None if last else torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(2))

    mine.forward(0, (1, 2), x, targets)
    of_input = mine.backward_input((1, 2), gradient)
    row = mine.backward_weight((1, 2))

    whole = Stage(model, number, stages)
    again = x if first else x.clone().requires_grad_()
    fused(whole, again, targets, gradient)
    named = {name: p.grad for name, p in whole.named_parameters()}
    assert all(gradient is not None for gradient in named.values())
    if stages > 1 or not tied:
        assert torch.equal(row, mine.layout.gather(named))
    else:  # one table used twice: torch adds its two gradients in another order
        assert torch.allclose(row, mine.layout.gather(named))
    assert first or torch.equal(of_input, again.grad)


def test_the_first_stage_loses_no_weight_gradient() -> None:
    """Its input wants no gradient: asking only for the gradient of the input would skip the layers."""
    mine = engine(0)
    mine.forward(0, (0, 0), Tokens().tokens(0, (0, 0)), None)
    mine.backward_input((0, 0), torch.ones(2, 5, 8))
    pieces = mine.layout.pieces(mine.backward_weight((0, 0)))
    assert all(piece.abs().sum() > 0 for piece in pieces.values())

    queue = WeightQueue()
    layer = Linear(3, 2, queue)
    layer(torch.ones(4, 3)).sum().backward()
    assert len(queue.take()) == 1


def test_activations_live_from_f_to_the_end_of_b_weight() -> None:
    mine = engine(1)
    for key in ((0, 0), (0, 1)):
        mine.forward(0, key, torch.randn(2, 5, 8), Tokens().targets(0, key))
    mine.backward_input((0, 1), None)
    assert mine.live == 2
    mine.backward_weight((0, 1))
    mine.backward_input((0, 0), None)
    mine.give_up((0, 0))
    assert mine.live == 0


def test_dropout_depends_on_every_part_of_its_key() -> None:
    x, place = torch.ones(64), Place(1, 2, 3, 4)
    base = dropout(x, 0.5, "a", place)
    assert torch.equal(base, dropout(x, 0.5, "a", place))
    for other in (place._replace(**{name: 9}) for name in Place._fields):
        assert not torch.equal(base, dropout(x, 0.5, "a", other))
    assert not torch.equal(base, dropout(x, 0.5, "b", place))
    assert torch.equal(dropout(x, 0.5, "a", None), x)


def test_a_model_is_the_same_however_it_is_cut() -> None:
    whole = dict(Stage(MODEL, 0, 1).named_parameters())
    for number in range(2):
        for name, parameter in Stage(MODEL, number, 2).named_parameters():
            assert torch.equal(parameter, whole[name])


def test_bf16_stages_keep_float32_master_weights() -> None:
    mine = engine(1, dtype=torch.bfloat16)
    mine.forward(0, (0, 0), torch.randn(2, 5, 8, dtype=torch.bfloat16), Tokens().targets(0, (0, 0)))
    gradient = mine.backward_input((0, 0), None)
    assert gradient is not None
    assert gradient.dtype == torch.bfloat16
    assert mine.backward_weight((0, 0)).dtype == mine.begin.master.dtype == torch.float32


def test_adamw_is_torchs() -> None:
    layer = nn.Linear(3, 2)
    layout = Layout.of(layer)
    state = State.begin(layout.gather(dict(layer.named_parameters())))
    groups = [{"params": [layer.weight], "weight_decay": 0.1}, {"params": [layer.bias], "weight_decay": 0.0}]
    theirs = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95))
    ours = AdamW(lambda step: 0.01, decay=0.1)
    for seed in range(4):
        for at, parameter in enumerate(layer.parameters()):
            parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(10 * seed + at))
        gradient = layout.gather({name: p.grad for name, p in layer.named_parameters() if p.grad is not None})
        state = ours.step(state, gradient, layout, 1.0)
        theirs.step()
    assert torch.allclose(state.master, layout.gather(dict(layer.named_parameters())), atol=1e-6)


def test_a_step_leaves_the_old_state_alone_and_may_be_skipped() -> None:
    old = State.begin(torch.ones(4))
    copy = old.master.clone()
    optimizer = AdamW(lambda step: 0.1, decay=0.1)
    layout = Layout({"w": (2, 2)})
    new = optimizer.step(old, torch.ones(4), layout, 0.5)
    assert torch.equal(old.master, copy)
    assert not torch.equal(new.master, copy)
    skipped = optimizer.step(new, torch.full((4,), float("nan")), layout, optimizer.scale([float("nan"), 1.0]))
    assert (skipped.version, skipped.updates) == (2, 1)
    assert torch.equal(skipped.master, new.master)
