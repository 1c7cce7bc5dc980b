"""Use torch optimizers in a pipeline: each step makes a new state, so that it can be undone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from cedar.core.errors import CedarError
from cedar.trainers.resilient.model.state import Layout, State, clip_scale


@dataclass(frozen=True)
class TorchOptimizer:
    """A torch optimizer. Its state per parameter may have a step count and up to two tensors of the parameter's shape.

    Args:
        make: function from a list of a stage's parameters to an optimizer; it may group parameters by shape.
        factor: function from a step, counted from 0, to a factor for learning rates, as in ``LambdaLR``.
        clip: max norm of all gradients together; 0: no limit.

    Examples:
        >>> made = TorchOptimizer(lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
        >>> made.kept
        ('momentum_buffer',)
    """

    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    factor: Callable[[int], float] = lambda _step: 1.0
    clip: float = 0.0

    @cached_property
    def kept(self) -> tuple[str, ...]:
        """Take a test step, and return the names of the state's tensors. It may use CUDA, so do not fork workers later.

        Raises:
            CedarError: the optimizer has other state, or its step fails.
        """
        tried = nn.Parameter(torch.zeros(2, 3))
        tried.grad = torch.ones(2, 3)
        optimizer = self.make([tried])
        try:
            optimizer.step()
        except (TypeError, RuntimeError) as error:
            raise self._refused(optimizer, f"its step fails: {error}") from error
        state = {name: value for name, value in optimizer.state[tried].items() if value is not None and name != "step"}
        odd = [name for name, value in state.items() if not torch.is_tensor(value) or value.shape != tried.shape]
        if odd or len(state) > 2:
            raise self._refused(optimizer, f"it keeps {', '.join(state)} of a parameter")
        return tuple(state)

    def _refused(self, optimizer: torch.optim.Optimizer, why: str) -> CedarError:
        return CedarError(
            f"{type(optimizer).__name__} cannot step a pipeline: {why}", done="nothing was started",
            fix="use one that keeps two tensors of a parameter's shape at most, as SGD, RMSprop and Adam do",
        )  # fmt: skip

    def scale(self, norms: list[float]) -> float | None:
        """Return the factor for gradients, from each stage's sum of squares; None if a sum is not finite."""
        return clip_scale(norms, self.clip)

    def step(self, state: State, gradient: torch.Tensor, layout: Layout, scale: float | None) -> State:
        """Return the state after ``state``; if ``scale`` is None, the weights stay the same."""
        if scale is None or not layout.size:
            return State(state.version + 1, state.updates, state.master, state.first, state.second)
        master, first, second = state.master.clone(), state.first.clone(), state.second.clone()
        parameters = [nn.Parameter(piece) for piece in layout.pieces(master).values()]
        moments = [list(layout.pieces(vector).values()) for vector in (first, second)]
        optimizer = self.make(parameters)
        for group in optimizer.param_groups:
            group["lr"] *= self.factor(state.version)
        for at, (parameter, slope) in enumerate(zip(parameters, layout.pieces(gradient * scale).values(), strict=True)):
            parameter.grad = slope
            if state.updates:
                kept = {name: moments[number][at] for number, name in enumerate(self.kept)}
                optimizer.state[parameter] = {"step": torch.tensor(float(state.updates)), **kept}
        optimizer.step()
        for at, parameter in enumerate(parameters):
            for number, name in enumerate(self.kept):
                moments[number][at].copy_(optimizer.state[parameter][name])
        return State(state.version + 1, state.updates + 1, master, first, second)
