"""A backward in two parts, of any module: the gradient of its input at once, those of its weights when there is time.

The graph is cut where a path to a weight leaves the paths to the input, as torch.distributed.pipelining does it: the
first part keeps the gradients that arrive there, the second part begins with them, and computes nothing twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

Found = list[tuple[int, torch.Tensor]]  # a weight's number, its gradient


@dataclass(eq=False)
class _Cut:
    """Weights whose paths leave at the same nodes."""

    weights: dict[int, Any]
    nodes: set[Any]
    arrived: dict[Any, tuple[torch.Tensor | None, ...]] = field(default_factory=dict)

    def keep(self, node: Any) -> Callable[[Any], None]:
        def hook(gradients: tuple[torch.Tensor | None, ...]) -> None:
            self.arrived[node] = gradients

        return hook


def backward_input(
    output: torch.Tensor, gradient: torch.Tensor | None, x: torch.Tensor, weights: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, Callable[[], Found]]:
    """The gradient of ``x``, and what works out the gradients of the weights that ``output`` depends on.

    Args:
        output: of the module.
        gradient: of it; None where it is a loss.
        x: the module's input, a leaf that wants a gradient.
        weights: of the module.

    Example:
        >>> layer, x = torch.nn.Linear(2, 1, bias=False), torch.ones(1, 2, requires_grad=True)
        >>> _, later = backward_input(layer(x).sum(), None, x, [layer.weight])
        >>> later()
        [(0, tensor([[1., 1.]]))]
    """
    cuts = _cuts(output.grad_fn, get_gradient_edge(x).node, [get_gradient_edge(weight).node for weight in weights])
    hooks = [node.register_prehook(cut.keep(node)) for cut in cuts for node in cut.nodes]
    try:
        (found,) = torch.autograd.grad(output, x, gradient, retain_graph=True)
    finally:
        for hook in hooks:
            hook.remove()
    return found, lambda: [one for cut in cuts for one in _of_weights(cut)]


def _of_weights(cut: _Cut) -> Found:
    there = [
        (GradientEdge(node, at), gradient)
        for node, gradients in cut.arrived.items()
        for at, gradient in enumerate(gradients)
        if gradient is not None
    ]
    hooks = []
    if len(cut.nodes) > 1:  # one may lie behind another: what arrived there before is all that arrives
        hooks = [node.register_prehook(lambda _, known=known: known) for node, known in cut.arrived.items()]
    try:
        found = torch.autograd.grad(
            [edge for edge, _ in there], [GradientEdge(node, 0) for node in cut.weights.values()],
            [gradient for _, gradient in there],
        )  # fmt: skip
    finally:
        for hook in hooks:
            hook.remove()
        cut.arrived.clear()
    return list(zip(cut.weights, found, strict=True))


def _cuts(output: Any, x: Any, weights: Sequence[Any]) -> list[_Cut]:
    above: dict[Any, list[Any]] = defaultdict(list)
    waiting, seen = [output], {output}
    while waiting:
        node = waiting.pop()
        for below, _ in node.next_functions:
            if below is not None:
                above[below].append(node)
                if below not in seen:
                    seen.add(below)
                    waiting.append(below)
    of_input = _reached(x, above, set())[0]
    found: list[_Cut] = []
    for number, weight in enumerate(weights):
        if weight not in seen:
            continue  # the output does not depend on it
        cut = _Cut({number: weight}, _reached(weight, above, of_input)[1])
        for other in [other for other in found if other.nodes & cut.nodes]:
            found.remove(other)
            cut = _Cut(other.weights | cut.weights, other.nodes | cut.nodes)
        found.append(cut)
    return found


def _reached(start: Any, above: dict[Any, list[Any]], until: set[Any]) -> tuple[set[Any], set[Any]]:
    """The nodes that are reached upwards, and those of ``until`` at which the way ends."""
    inside, ends, waiting = {start}, set(), [start]
    while waiting:
        for node in above.get(waiting.pop(), ()):
            if node in until:
                ends.add(node)
            elif node not in inside:
                inside.add(node)
                waiting.append(node)
    return inside, ends
