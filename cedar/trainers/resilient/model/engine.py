"""Compute F, B_INPUT and B_WEIGHT of micro-batches at one stage, for any module."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils import _pytree as pytree

from cedar.core.errors import CedarError
from cedar.trainers.common.compute import keyed
from cedar.trainers.moe.layer import mixtures
from cedar.trainers.resilient.data import FinalError
from cedar.trainers.resilient.model.state import Layout, State

Found = list[tuple[int, torch.Tensor]]  # index and gradient of each weight


@dataclass(eq=False)
class _Cut:
    """Weights whose backward paths leave the path to the input at the same nodes of the autograd graph."""

    weights: dict[int, Any]
    nodes: set[Any]


def backward_input(
    output: torch.Tensor, gradient: torch.Tensor | None, x: torch.Tensor, weights: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, Callable[[], Found]]:
    """Return the gradient of ``x``, and a function that computes the gradients of the weights later. ``gradient``: the
    gradient of ``output``; None if it is a loss. ``x``: input of the module, a leaf that requires a gradient.

    Gradients of weights that are used several times are computed immediately. So are all gradients if the graph has
    Python functions, since compiled stages and reentrant checkpoints need a single, complete backward.

    Examples:
        >>> layer, x = torch.nn.Linear(2, 1, bias=False), torch.ones(1, 2, requires_grad=True)
        >>> _, later = backward_input(layer(x).sum(), None, x, [layer.weight])
        >>> later()
        [(0, tensor([[1., 1.]]))]
    """
    edges = [get_gradient_edge(weight).node for weight in weights]
    if not output.requires_grad:
        return torch.zeros_like(x), list
    cuts = _cuts(get_gradient_edge(output).node, get_gradient_edge(x).node, edges)
    if cuts is None:
        of_input, *rest = backward_whole(output, gradient, [x, *weights])
        found = _found(range(len(weights)), rest)
        return _or_zeros(of_input, x), lambda: found
    single = [cut for cut in cuts if len(cut.nodes) == 1]
    several = [number for cut in cuts if len(cut.nodes) != 1 for number in cut.weights]
    arrived: list[tuple[Any, ...]] = [()] * len(single)
    hooks = [
        node.register_prehook(partial(arrived.__setitem__, at)) for at, cut in enumerate(single) for node in cut.nodes
    ]
    try:
        of_input, *now = torch.autograd.grad(
            output, [x, *(weights[number] for number in several)], gradient, retain_graph=bool(single),
            allow_unused=True,
        )  # fmt: skip
    finally:
        for hook in hooks:
            hook.remove()
    first = _found(several, now)

    def later() -> Found:
        return first + [one for cut, given in zip(single, arrived, strict=True) for one in _of_weights(cut, given)]

    return _or_zeros(of_input, x), later


def backward_whole(
    output: torch.Tensor, gradient: torch.Tensor | None, leaves: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """Return the gradients of leaves, or None for leaves that the output does not depend on. Calls ``backward()`` and
    not ``torch.autograd.grad``, because reentrant checkpoints support only the former.
    """
    for leaf in leaves:
        leaf.grad = None
    if output.requires_grad:
        torch.autograd.backward(output, gradient)
    gradients = [leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    return gradients


def _found(numbers: Iterable[int], gradients: Iterable[torch.Tensor | None]) -> Found:
    return [(number, one) for number, one in zip(numbers, gradients, strict=True) if one is not None]


def _or_zeros(gradient: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x) if gradient is None else gradient


def _of_weights(cut: _Cut, arrived: Sequence[torch.Tensor | None]) -> Found:
    (node,) = cut.nodes
    edges = [(GradientEdge(node, at), gradient) for at, gradient in enumerate(arrived) if gradient is not None]
    if not edges:
        return []
    of_weights = torch.autograd.grad(
        [edge for edge, _ in edges], [GradientEdge(weight, 0) for weight in cut.weights.values()],
        [gradient for _, gradient in edges], allow_unused=True,
    )  # fmt: skip
    return _found(cut.weights, of_weights)


def _cuts(output: Any, x: Any, weights: Sequence[Any]) -> list[_Cut] | None:
    """Return the weights, grouped by where their paths branch off; None if the graph has Python functions."""
    above: dict[Any, list[Any]] = defaultdict(list)
    waiting, seen = [output], {output}
    while waiting:
        node = waiting.pop()
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return None
        for below, _ in node.next_functions:
            if below is not None:
                above[below].append(node)
                if below not in seen:
                    seen.add(below)
                    waiting.append(below)
    of_input = _reachable(x, above, set())[0]
    cuts: list[_Cut] = []
    for number, weight in enumerate(weights):
        if weight not in seen:
            continue  # the output does not depend on it
        cut = _Cut({number: weight}, _reachable(weight, above, of_input)[1])
        for other in [other for other in cuts if other.nodes & cut.nodes]:
            cuts.remove(other)
            cut = _Cut(other.weights | cut.weights, other.nodes | cut.nodes)
        cuts.append(cut)
    return cuts


def _reachable(start: Any, above: dict[Any, list[Any]], until: set[Any]) -> tuple[set[Any], set[Any]]:
    """Follow the graph from ``start`` towards the output, up to ``until``. Return nodes passed, and end nodes."""
    inside, ends, waiting = {start}, set(), [start]
    while waiting:
        for node in above.get(waiting.pop(), ()):
            if node in until:
                ends.add(node)
            elif node not in inside:
                inside.add(node)
                waiting.append(node)
    return inside, ends


Key = tuple[int, int]
Loss = Callable[[torch.Tensor, Any], torch.Tensor]


class Signature(NamedTuple):
    """The shape and dtype of a tensor that crosses a stage boundary."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{list(self.shape)} {self.dtype}"

    @classmethod
    def from_tensor(cls, tensor: torch.Tensor) -> Signature:
        return cls(tuple(tensor.shape), tensor.dtype)


