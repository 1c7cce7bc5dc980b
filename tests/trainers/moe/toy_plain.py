"""A network with two mixtures, and the same by torch alone: each recipe of training runs on both."""

import copy

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from cedar.nn import Router, SymiMoE, SymiOptimizer, SymiOptions, router_losses, whole_state_dict
from cedar.trainers.common.group import Group
from tests.trainers.moe.toy_foreign import batch


class OneRank(Group):
    """This process alone, whatever others there are."""

    def __init__(self):
        super().__init__()
        self.ranks, self.rank, self.size = None, 0, 1


class Deep(nn.Module):
    """Two mixtures between maps; their placements move, and nothing is dropped."""

    def __init__(self, group=None, experts=None):
        super().__init__()
        torch.manual_seed(3)

        def expert(number):
            return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.LayerNorm(9), nn.Linear(9, 6))

        def mixture():
            router, shared = Router(6, 4, top_k=2, renormalize=True), [nn.Linear(6, 6)]
            slots = 24 // group.size if group else 24
            return SymiMoE(experts or expert, router, group, slots=slots, capacity=0.0, shared=shared, aux_loss=0.5)

        self.enter, self.first, self.mid, self.second = nn.Linear(6, 6), mixture(), nn.Linear(6, 6), mixture()
        self.leave = nn.Linear(6, 6)
        self.reentrant = None  # of activation checkpointing; None: without

    def forward(self, x):
        x = self.enter(x)
        h = self.mid((x + self.called(self.first, x)).to(self.mid.weight.dtype)).tanh().to(x.dtype)
        return self.leave(h + self.called(self.second, h))

    def called(self, layer, x):
        if self.reentrant is None:
            return layer(x)
        return checkpoint(layer, x, use_reentrant=self.reentrant)


class Plain(nn.Module):
    """A mixture by torch alone: every token through all experts, weighed by a mask."""

    def __init__(self, layer):
        super().__init__()
        self.router, self.shared, self.aux_loss = layer.router, layer.shared, layer.aux_loss
        self.experts = nn.ModuleList(layer.experts.make(number) for number in range(layer.count))
        self.experts.to(layer.weights.dtype)
        whole = {name.removeprefix("experts."): value for name, value in layer.whole().items()}
        self.experts.load_state_dict(whole)
        self.losses = []

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        routing = self.router(flat)
        gates = torch.zeros_like(routing.logits).scatter(1, routing.experts, routing.gates).to(flat.dtype)
        out = sum(gates[:, e : e + 1] * expert(flat) for e, expert in enumerate(self.experts))
        for expert in self.shared:
            out = out + expert(flat)
        often = (
            torch.bincount(routing.experts.flatten(), minlength=len(self.experts)).to(flat) / routing.experts.numel()
        )
        self.losses.append(self.aux_loss * len(self.experts) * (often * routing.shares.mean(0)).sum())
        return out.view(x.shape)


class Alone:
    """A run by torch alone; ``experts`` of a mixture are modules."""

    size, first = 1, True

    def __init__(self, net):
        self.net = copy.deepcopy(net)
        made = {layer: Plain(layer) for layer in {self.net.first, self.net.second}}
        self.net.first, self.net.second = made[self.net.first], made[self.net.second]

    def optimizer(self, kind=torch.optim.AdamW, params=None, **settings):
        return kind(self.net.parameters() if params is None else params, **settings)

    def experts(self, layer):
        return list(layer.experts.parameters())

    def batch(self, step):
        return batch(step)

    def router_losses(self):
        mixtures = {self.net.first, self.net.second}
        total = sum(loss for layer in mixtures for loss in layer.losses)
        for layer in mixtures:
            layer.losses = []
        return total

    def mean(self, loss):
        return float(loss.detach())

    def whole(self, net):
        return {name: value.clone() for name, value in net.state_dict().items()}


class Ours:
    """The same run by ``SymiMoE`` and ``SymiOptimizer`` on the ranks of a group."""

    def __init__(self, net, group):
        self.net, self.group, self.size, self.first = net, group, group.size, group.rank == 0

    def optimizer(self, kind=torch.optim.AdamW, params=None, **settings):
        return SymiOptimizer(self.net, SymiOptions(clip=0.0), params=params, optimizer_class=kind, **settings)

    def experts(self, layer):
        return [layer.weights]

    def batch(self, step):
        return batch(step, self.group.rank, self.size)

    def router_losses(self):
        return router_losses(self.net)

    def mean(self, loss):
        return float(self.group.add(loss.detach().double()[None], "loss")) / self.size

    def whole(self, net):
        return {name: value.clone() for name, value in whole_state_dict(net).items()}


def loss_of(run, step, net=None):
    """(the loss of a step's batch, what its gradients come from)."""
    dtype = run.net.enter.weight.dtype
    x, y = (part.to(dtype) for part in run.batch(step))
    loss = functional.mse_loss((run.net if net is None else net)(x).to(dtype), y)
    return loss, loss + run.router_losses()


def train(run, optimizer, steps, net=None):
    """The losses of some steps."""
    losses = []
    for step in steps:
        optimizer.zero_grad()
        loss, total = loss_of(run, step, net)
        total.backward()
        optimizer.step()
        losses.append(run.mean(loss))
    return losses


def loaded(group=None, dtype=torch.float64, change=None):
    """The network with weights of another one, ``change`` made to it, on the ranks of a group."""
    net, other = Deep(group), Deep(OneRank())
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(1.5).add_(0.01)
    if change is not None:
        change(net)
        change(other)
    net.to(dtype).load_state_dict(other.to(dtype).state_dict())
    return net
