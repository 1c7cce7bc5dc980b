"""What a worker computes: F, B_INPUT and B_WEIGHT of micro-batches, on one stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from cedar.trainers.resilient.model.dropout import Place
from cedar.trainers.resilient.model.layout import Layout
from cedar.trainers.resilient.model.stage import Stage
from cedar.trainers.resilient.model.state import State

Key = tuple[int, int]


class Engine:
    """One stage, and the activations of the micro-batches that are in work.

    Args:
        stage: its weights are replaced by those of a state.
        seed: of dropout.
        share: what a micro-batch's mean loss is multiplied with: 1 / (replicas * micro-batches).
        dtype: of weights and activations.
        device: of both.
    """

    def __init__(
        self, stage: Stage, *, seed: int = 0, share: float = 1.0, dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> None:  # fmt: skip
        self.stage, self.seed, self.share, self.dtype, self.device = stage, seed, share, dtype, device
        shared = "tokens.weight" if stage.model.tied and stage.first != stage.last else None
        self.layout = Layout.of(stage, shared)
        self.begin = State.begin(self.layout.gather(dict(stage.named_parameters())).to(device))
        stage.to(device=device, dtype=dtype)
        self._names = {parameter: name for name, parameter in stage.named_parameters()}
        self._kept: dict[Key, tuple[torch.Tensor | None, torch.Tensor]] = {}
        self._waiting: dict[Key, tuple[list[Callable[[], Any]], dict[str, torch.Tensor]]] = {}
        self.losses: dict[Key, float] = {}

    @property
    def live(self) -> int:
        """Micro-batches whose activations are kept."""
        return len(self._kept) + len(self._waiting)

    def boundary(self, rows: int) -> tuple[int, ...]:
        """The shape of what stages give to each other, for micro-batches of so many rows."""
        return rows, self.stage.model.length, self.stage.model.width

    def load(self, state: State) -> None:
        """Compute with the weights of a state."""
        self.layout.put(state.master, self.stage.named_parameters())

    def reset(self) -> None:
        """Forget every micro-batch."""
        self._kept.clear()
        self._waiting.clear()
        self.losses.clear()
        self.stage.queue.take()

    def forward(self, step: int, key: Key, x: torch.Tensor, targets: torch.Tensor | None) -> torch.Tensor:
        """F: activations for the next stage, or the scaled loss, ``[]``, at the last.

        Args:
            step: of the run.
            key: replica and number of the micro-batch.
            x: tokens at the first stage, else activations.
            targets: int64 ``[rows, length]`` at the last stage.
        """
        x = x.to(self.device)
        if not self.stage.first:
            x = x.detach().requires_grad_()
        found = self.stage(x, Place(self.seed, step, *key))
        if targets is not None:
            loss = functional.cross_entropy(found.float().flatten(0, 1), targets.to(self.device).flatten())
            self.losses[key] = float(loss.detach())
            found = loss * self.share
        self._kept[key] = (None if self.stage.first else x), found
        return found.detach()  # type: ignore[no-any-return]

    def backward_input(self, key: Key, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """B_INPUT: the gradient of the stage's input; None at the first stage."""
        x, found = self._kept.pop(key)
        torch.autograd.backward(found, None if gradient is None else gradient.to(self.device))
        direct = {}
        for parameter, name in self._names.items():  # norms are small: theirs come at once
            if parameter.grad is not None:
                direct[name], parameter.grad = parameter.grad, None
        self._waiting[key] = self.stage.queue.take(), direct
        return None if x is None else x.grad

    def backward_weight(self, key: Key) -> torch.Tensor:
        """B_WEIGHT: the gradients of all weights, float32 ``[size]``."""
        works, named = self._waiting.pop(key)
        for work in works:
            for parameter, gradient in work():
                name = self._names[parameter]
                named[name] = named[name] + gradient if name in named else gradient
        return self.layout.gather(named)

    def give_up(self, key: Key) -> None:
        """Forget a micro-batch that needs no B_WEIGHT."""
        self._waiting.pop(key, None)
