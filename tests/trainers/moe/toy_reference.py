"""The same network in one process with plain loops: whole experts, whole AdamW, tokens dropped one by one."""

import math
from fractions import Fraction

import torch
from torch.nn import functional

from cedar.trainers.moe.placement import Placement
from tests.trainers.moe.test_placement import published
from tests.trainers.moe.toy_net import DTYPES, HIDDEN, WIDTH, expert_options, inputs, optimizer_options


class Reference:
    def __init__(self, case, ranks, first):
        """``first``: master weights: the parameters of the network by name, and ``[experts, size]`` of each layer."""
        self.case, self.ranks = case, ranks
        self.options, self.optimizer = expert_options(case), optimizer_options(case)
        self.dtype = DTYPES[case["dtype"]]
        self.weights = {name: value.clone() for name, value in first.items()}
        self.moments = {name: (torch.zeros_like(v), torch.zeros_like(v)) for name, v in first.items()}
        slots = ranks * case["slots"]
        self.replicas = [published([0] * case["experts"], slots) for _ in range(2)]
        self.bias = [torch.zeros(case["experts"]) for _ in range(2)]
        self.updates = {name: torch.zeros(len(v), *[1] * (v.dim() - 1)) for name, v in first.items()}

    def step(self, step):
        self.leaves = {name: value.clone().requires_grad_() for name, value in self.weights.items()}
        self.counts = [[0] * self.case["experts"] for _ in range(2)]
        self.kept = [[0] * self.case["experts"] for _ in range(2)]
        outputs = [[] for _ in range(self.ranks)]
        for micro in range(self.case["accumulate"]):
            for rank, out in enumerate(self.micro(step, micro)):
                outputs[rank].append(out)
        gradients = {
            name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for name, leaf in self.leaves.items()
        }
        norm = math.sqrt(sum(float(g.double().square().sum()) for g in gradients.values()))
        scale = min(1.0, self.optimizer.clip / (norm + 1e-6))
        for name, gradient in gradients.items():
            self.adamw(name, gradient * scale)
        for at, counts in enumerate(self.counts):
            if self.options.bias_rate:
                mean = Fraction(sum(counts), len(counts))
                signs = torch.tensor([float(c < mean) - float(c > mean) for c in counts])
                self.bias[at] = self.bias[at] + self.options.bias_rate * signs
            if self.options.policy == "symi" and any(counts):
                self.replicas[at] = published(counts, self.ranks * self.case["slots"])
        return {"outputs": [torch.cat(out) for out in outputs], "gradients": gradients, "norm": norm}

    def adamw(self, name, gradient):
        one, two = self.optimizer.betas
        first, second = self.moments[name]
        first = one * first + (1 - one) * gradient
        second = two * second + (1 - two) * gradient * gradient
        self.moments[name] = first, second
        rate, decay = self.optimizer.rate, self.optimizer.decay
        rates = decays = torch.ones(len(gradient), *[1] * (gradient.dim() - 1))
        if name.startswith("experts"):
            rates = torch.tensor(self.options.rates or [1.0] * self.case["experts"])[:, None]
            decays = torch.tensor(self.options.decays or [1.0] * self.case["experts"])[:, None]
        elif gradient.dim() < 2:
            decays = decays * 0
        rates, decays = rates.to(gradient), decays.to(gradient)
        idle = torch.zeros_like(self.updates[name], dtype=torch.bool)
        if self.optimizer.skip_inactive and name.startswith("experts"):
            idle = torch.tensor([c == 0 for c in self.counts[int(name[-1])]])[:, None]
        self.updates[name] = self.updates[name] + (~idle).float()
        steps = self.updates[name].clamp(min=1).to(gradient)  # of an expert that no token reached there is none
        change = (first / (1 - one**steps)) / ((second / (1 - two**steps)).sqrt() + self.optimizer.eps)
        new = self.weights[name] * (1 - rate * rates * decay * decays) - rate * rates * change
        if idle.any():
            new = torch.where(idle, self.weights[name], new)
            self.moments[name] = tuple(
                torch.where(idle, *pair) for pair in zip(self.old[name], (first, second), strict=True)
            )
        self.weights[name] = new

    def micro(self, step, micro):
        self.old = dict(self.moments)
        pairs = [inputs(self.case, step, micro, rank) for rank in range(self.ranks)]
        total = sum(len(x) for x, _ in pairs)
        hs = []
        for x, _ in pairs:  # a cast per rank: its gradient is rounded there, as on ranks
            weight, bias = (self.leaves[name].to(self.dtype) for name in ("mix.weight", "mix.bias"))
            hs.append(x + torch.tanh(functional.linear(x, weight, bias)))
        loss = 0
        for at in range(2):
            answers, extra = self.mixture(hs, at, total)
            hs = [h + answer for h, answer in zip(hs, answers, strict=True)]
            loss = loss + extra
        for h, (_, y) in zip(hs, pairs, strict=True):
            off = (h - y).float() if h.dtype == torch.bfloat16 else h - y
            loss = loss + off.square().sum() / (total * WIDTH)
        (loss / self.case["accumulate"]).backward()
        return [h.detach() for h in hs]

    def mixture(self, hs, at, total):
        options, experts = self.options, self.case["experts"]
        wide = torch.promote_types(self.dtype, torch.float32)
        copies, scores_of, logits_of = [], [], []  # copies: (expert, rank, token, gate) in the order of all ranks
        for rank, h in enumerate(hs):
            router = self.leaves[f"layers.{at}.router.weight"].to(self.dtype).to(wide)
            logits = h.to(wide) @ router.T
            scores = logits.softmax(-1) if options.score == "softmax" else logits.sigmoid()
            logits_of.append(logits)
            scores_of.append(scores / scores.sum(-1, keepdim=True))
            for token in range(len(h)):
                ranked = sorted(range(experts), key=lambda e: -float(scores[token, e].detach() + self.bias[at][e]))
                chosen = ranked[: options.top_k]
                share = sum(scores[token, e] for e in chosen) if options.renormalize_gates else 1.0
                copies += [(e, rank, token, scores[token, e] / share) for e in chosen]
        counts = [sum(copy[0] == e for copy in copies) for e in range(experts)]
        slots = self.ranks * self.case["slots"]
        slot_takes = math.ceil(Fraction(str(options.capacity)) * len(copies) / slots)
        answers = [[torch.zeros(WIDTH, dtype=self.dtype) for _ in h] for h in hs]
        for e in range(experts):
            mine = [copy for copy in copies if copy[0] == e]
            limit = slot_takes * self.replicas[at][e] if options.capacity else len(mine)
            if options.drop == "probability" and len(mine) > limit:
                mine = self.likeliest(mine, limit)
            mine = mine[:limit]
            self.kept[at][e] += len(mine)
            self.counts[at][e] += counts[e]
            self.expert(mine, e, at, hs, answers)
        extra = 0
        often = torch.tensor(counts, dtype=wide) / len(copies)
        if options.aux_loss:
            mean = sum(s.sum(0) for s in scores_of) / total
            extra = extra + options.aux_loss * experts * (often * mean).sum()
        if options.z_loss:
            extra = extra + options.z_loss * sum(g.exp().sum(-1).log().square().sum() for g in logits_of) / total
        whole = [torch.stack(a) if a else torch.zeros(0, WIDTH, dtype=self.dtype) for a in answers]
        return whole, extra

    def likeliest(self, mine, limit):
        """Each rank's share of what is kept, rounded by largest remainders; its likeliest copies."""
        by_rank = [[copy for copy in mine if copy[1] == rank] for rank in range(self.ranks)]
        goal = [Fraction(len(own) * limit, len(mine)) for own in by_rank]
        share = [int(g) for g in goal]
        for rank in sorted(range(self.ranks), key=lambda r: (share[r] - goal[r], r))[: limit - sum(share)]:
            share[rank] += 1
        kept = []
        for own, n in zip(by_rank, share, strict=True):
            kept += sorted(own, key=lambda copy: -float(copy[3].detach()))[:n]
        return kept

    def expert(self, mine, e, at, hs, answers):
        """An expert's answers, a product for each rank that holds it."""
        first = sum(self.replicas[at][:e])
        for host in range(self.ranks):
            own = [
                copy for number, copy in enumerate(mine)
                if (first + number % self.replicas[at][e]) // self.case["slots"] == host
            ]  # fmt: skip
            if not own:
                continue
            weights = self.leaves[f"experts{at}"][e].to(self.dtype)
            up, down = weights[: WIDTH * HIDDEN].view(WIDTH, HIDDEN), weights[WIDTH * HIDDEN :].view(HIDDEN, WIDTH)
            x = torch.stack([hs[rank][token] for _, rank, token, _ in own])
            for (_, rank, token, gate), y in zip(own, functional.gelu(x @ up) @ down, strict=True):
                answers[rank][token] = answers[rank][token] + gate.to(self.dtype) * y


def spread(replicas, ranks, slots):
    """How many ranks hold each expert."""
    hosts = Placement(tuple(replicas), ranks, slots).hosts
    return [sum(expert in held for held in hosts) for expert in range(len(replicas))]


def exchange_bytes(spread, size, itemsize, ranks):
    """Bytes that one exchange of gradients or of weights sends from rank to rank, over all ranks.

    The sum over experts of h * X * (N - 1) / N, where h ranks hold the expert and X are its bytes: a rank that holds it
    sends (or gets) the slices of all others, of equal size. What was held before does not occur in it.
    """
    return sum(spread) * -(-size // ranks) * itemsize * (ranks - 1)
