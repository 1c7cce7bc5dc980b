"""The optimizer in models of others: against plain torch, on ranks, saved and wrapped."""

import runpy
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from cedar.core.errors import CedarError
from cedar.nn import SymiOptimizer, SymiOptions, router_losses, whole_state_dict
from cedar.trainers.common.group import Group
from tests.trainers.moe.toy_foreign import Net, batch

EXAMPLE = Path(__file__).parents[3] / "examples" / "mixtral_text.py"


class Plain(nn.Module):
    """The same mixture by torch alone: every token through all experts, weighed by a mask."""

    def __init__(self, layer):
        super().__init__()
        self.router, self.shared = layer.router, layer.shared
        self.experts = nn.ModuleList(layer.experts.make(number) for number in range(layer.count))
        self.losses = []

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        routing = self.router(flat)
        gates = torch.zeros_like(routing.logits).scatter(1, routing.experts, routing.gates).to(flat.dtype)
        out = sum(gates[:, e : e + 1] * expert(flat) for e, expert in enumerate(self.experts))
        for expert in self.shared:
            out = out + expert(flat)
        often = torch.bincount(routing.experts.flatten(), minlength=len(self.experts)) / routing.experts.numel()
        self.losses.append(0.02 * len(self.experts) * (often * routing.shares.mean(0)).sum())
        return out.view(x.shape)


def trained(group, dtype, steps=8, slots=24, capacity=0.0):
    net = Net(group, slots // group.size, capacity).to(dtype)
    optimizer = SymiOptimizer(net, SymiOptions(rate=1e-2, clip=0.5, decay=0.1))
    losses, replicas = [], set()
    for step in range(steps):
        x, y = (part.to(dtype) for part in batch(step, group.rank, group.size))
        loss = functional.mse_loss(net(x), y)
        (loss + router_losses(net)).backward()
        replicas.add(optimizer.layers[0].placement.replicas)
        assert not optimizer.step().skipped
        losses.append(float(group.add(loss.detach()[None], "loss")) / group.size)
    return losses, {name: value.clone() for name, value in whole_state_dict(net).items()}, len(replicas)


@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_a_foreign_model_trains_as_by_torch_alone(crew, dtype, most):
    net = Net()
    plain = Net()
    plain.first, plain.second = Plain(net.first), Plain(net.second)
    plain.mid = net.mid
    plain.to(dtype)
    decayed, others = ([p for p in plain.parameters() if (p.dim() > 1) is many] for many in (True, False))
    apart = {id(p) for layer in (plain.first, plain.second) for p in layer.experts.parameters()}  # all of them decay
    decayed += [p for p in others if id(p) in apart]
    others = [p for p in others if id(p) not in apart]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95))
    expected = []
    for step in range(8):
        x, y = (part.to(dtype) for part in batch(step))
        loss = functional.mse_loss(plain(x), y)
        optimizer.zero_grad()
        (loss + plain.first.losses.pop() + plain.second.losses.pop()).backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        optimizer.step()
        expected.append(float(loss.detach()))
    for losses, state, placements in [trained(Group(), dtype), *crew.run(trained, dtype, ranks=2)]:
        assert max(abs(one - two) for one, two in zip(losses, expected, strict=True)) < most
        assert torch.allclose(
            state["second.experts.3.0.weight"].double(), plain.second.experts[3][0].weight.double(), atol=10 * most
        )
        assert placements > 1


def test_the_example_trains_on_ranks_as_alone(crew, shared_data):
    text = str(shared_data / "tinyshakespeare.txt")
    example = runpy.run_path(str(EXAMPLE))
    alone = example["train"](text, 6, Group(), torch.float64)
    for losses in crew.run(example_losses, text, ranks=2):
        assert max(abs(one - two) for one, two in zip(losses, alone, strict=True)) < 1e-10
    assert alone[-1] < alone[0]
    assert len(EXAMPLE.read_text().splitlines()) <= 100


def example_losses(group, text):
    return runpy.run_path(str(EXAMPLE))["train"](text, 6, group, torch.float64)


