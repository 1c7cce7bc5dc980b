"""Layers whose weight gradients wait: backward gives the gradient of the input, a queue keeps what the weight's needs.

Only ``Tensor.backward()`` may be called on what these layers made. ``torch.autograd.grad`` for the input alone leaves
out every layer that no wanted input comes before: at the first stage, whose input is tokens, weight gradients would be
lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Gradient = tuple[nn.Parameter, torch.Tensor]


class WeightQueue:
    """Weight gradients that were put off, in the order of the backward that met them."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], list[Gradient]]] = []

    def put(self, work: Callable[[], list[Gradient]]) -> None:
        self._waiting.append(work)

    def take(self) -> list[Callable[[], list[Gradient]]]:
        """What was put since the last call."""
        taken, self._waiting = self._waiting, []
        return taken


class Linear(nn.Module):
    """``x @ weight.T + bias``, the gradients of weight and bias put off.

    Args:
        inputs: width of what comes in.
        outputs: width of what goes out.
        queue: of the stage.
        bias: add one.
    """

    def __init__(self, inputs: int, outputs: int, queue: WeightQueue, *, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        self.queue = queue

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[..., inputs]`` to ``[..., outputs]``."""
        return linear(x, self.weight, self.bias, self.queue)


class Embedding(nn.Module):
    """Rows of a table, the gradient of the table put off.

    Args:
        rows: of the table.
        width: of a row.
        queue: of the stage.
    """

    def __init__(self, rows: int, width: int, queue: WeightQueue) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, width))
        self.queue = queue

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        """int64 ``[...]`` to ``[..., width]``."""
        found: torch.Tensor = _Embedding.apply(index, self.weight, self.queue)  # type: ignore[no-untyped-call]
        return found


def linear(x: torch.Tensor, weight: nn.Parameter, bias: nn.Parameter | None, queue: WeightQueue) -> torch.Tensor:
    """``x @ weight.T + bias``, the gradients of weight and bias put off."""
    found: torch.Tensor = _Linear.apply(x, weight, bias, queue)  # type: ignore[no-untyped-call]
    return found


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: nn.Parameter, bias: nn.Parameter | None, queue: WeightQueue
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.parameters, ctx.queue = (weight, bias), queue
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        parameter, bias = ctx.parameters

        def work() -> list[Gradient]:
            flat = gradient.reshape(-1, gradient.shape[-1])
            found = [(parameter, flat.t() @ x.reshape(-1, x.shape[-1]))]
            return found if bias is None else [*found, (bias, flat.sum(0))]

        ctx.queue.put(work)
        return (gradient @ weight if ctx.needs_input_grad[0] else None), None, None, None


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, index: torch.Tensor, weight: nn.Parameter, queue: WeightQueue) -> torch.Tensor:
        ctx.save_for_backward(index)
        ctx.parameter, ctx.queue = weight, queue
        return functional.embedding(index, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (gradient,) = gradients
        (index,) = ctx.saved_tensors
        weight: nn.Parameter = ctx.parameter

        def work() -> list[Gradient]:
            return [(weight, torch.ops.aten.embedding_dense_backward(gradient, index, len(weight), -1, False))]

        ctx.queue.put(work)
        return None, None, None
