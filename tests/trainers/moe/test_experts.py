"""Experts and the router: products, gates, biases and losses by their formulas, and what is not an expert."""

import pytest
import torch
from torch.nn import functional

from cedar.core.errors import CedarError
from cedar.trainers.common.group import Group
from cedar.trainers.moe.experts import Experts, FeedForward, Router, auxiliary_loss, grouped_products, z_loss
from cedar.trainers.moe.model import mixture
from tests.trainers.moe.toy_text import options


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grouped_products_are_those_of_the_loop(dtype):
    if not hasattr(functional, "grouped_mm"):
        pytest.skip("this torch has no grouped products")
    rows, width, hidden = [3, 0, 5, 1], 16, 32
    found = []
    for grouped in (True, False):
        torch.manual_seed(1)
        x = torch.randn(sum(rows), width).to(dtype).requires_grad_()
        weights = (torch.randn(len(rows), 2 * width * hidden) * 0.2).to(dtype).requires_grad_()
        experts = Experts(lambda _: FeedForward(width, hidden).to(dtype))
        out = experts.outputs(x, rows, weights, grouped=grouped)
        (out * torch.randn(out.shape).to(dtype)).sum().backward()
        found.append((out.detach(), x.grad, weights.grad))
    tolerance = 1e-5 if dtype == torch.float32 else 5e-2
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, rtol=tolerance, atol=tolerance)
    assert not grouped_products(torch.device("cpu"), dtype, width, hidden)


def test_experts_that_stand_still_get_no_gradient_and_pass_theirs_on():
    torch.manual_seed(1)
    rows, found = [2, 3], []
    for still in ((), (1,)):
        x = torch.linspace(-1, 1, 20).view(5, 4).requires_grad_()
        weights = torch.linspace(-1, 1, 2 * 2 * 4 * 3).view(2, -1).requires_grad_()
        Experts(lambda _: FeedForward(4, 3)).outputs(x, rows, weights, still).square().sum().backward()
        found.append((x.grad, weights.grad))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1][0], found[1][1][0])
    assert bool((found[1][1][1] == 0).all())
    assert bool((found[0][1][1] != 0).any())


def test_weights_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="weights of 24 values do not match experts of 30"):
        Experts(lambda _: FeedForward(3, 5)).outputs(torch.zeros(2, 3), [2], torch.zeros(1, 24))
    with pytest.raises(CedarError, match="an expert of class BatchNorm1d has parameters of 1 dtypes and 3 buffers"):
        Experts(lambda _: torch.nn.BatchNorm1d(3))
    with pytest.raises(CedarError, match="expert 1 has other parameter shapes than expert 0"):
        Experts(lambda number: torch.nn.Linear(3, 3 + number)).first(1)


def test_the_bias_changes_the_choice_and_never_the_gates():
    torch.manual_seed(0)
    router = Router(4, 3, top_k=1)
    torch.nn.init.normal_(router.weight)
    x = torch.randn(20, 4)
    before = router(x)
    router.bias[2] = 100.0
    after = router(x)
    assert bool((after.experts == 2).all())
    assert torch.equal(after.gates[:, 0], before.shares[:, 2])
    router.bias.zero_()
    router.balance(torch.tensor([5, 1, 3]), 0.1)
    assert torch.allclose(router.bias, torch.tensor([-0.1, 0.1, 0.0]))


def test_losses_of_the_router_are_those_of_the_papers():
    torch.manual_seed(0)
    router = Router(4, 3, top_k=2)
    torch.nn.init.normal_(router.weight)
    found = router(torch.randn(10, 4))
    counts = torch.bincount(found.experts.flatten(), minlength=3)[None]
    often, mean = counts[0] / 20, found.logits.softmax(-1).mean(0)
    assert torch.allclose(auxiliary_loss(found, counts), 3 * (often * mean).sum())
    assert torch.allclose(z_loss(found, counts), found.logits.logsumexp(-1).square().mean())
    even = Router(4, 4, top_k=1)
    torch.nn.init.zeros_(even.weight)
    assert torch.allclose(auxiliary_loss(even(torch.randn(8, 4)), torch.tensor([[2, 2, 2, 2]])), torch.tensor(1.0))
    with pytest.raises(ValueError, match="top_k is 4: give 1 to 3"):
        Router(4, 3, top_k=4)


def test_a_router_outside_the_model_begins_with_finite_weights_and_other_ones_each_time():
    """They were what was in memory: losses of 1e29."""
    torch.manual_seed(0)
    for _ in range(20):
        torch.full((64, 32), float("nan"))  # memory that a later tensor may get
        routers = [Router(32, 64), mixture(32, options("text.txt", slots=64).experts, Group()).router]
        for router in routers:
            assert 0 < float(router.weight.detach().abs().max()) <= 32**-0.5
    assert not torch.equal(Router(32, 64).weight, Router(32, 64).weight)
