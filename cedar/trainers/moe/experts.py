"""Experts, which are modules of one class with concatenated weights, and the router that selects a token's experts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from cedar.core.errors import CedarError
from cedar.trainers.common.config import check_choice

Score = Literal["softmax", "sigmoid"]


@dataclass(frozen=True)
class Routing:
    """The experts selected for each token.

    Args:
        experts: int64 ``[tokens, k]``: the selected experts.
        gates: ``[tokens, k]``: weights of the experts' outputs.
        shares: ``[tokens, experts]``: scores normalized to sum to one, for the auxiliary loss.
        logits: ``[tokens, experts]``, for the z-loss.
    """

    experts: torch.Tensor
    gates: torch.Tensor
    shares: torch.Tensor
    logits: torch.Tensor


class Router(nn.Module):
    """Selects the top k experts by a linear map (arXiv 1701.06538). Scores have at least float32 precision.

    Args:
        width: width of a token.
        experts: number of experts to choose from.
        top_k: experts per token.
        score: ``softmax`` over experts, or ``sigmoid`` of each (DeepSeek-V3, arXiv 2412.19437).
        renormalize: divide a token's gates by their sum.

    ``bias``, float32 ``[experts]``, is added to the scores only for the selection, not to the gates (loss-free
    balancing, arXiv 2408.15664). It starts at zero; ``balance`` changes it.
    """

    bias: torch.Tensor

    def __init__(
        self, width: int, experts: int, top_k: int = 1, score: Score = "softmax", *, renormalize: bool = False
    ) -> None:
        super().__init__()
        check_choice("score", score, get_args(Score))
        if not 1 <= top_k <= experts:
            raise ValueError(f"top_k is {top_k}: give 1 to {experts}, the number of experts")
        self.experts, self.top_k, self.score, self.renormalize = experts, top_k, score, renormalize
        self.weight = nn.Parameter(torch.empty(experts, width).uniform_(-(width**-0.5), width**-0.5))
        self.register_buffer("bias", torch.zeros(experts))

    def forward(self, tokens: torch.Tensor) -> Routing:
        """Route tokens ``[tokens, width]``."""
        wide = torch.promote_types(tokens.dtype, torch.float32)
        with torch.autocast(tokens.device.type, enabled=False):
            logits = tokens.to(wide) @ self.weight.to(wide).T
        if self.score == "softmax":
            scores = shares = logits.softmax(-1)
        else:
            scores = logits.sigmoid()
            shares = scores / scores.sum(-1, keepdim=True)
        experts = (scores.detach() + self.bias).topk(self.top_k, dim=-1).indices
        gates = scores.gather(1, experts)
        if self.renormalize:
            gates = gates / gates.sum(-1, keepdim=True)
        return Routing(experts, gates, shares, logits)

    @torch.no_grad()
    def balance(self, counts: torch.Tensor, rate: float) -> None:
        """Change the bias by ``rate``: up for experts with fewer tokens than the mean, down for those with more."""
        counts = counts.to(self.bias.device)
        total = counts.sum()
        self.bias += rate * torch.sign(total - counts * len(counts)).to(self.bias)


def auxiliary_loss(routing: Routing, counts: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of experts * sum over experts of (share of copies) * (mean score), over all ranks'
    tokens.

    This is Switch Transformers' loss (arXiv 2101.03961), 1 if experts are balanced. The parts of all ranks add up to
    it. ``counts``: int64 ``[ranks, experts]``.
    """
    experts = counts.shape[1]
    copies = counts.sum().clamp(min=1).to(routing.shares.device)
    often = counts.sum(0).to(routing.shares) / copies
    tokens = copies / routing.experts.shape[1]
    return experts * (often * routing.shares.sum(0)).sum() / tokens


