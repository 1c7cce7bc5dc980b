"""The layer: dropped tokens, idle experts, and calls that fail or are compiled."""

import pytest
import torch
from torch import nn

from cedar.nn import Router, Routing, SymiMoE, SymiOptimizer, SymiOptions, whole_state_dict
from cedar.trainers.common.group import Group
from cedar.trainers.moe.model import mixture
from cedar.trainers.moe.options import ExpertOptions
from tests.trainers.moe.toy_foreign import Net, batch


def test_shared_experts_answer_for_dropped_tokens():
    torch.manual_seed(0)
    layer = mixture(8, ExpertOptions(experts=2, slots=2, hidden=8, shared=1, capacity=0.5), Group())
    torch.nn.init.normal_(layer.router.weight)
    x = torch.randn(12, 8)
    out, shared = layer(x), layer.shared[0](x)
    dropped = (out == shared).all(1)
    assert int(layer.kept.sum()) == int((~dropped).sum()) <= 6
    assert bool(dropped.any())


class Failing(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))

    def forward(self, x):
        raise ValueError("this expert fails")


def test_a_failed_forward_leaves_no_trace():
    layer = SymiMoE(lambda number: Failing(), Router(4, 2), aux_loss=0.1, z_loss=0.1)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    with pytest.raises(ValueError, match="this expert fails"):
        layer(torch.randn(5, 4))
    assert int(layer.counts.sum()) == int(layer.kept.sum()) == len(layer.losses) == 0
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # of torch, while it traces
def test_inside_compile_it_is_what_it_is_alone():
    net = Net(slots=4)
    x = batch(0)[0].float()
    assert torch.allclose(torch.compile(net, backend="eager")(x), net(x), atol=1e-6)


class Fixed(nn.Module):
    """A router of another process: experts in turn, the last one never; scores by a Linear."""

    experts = 4

    def __init__(self):
        super().__init__()
        self.scores = nn.Linear(6, 4)

    def forward(self, x):
        logits = self.scores(x)
        shares = logits.softmax(-1)
        chosen = (torch.arange(len(x)) % 3)[:, None]
        return Routing(chosen, shares.gather(1, chosen), shares, logits)


def idle(group, amp, inputs_want_gradients):
    """What a mixture answers and learns whose last expert, alone on its rank if there are four, gets no token."""
    torch.manual_seed(0)
    layer = SymiMoE(lambda number: nn.Linear(6, 6), Fixed(), group, slots=4 // group.size, capacity=0.0, z_loss=0.1)
    optimizer = SymiOptimizer(layer, SymiOptions(clip=0.0), optimizer_class=torch.optim.SGD, lr=0.1)
    torch.manual_seed(1)
    x = torch.randn(12, 6, requires_grad=inputs_want_gradients)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp):
        out = layer(x)
        routing = layer._route(x.detach())
    assert routing.logits.dtype == torch.float32
    out.square().mean().backward()
    optimizer.step()
    state = whole_state_dict(layer)
    return out.detach(), {name: value for name, value in state.items() if "scores" not in name}


@pytest.mark.heavy
@pytest.mark.parametrize("amp", [False, True])
@pytest.mark.parametrize("inputs_want_gradients", [False, True])
def test_ranks_whose_experts_idle_take_part(crew, amp, inputs_want_gradients):
    ((out, state),) = crew.run(idle, amp, inputs_want_gradients, ranks=1)
    assert out.dtype == torch.float32
    most = 0.02 if amp else 1e-6
    for ranks in (2, 4):
        for other, weights in crew.run(idle, amp, inputs_want_gradients, ranks=ranks):
            assert other.dtype == out.dtype
            assert torch.allclose(other, out, atol=most)
            assert all(torch.allclose(weights[name], value, atol=most) for name, value in state.items())


def test_dropout_in_experts_ends_with_training():
    layer = SymiMoE(lambda number: nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5)), Router(6, 4), capacity=0.0)
    net, x = nn.Sequential(layer), torch.randn(50, 6)
    assert not torch.equal(net(x), net(x))
    net.eval()
    assert torch.equal(net(x), net(x))


@pytest.mark.parametrize("wrong", [{"drop": "prob"}, {"rule": "max"}, {"capacity": float("inf")}, {"capacity": -1.0}])
def test_settings_that_are_unknown_or_not_finite_are_refused(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} is .*: give"):
        SymiMoE(lambda number: nn.Linear(4, 4), Router(4, 2), **wrong)
    with pytest.raises(ValueError, match="score is 'sofmax': give one of softmax, sigmoid"):
        Router(4, 2, score="sofmax")
