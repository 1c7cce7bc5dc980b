"""The backward in two parts gives, bit for bit, what torch gives in one, for any module; what is drawn belongs to the
micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from cedar.core.errors import CedarError
from cedar.trainers.common.compute import keyed
from cedar.trainers.resilient.data import FinalError
from cedar.trainers.resilient.model import Engine, Stage
from cedar.trainers.resilient.model.engine import backward_input
from tests.trainers.resilient.toy_grid import MODEL, Tokens, engine


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("number", "stages"), [(0, 2), (1, 2), (0, 1)])
def test_two_parts_are_bitwise_equal_to_one(number: int, stages: int, tied: bool) -> None:
    model = replace(MODEL, tied=tied)
    mine = engine(number, stages, model)
    first, last = mine.first, mine.last
    x = Tokens().inputs(0, (1, 2)) if first else torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1))
    targets = Tokens().targets(0, (1, 2)) if last else None
    gradient = None if last else torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(2))

    mine.forward(0, (1, 2), x, targets)
    of_input = mine.backward_input((1, 2), gradient)
    row = mine.backward_weight((1, 2))

    whole = Stage(model, number, stages)
    again = x if first else x.clone().requires_grad_()
    with keyed("cpu", 3, number, 0, 1, 2):
        found = whole(again)
    if targets is not None:
        found = functional.cross_entropy(found.flatten(0, 1), targets.flatten()) * (1 / 6)
    found.backward(gradient)
    named = {name: p.grad for name, p in whole.named_parameters()}
    assert all(gradient is not None for gradient in named.values())
    assert torch.equal(row, mine.layout.gather(named))
    assert first or torch.equal(of_input, again.grad)


class Twice(nn.Module):
    """One weight at two depths, a branch, several outputs of one operation, a parameter that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.unused = nn.Linear(4, 4), nn.Parameter(torch.ones(3))
        self.place, self.norm = nn.Parameter(torch.randn(4)), nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, two = self.inner(x + self.place).chunk(2, -1)
        found: torch.Tensor = self.norm(self.inner(torch.cat([two.tanh(), one], -1)) + x * self.place)
        return found


@pytest.mark.parametrize(
    "make",
    [
        Twice,
        lambda: nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.GELU(), nn.Conv2d(4, 2, 1)),
        lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
        lambda: nn.GRU(4, 4, batch_first=True),
        lambda: nn.MultiheadAttention(4, 2, batch_first=True),
        nn.Identity,
    ],
)
def test_the_parts_of_foreign_modules_are_those_of_torch(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    module = make().double()
    shape = (2, 4, 5, 5) if isinstance(module, nn.Sequential) else (2, 5, 4)

    def run(x: torch.Tensor) -> torch.Tensor:
        found = module(x, x, x) if isinstance(module, nn.MultiheadAttention) else module(x)
        total: torch.Tensor = (found[0] if isinstance(found, tuple) else found).square().sum()
        return total

    x, again = (torch.randn(shape, generator=torch.Generator().manual_seed(1)).double().requires_grad_() for _ in "ab")
    weights = list(module.parameters())
    of_input, later = backward_input(run(x), None, x, weights)
    assert all(weight.grad is None for weight in weights)
    found = dict(later())
    run(again).backward()
    assert torch.equal(of_input, again.grad)
    for number, weight in enumerate(weights):
        assert (number in found) == (weight.grad is not None)
        if weight.grad is not None:
            torch.testing.assert_close(found[number], weight.grad, rtol=1e-14, atol=1e-14)


def test_what_makes_it_matter_who_works_is_refused() -> None:
    counting = Engine(nn.BatchNorm1d(4), 0, 2, functional.mse_loss)
    with pytest.raises(FinalError, match="stage 0 changes a buffer while it computes"):
        counting.forward(0, (0, 0), torch.randn(3, 4))
    several = Engine(nn.GRU(4, 4), 0, 2, functional.mse_loss)
    with pytest.raises(FinalError, match="stage 0 returned tuple"):
        several.forward(0, (0, 0), torch.randn(2, 3, 4))
    each_row = Engine(nn.Linear(4, 4), 1, 2, partial(functional.mse_loss, reduction="none"))
    with pytest.raises(FinalError, match=r"the loss returned a tensor of shape \[3, 4\]"):
        each_row.forward(0, (0, 0), torch.randn(3, 4), torch.randn(3, 4))
    with pytest.raises(CedarError, match="stage 1 has no parameter 'table' to share"):
        Engine(nn.Linear(2, 2), 1, 2, functional.mse_loss, tied={"table": "table"})


def test_the_first_stage_loses_no_weight_gradient() -> None:
    """Its input wants no gradient: asking only for the gradient of the input would skip the layers."""
    mine = engine(0)
    mine.forward(0, (0, 0), Tokens().inputs(0, (0, 0)))
    mine.backward_input((0, 0), torch.ones(2, 5, 8))
    pieces = mine.layout.pieces(mine.backward_weight((0, 0)))
    assert all(piece.abs().sum() > 0 for piece in pieces.values())


def test_activations_live_from_f_to_the_end_of_b_weight() -> None:
    mine = engine(1)
    for key in ((0, 0), (0, 1)):
        mine.forward(0, key, torch.randn(2, 5, 8), Tokens().targets(0, key))
    mine.backward_input((0, 1), None)
    assert len(mine._kept) + len(mine._waiting) == 2
    mine.backward_weight((0, 1))
    mine.backward_input((0, 0), None)
    mine.discard((0, 0))
    assert len(mine._kept) + len(mine._waiting) == 0


def test_dropout_depends_on_every_part_of_its_key() -> None:
    drop = nn.Dropout(0.5)

    def drawn(seed: int, stage: int, step: int, replica: int, micro_batch: int) -> torch.Tensor:
        made = Engine(nn.Sequential(drop), stage, 9, functional.mse_loss, seed=seed)
        return made.forward(step, (replica, micro_batch), torch.ones(64))

    place, before = (1, 2, 3, 4, 5), torch.get_rng_state()
    assert torch.equal(drawn(*place), drawn(*place))
    for at in range(5):
        other = [7 if at == n else value for n, value in enumerate(place)]
        assert not torch.equal(drawn(*place), drawn(*other))
    assert torch.equal(torch.get_rng_state(), before)


def test_bf16_stages_keep_float32_master_weights() -> None:
    mine = engine(1, dtype=torch.bfloat16)
    mine.forward(0, (0, 0), torch.randn(2, 5, 8, dtype=torch.bfloat16), Tokens().targets(0, (0, 0)))
    gradient = mine.backward_input((0, 0), None)
    assert gradient is not None
    assert gradient.dtype == torch.bfloat16
    assert mine.backward_weight((0, 0)).dtype == mine.initial_state.master.dtype == torch.float32