def z_loss(routing: Routing, counts: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of the mean squared log-sum-exp of the logits (arXiv 2202.08906)."""
    tokens = counts.sum().clamp(min=1).to(routing.logits) / routing.experts.shape[1]
    return routing.logits.logsumexp(-1).square().sum() / tokens


_ALIGNED = 16  # bytes: row alignment that grouped matrix products require


class FeedForward(nn.Module):
    """``gelu(x @ up) @ down``. ``hidden``: units between the two products."""

    def __init__(self, width: int, hidden: int, draws: torch.Generator | None = None) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(width * hidden, generator=draws).view(width, hidden) * width**-0.5)
        self.down = nn.Parameter(torch.randn(hidden * width, generator=draws).view(hidden, width) * 0.5 * hidden**-0.5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return functional.gelu(tokens @ self.up) @ self.down

    @staticmethod
    def grouped(tokens: torch.Tensor, rows: Sequence[int], weights: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Compute many experts in one operation: a grouped matrix product replaces many small products."""
        ends = torch.tensor(rows, device=tokens.device).cumsum(0).to(torch.int32)
        inner = functional.gelu(functional.grouped_mm(tokens, weights["up"], offs=ends))
        return functional.grouped_mm(inner, weights["down"], offs=ends)


def grouped_products(device: torch.device, dtype: torch.dtype, *widths: int) -> bool:
    """Return whether grouped matrix products with these widths are supported and faster on this device.

    On the CPU torch implements them as a loop, which is no faster than a plain loop and restricts widths and dtypes.
    """
    if device.type != "cuda" or not hasattr(functional, "grouped_mm"):
        return False
    fits = all(width * dtype.itemsize % _ALIGNED == 0 for width in widths)
    return fits and dtype == torch.bfloat16 and torch.cuda.get_device_capability(device) >= (8, 0)


class Experts:
    """Computes experts whose weights are rows of a tensor. ``make``: builds an expert from its number; all experts have
    one class, equal parameter shapes, and no buffers. A method ``grouped`` computes many experts in one operation.
    """

    def __init__(self, make: Callable[[int], nn.Module]) -> None:
        self.make, self.module = make, make(0)
        named = dict(self.module.named_parameters())
        kinds = {parameter.dtype for parameter in named.values()}
        if len(kinds) != 1 or next(self.module.buffers(), None) is not None:
            raise CedarError(
                f"an expert of class {type(self.module).__name__} has parameters of {len(kinds)} dtypes"
                f" and {len(list(self.module.buffers()))} buffers",
                fix="use experts with parameters of one dtype and without buffers",
            )
        self.dtype = kinds.pop()
        self.shapes = {name: tuple(parameter.shape) for name, parameter in named.items()}
        self.size = sum(parameter.numel() for parameter in named.values())

    def __getattr__(self, name: str) -> nn.Module:
        """Return the module for "3" in "experts.3.up", because torch.distributed.checkpoint gets it as an attribute."""
        if not name.isdecimal():
            raise AttributeError(name)
        return self.module

    def first(self, expert: int) -> torch.Tensor:
        """Return the initial weights of an expert, ``[size]``."""
        parameters = dict((self.module if expert == 0 else self.make(expert)).named_parameters())
        if {name: tuple(p.shape) for name, p in parameters.items()} != self.shapes:
            raise CedarError(f"expert {expert} has other parameter shapes than expert 0", fix="build all experts alike")
        return torch.cat([parameter.detach().flatten() for parameter in parameters.values()])

    def named(self, weights: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return views of the parameters in ``[..., size]`` by name."""
        sizes = [torch.Size(shape).numel() for shape in self.shapes.values()]
        parts = zip(self.shapes.items(), torch.split(weights, sizes, -1), strict=True)
        return {name: part.reshape(*part.shape[:-1], *shape) for (name, shape), part in parts}

    def outputs(
        self, tokens: torch.Tensor, rows: Sequence[int], weights: torch.Tensor, still: Collection[int] = (),
        *, grouped: bool | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """Compute each token's expert output, in the dtype of the tokens.

        Args:
            tokens: ``[sum(rows), width]``, grouped by expert.
            rows: number of tokens of each expert; may be 0.
            weights: ``[experts, size]``.
            still: experts whose weights need no gradient, which the loop then does not compute.
            grouped: whether to compute all experts in one operation; None: if that is faster.

        Examples:
            >>> experts = Experts(lambda number: FeedForward(3, 4))
            >>> experts.outputs(torch.zeros(5, 3), [2, 3], torch.ones(2, experts.size)).shape
            torch.Size([5, 3])
        """
        if weights.shape[1] != self.size:
            raise ValueError(f"weights of {weights.shape[1]} values do not match experts of {self.size}")
        many: Any = getattr(self.module, "grouped", None)
        if grouped is None:
            widths = [size for shape in self.shapes.values() for size in shape]
            grouped = many is not None and grouped_products(tokens.device, tokens.dtype, *widths)
            grouped = grouped and weights.dtype == tokens.dtype
        if grouped:
            return many(tokens, rows, self.named(weights))  # type: ignore[no-any-return]
        pieces = []
        for expert, (piece, row) in enumerate(zip(torch.split(tokens, list(rows)), weights.unbind(), strict=True)):
            parameters = self.named(row.detach() if expert in still else row)
            pieces.append(functional_call(self.module, parameters, (piece,)) if len(piece) else piece)
        return torch.cat(pieces).to(tokens.dtype)  # under autocast, outputs of idle experts keep the tokens' dtype