class Engine:
    """One stage, and the activations of the micro-batches in progress.

    Random draws in the stage, such as dropout, depend on the micro-batch and not on the worker that computes it.

    Args:
        module: a module from a tensor to a tensor; its weights are replaced by those of a state.
        loss: function of the last stage's output and the targets, which returns a mean over the rows of a micro-batch.
        tied: parameters that other stages share: maps this stage's names to common names, in the same order at all
            stages.
        prefix: prefix of parameter names, so that names of different stages differ.
        share: factor to multiply a micro-batch's loss by: 1 / (replicas * micro-batches).
        dtype: dtype of weights and activations; None: unchanged.

    ``inputs`` and ``outputs`` are the shapes and dtypes of messages from the previous stage and to the next one.
    """

    def __init__(
        self, module: nn.Module, stage: int, stages: int, loss: Loss, *, tied: Mapping[str, str] | None = None,
        prefix: str = "",
        seed: int = 0, share: float = 1.0, dtype: torch.dtype | None = None, device: torch.device | str = "cpu",
    ) -> None:  # fmt: skip
        self.module, self.number, self.loss = module, stage, loss
        self.first, self.last = stage == 0, stage == stages - 1
        self.seed, self.share, self.dtype, self.device = seed, share, dtype, torch.device(device)
        self.mixtures = mixtures(module)
        tied, own = tied or {}, {name: p for name, p in module.named_parameters() if p.requires_grad}
        if missing := [name for name in tied if name not in own]:
            raise CedarError(
                f"stage {stage} has no parameter {missing[0]!r} to share with other stages",
                fix="name one that the first and the last stage have, and that is trained",
            )
        named = {tied.get(name, f"{prefix}{name}"): p for name, p in own.items()}
        kinds = [p.dtype for p in named.values()]
        master = torch.float64 if torch.float64 in ([dtype] if dtype else kinds) else torch.float32
        self.layout = Layout.from_parameters(named, list(tied.values()), master)
        self.initial_state = State.initial(self.layout.gather(named).to(self.device))
        module.to(self.device)
        if dtype is not None:  # module.to(dtype) would also convert complex buffers to real ones
            {torch.float32: module.float, torch.float64: module.double, torch.bfloat16: module.bfloat16}[dtype]()
        self.names = list(named)
        self.parameters = list(named.values())
        self._trained = dict(named)
        self.inputs: Signature | None = None
        self.outputs: Signature | None = None
        self._kept: dict[Key, tuple[torch.Tensor, torch.Tensor]] = {}
        self._waiting: dict[Key, Callable[[], dict[str, torch.Tensor]]] = {}
        self.losses: dict[Key, float] = {}

    def find_signatures(self, x: Any) -> None:
        """Run the stage once to find the shapes and dtypes of its messages."""
        with torch.no_grad():
            output, _ = self._compute(-1, (0, 0), self._to_device(x, self.dtype))
        self.inputs = None if self.first else Signature.from_tensor(x)
        self.outputs = None if self.last else Signature.from_tensor(output)

    def load(self, state: State, frozen: Collection[str] = ()) -> None:
        """Use the weights of a state. ``frozen``: parameters whose gradients are not needed. Their gradients are 0,
        except at the first stage, which always computes all gradients.
        """
        self.layout.put(state.master, zip(self.names, self.parameters, strict=True))
        self._trained = {n: p for n, p in zip(self.names, self.parameters, strict=True) if n not in frozen}

    def reset(self) -> None:
        """Drop all micro-batches in progress."""
        self._kept.clear()
        self._waiting.clear()
        self.losses.clear()

    def forward(self, step: int, key: Key, x: Any, targets: Any = None) -> torch.Tensor:
        """Run F: return activations for the next stage or, at the last stage, the scaled loss, ``[]``. ``key``: replica
        and number of the micro-batch. ``x``: the data's inputs at the first stage, otherwise activations.
        """
        x = self._to_device(x, self.dtype) if self.first else x.to(self.device).detach().requires_grad_()
        before = [buffer._version for buffer in self.module.buffers()]
        output, router_loss = self._compute(step, key, x, self._to_device(targets) if self.last else None)
        if before != [buffer._version for buffer in self.module.buffers()]:
            raise FinalError(
                f"stage {self.number} changes a buffer while it computes: workers of one stage would differ",
                done="nothing was trained", fix="remove modules that update buffers, such as BatchNorm; use LayerNorm",
            )  # fmt: skip
        if self.last:
            self.losses[key] = float(output.detach())
            output = output * self.share
        if router_loss is not None:
            output = _WithOwnLoss.apply(output, router_loss * self.share)  # type: ignore[no-untyped-call]
        self._kept[key] = x, output
        return output.detach()

    def _compute(
        self, step: int, key: Key, x: Any, targets: Any = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
        """Return the stage's output, or the loss at the last stage, and the sum of router losses, if there are any."""
        for layer in self.mixtures:
            layer.clear()  # recomputation in the backward adds router losses again, which must not count
        with keyed(self.device, self.seed, self.number, step, *key):
            output = self.module(x)
            router_loss = [loss for layer in self.mixtures for loss in layer.losses]
            for layer in self.mixtures:
                layer.clear()
            if targets is not None:
                output = self.loss(output, targets)
        if not isinstance(output, torch.Tensor) or not output.is_floating_point():
            kind = str(output.dtype) if isinstance(output, torch.Tensor) else type(output).__name__
            raise FinalError(
                f"stage {self.number} returned {kind}",
                fix="return one floating-point tensor: concatenate several into one",
            )
        if targets is not None and output.numel() != 1:
            raise FinalError(
                f"the loss returned a tensor of shape {list(output.shape)}",
                fix="return a mean over rows, for example with reduction='mean'",
            )
        if output.dtype == torch.float16:
            raise FinalError(
                f"stage {self.number} returned torch.float16, whose gradients would vanish without a GradScaler",
                done="nothing was trained", fix="use bfloat16, which needs none",
            )  # fmt: skip
        return output, torch.stack(router_loss).sum() if router_loss else None

    def _to_device(self, values: Any, dtype: torch.dtype | None = None) -> Any:
        def moved(value: torch.Tensor) -> torch.Tensor:
            return value.to(self.device, dtype if value.is_floating_point() else None)

        return pytree.tree_map_only(torch.Tensor, moved, values)

    def backward_input(self, key: Key, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """Run B_INPUT: return the gradient of the stage's input; None at the first stage, where it is not needed."""
        x, output = self._kept.pop(key)
        gradient = None if gradient is None else gradient.to(self.device)
        if self.first:
            self._waiting[key] = lambda: {
                name: found
                for name, found in zip(self.names, backward_whole(output, gradient, self.parameters), strict=True)
                if found is not None
            }
            return None
        names = list(self._trained)
        of_input, later = backward_input(output, gradient, x, list(self._trained.values()))
        self._waiting[key] = lambda: {names[number]: found for number, found in later()}
        return of_input

    def backward_weight(self, key: Key) -> torch.Tensor:
        """Run B_WEIGHT: return the gradients of all weights, ``[size]``."""
        return self.layout.gather(self._waiting.pop(key)())

    def discard(self, key: Key) -> None:
        """Drop a micro-batch after B_INPUT, if it needs no B_WEIGHT."""
        self._waiting.pop(key, None)


class _WithOwnLoss(torch.autograd.Function):
    """Returns a stage's output unchanged. The backward also runs that of the stage's own loss (of its routers)."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
        ctx.one = torch.ones_like(loss)
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return grads[0], ctx.one
