"""The layer: what becomes of dropped tokens, of a call that fails, and of one that is compiled."""

import pytest
import torch
from torch import nn

from cedar.nn import Router, SymiMoE
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
