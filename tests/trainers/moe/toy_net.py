"""A small network of two mixtures, run by the trainer's own classes on the ranks of a group."""

import torch
from torch import nn

from cedar.trainers.moe.model import mixture
from cedar.trainers.moe.optimizer import SymiOptimizer
from cedar.trainers.moe.options import ExpertOptions, OptimizerOptions

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
WIDTH, HIDDEN, STEPS = 8, 12, 20


def case(**changes):
    """Settings of a run, all in one plain dict."""
    return {
        "dtype": "float64", "experts": 6, "slots": 3, "tokens": [10, 14, 7, 12], "steps": STEPS, "accumulate": 1,
        "options": {}, "optimizer": {}, "seed": 0,
    } | changes  # fmt: skip


def inputs(case, step, micro, rank):
    """Tokens and targets of a rank, float64; their mean drifts, so that popularity does."""
    count = case["tokens"][rank]
    numbers = torch.Generator().manual_seed(case["seed"] * 10**6 + step * 1000 + micro * 100 + rank)
    x = torch.randn(count, WIDTH, generator=numbers, dtype=torch.float64)
    y = torch.randn(count, WIDTH, generator=numbers, dtype=torch.float64)
    x[:, 0] += 2 * torch.sin(torch.tensor(step / 3.0))
    x[:, 1] -= 1.5 * torch.cos(torch.tensor(step / 2.0))
    return x.to(DTYPES[case["dtype"]]), y.to(DTYPES[case["dtype"]])


def expert_options(case):
    return ExpertOptions(experts=case["experts"], slots=case["slots"], hidden=HIDDEN, **case["options"])


def optimizer_options(case):
    return OptimizerOptions(**({"rate": 1e-2, "clip": 0.05, "decay": 0.1} | case["optimizer"]))


class Net(nn.Module):
    def __init__(self, options, group, seed):
        super().__init__()
        torch.manual_seed(5)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(mixture(WIDTH, options, group, f"block{at}", seed) for at in range(2))
        for layer in self.layers:
            nn.init.normal_(layer.router.weight, std=0.5)

    def forward(self, x):
        h = x + torch.tanh(self.mix(x))
        for layer in self.layers:
            h = h + layer(h)
        return h


class Run:
    """The network with its optimizer on one rank."""

    def __init__(self, case, group):
        self.case, self.group = case, group
        dtype = DTYPES[case["dtype"]]
        self.net = Net(expert_options(case), group, case["seed"])
        self.optimizer = SymiOptimizer(self.net, optimizer_options(case), mean=False, dtype=dtype)
        self.dense, *self.experts = self.optimizer.parts

    def accumulate(self, step):
        """Forward and backward of all micro-batches; the outputs."""
        total = sum(self.case["tokens"][: self.group.size]) * self.case["accumulate"]
        outputs = []
        for micro in range(self.case["accumulate"]):
            x, y = inputs(self.case, step, micro, self.group.rank)
            out = self.net(x.requires_grad_())
            loss = (out - y).float().square().sum() if out.dtype == torch.bfloat16 else (out - y).square().sum()
            loss = loss / (total * WIDTH)
            for layer in self.net.layers:
                loss = loss + sum(layer.losses) / self.case["accumulate"]
                layer.losses = []
            loss.backward()
            outputs.append(out.detach())
        return torch.cat(outputs)

    def finish(self, step, logged=None):
        """Optimizer, placement, weights; what became of the step, and the counts of each layer."""
        outcome = self.optimizer.update(logged)
        counts = [(layer.counts, layer.kept) for layer in self.net.layers]
        if not outcome.skipped:
            self.optimizer.follow(step)
            self.optimizer.publish()
        for layer in self.net.layers:
            layer.clear()
        return outcome, counts

    def whole(self, values):
        """The slices of all ranks, which each has given its own of, as whole tensors by name."""
        found = {}
        for at, layer in enumerate(self.net.layers):
            rows = [values[self.experts[at].shards.slices[row]] for row in range(layer.count)]
            found[f"experts{at}"] = torch.stack([self._whole(row, layer.experts.size) for row in rows])
        for part, p, name in zip(self.dense.shards.slices, self.dense.parameters, self.dense.names, strict=True):
            found[name] = self._whole(values[part], p.numel()).view(p.shape)
        return found

    def _whole(self, part, size):
        return self.group.gather(part.contiguous(), "test").flatten()[:size].clone()