def test_state_is_complete_and_goes_on_bit_by_bit():
    net = Net(slots=8).double()
    names = set(net.state_dict())
    assert {f"first.experts.{e}.{name}" for e in range(4) for name in net.first.experts.shapes} <= names
    assert len(list(net.parameters())) == len(dict(net.named_parameters())) > 0
    assert all(bool(torch.isfinite(value).all()) for value in net.state_dict().values())
    first = [net.first.state_dict()[f"experts.{e}.0.weight"] for e in range(4)]
    assert all(not torch.equal(one, two) for one, two in pairwise(first))  # each begins in its own way

    def steps(net, optimizer, count, start=0):
        for step in range(start, start + count):
            x, y = batch(step)
            (functional.mse_loss(net(x), y) + router_losses(net)).backward()
            optimizer.step()

    optimizer = SymiOptimizer(net, SymiOptions(rate=1e-2))
    steps(net, optimizer, 3)
    saved = {name: value.clone() for name, value in net.state_dict().items()}, optimizer.state_dict()
    steps(net, optimizer, 3, 3)

    again = Net(slots=8).double()
    with torch.no_grad():
        for parameter in again.parameters():
            parameter.zero_()
    again.load_state_dict(saved[0])
    assert all(torch.equal(value, saved[0][name]) for name, value in again.state_dict().items())
    resumed = SymiOptimizer(again, SymiOptions(rate=1e-2))
    resumed.load_state_dict(saved[1])
    steps(again, resumed, 3, 3)
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in again.state_dict().items())
    del saved[0]["first.experts.2.0.weight"]
    with pytest.raises(RuntimeError, match=r"Missing key.* \"first.experts.2.0.weight\""):
        again.load_state_dict(saved[0])


def partly(group, frozen):
    """The names of what three steps change in a model parts of which are frozen."""
    net = Net(group, 8 // group.size)
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(not frozen(name))
    first = {name: value.clone() for name, value in whole_state_dict(net).items()}
    optimizer = SymiOptimizer(net, SymiOptions(rate=1e-2, decay=0.1))
    for step in range(3):
        x, y = (part.float() for part in batch(step, group.rank, group.size))
        (functional.mse_loss(net(x), y) + router_losses(net)).backward()
        optimizer.step()
    return {name for name, value in whole_state_dict(net).items() if not torch.equal(value, first[name])}


def first_experts(name):
    return name == "first.weights"


def all_but_experts(name):
    return "weights" not in name


def test_frozen_experts_stay_as_they_are_while_replicas_move(crew):
    """They were made parameters anew, which were trained, and decayed."""
    for changed in [partly(Group(), first_experts), *crew.run(partly, first_experts, ranks=2)]:
        assert not [name for name in changed if name.startswith("first.experts.")]
        assert {"first.router.weight", "mid.weight", "second.experts.0.0.weight"} <= changed


def test_experts_are_trained_alone(crew):
    """There was no device of the other parameters to be found."""
    for changed in [partly(Group(), all_but_experts), *crew.run(partly, all_but_experts, ranks=2)]:
        assert {name.split(".")[1] for name in changed} == {"experts"}


def test_wrappers_that_take_experts_for_alike_are_refused(crew):
    for said in crew.run(wrapped, ranks=2):
        assert "the model is wrapped in DistributedDataParallel" in said[0]
        assert "the model is wrapped in FSDP" in said[1]
    with pytest.raises(CedarError, match="the model has no SymiMoE"):
        SymiOptimizer(nn.Linear(2, 2))


def wrapped(group):
    from torch.nn.parallel import DistributedDataParallel

    said = []
    for wrap in (
        lambda net: DistributedDataParallel(net, process_group=group.ranks),
        sharded,
    ):
        try:
            SymiOptimizer(wrap(Net(group, slots=4)))
        except CedarError as error:
            said.append(str(error))
    return said


def sharded(net):
    """As FSDP leaves a parameter, on a mesh of one."""
    from torch.distributed.tensor import DeviceMesh, DTensor, Replicate

    mesh = DeviceMesh("cpu", [torch.distributed.get_rank()], _init_backend=False)
    net.mid.weight = nn.Parameter(DTensor.from_local(net.mid.weight.detach(), mesh, [Replicate()], run_check=False))
    return net
