"""Optimizer state on slices: which tensors an optimizer keeps, and saving and loading them on any number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn import functional
from torch.optim.optimizer import Optimizer

from cedar.core.errors import CedarError
from cedar.trainers.common.group import Group


def share_of(size: int, width: int, rank: int) -> range:
    """Return the range of a row's values that a rank's slice holds, without padding."""
    return range(min(rank * width, size), min((rank + 1) * width, size))


def begin_adam(inner: Optimizer, slices: Sequence[nn.Parameter], kinds: Mapping[str, torch.Tensor]) -> None:
    """Create Adam's state (zeros) before the first step, so that a checkpoint can be loaded into it. Do nothing for
    other optimizers, whose initial state may differ.
    """
    if isinstance(inner, torch.optim.Adam):
        for s in slices:
            inner.state[s] = {name: _blank(s, sample, inner) for name, sample in kinds.items()}


def pack(
    slices: Sequence[nn.Parameter], inner: Optimizer, kinds: Mapping[str, torch.Tensor], size: int, group: Group,
    mesh: Callable[[], DeviceMesh],
) -> dict[str, torch.Tensor]:  # fmt: skip
    """Return masters and optimizer state of a parameter's rows, ``[rows, size]``, as DTensors on several ranks.

    Slices without state get zeros and ``begun`` = False.
    """
    states = [inner.state.get(s, {}) for s in slices]
    packed = {"master": torch.stack([s.detach() for s in slices]), "begun": torch.tensor([bool(one) for one in states])}
    for name, sample in kinds.items():
        values = [one[name] if name in one else _blank(s, sample, inner) for s, one in zip(slices, states, strict=True)]
        packed[name] = torch.stack([torch.as_tensor(value) for value in values])

    def whole(value: torch.Tensor) -> torch.Tensor:
        own = value[:, : len(share_of(size, value.shape[1], group.rank))]
        if group.size == 1:
            return own
        shape, stride = torch.Size((len(value), size)), (size, 1)
        return DTensor.from_local(own.contiguous(), mesh(), [Shard(1)], run_check=False, shape=shape, stride=stride)

    return {name: whole(value) if value.dim() == 2 else value for name, value in packed.items()}


def unpack(
    given: Mapping[str, Any], slices: Sequence[nn.Parameter], inner: Optimizer, kinds: Mapping[str, torch.Tensor],
    group: Group,
) -> None:  # fmt: skip
    """Load the result of ``pack``, possibly from another number of ranks."""
    if lacking := {"master", "begun", *kinds}.difference(given):
        raise CedarError(
            f"the state is not from a SymiOptimizer with {type(inner).__name__}: it lacks {', '.join(sorted(lacking))}",
            done="it was not loaded",
            fix="pass the state_dict() of a SymiOptimizer with the same optimizer_class",
        )
    own = {name: _own(given[name], len(slices[0]), group) for name in ("master", *kinds)}
    for at, s in enumerate(slices):
        s.data.copy_(own["master"][at])
        if given["begun"][at]:
            blanks = {name: _blank(s, sample, inner) for name, sample in kinds.items()}
            inner.state[s] = {name: blank.copy_(own[name][at]) for name, blank in blanks.items()}
        elif s in inner.state:
            del inner.state[s]


def _own(value: torch.Tensor, width: int, group: Group) -> torch.Tensor:
    if value.dim() < 2:
        return value
    if not isinstance(value, DTensor):
        own = value[:, group.rank * width : (group.rank + 1) * width]
    elif (value.device_mesh.size(), [*(value.device_mesh.get_coordinate() or ())]) == (group.size, [group.rank]):
        own = value.to_local()
    else:
        raise CedarError(
            f"the state of SymiOptimizer is from another rank or rank count ({value.device_mesh.size()})",
            done="it was not loaded",
            fix="save and load it with torch.distributed.checkpoint, on any number of ranks",
        )
    return functional.pad(own, (0, width - own.shape[1]))


def _blank(values: torch.Tensor, sample: torch.Tensor, inner: Optimizer) -> torch.Tensor:
    """Return zeros for one kind of state of a slice. Counters are on the CPU unless torch's kernels read them."""
    if sample.dim():
        return torch.zeros_like(values.detach())
    read = inner.defaults.get("fused") or inner.defaults.get("capturable")
    return torch.zeros_like(sample, device=values.device if read else "cpu")


def kinds_of_state(make: Callable[[list[nn.Parameter]], Optimizer], of: Any) -> dict[str, torch.Tensor]:
    """Return sample tensors by name of the state that an optimizer keeps per parameter.

    Also tests that the optimizer updates values independently: pieces of a matrix must change like the whole matrix.

    Raises:
        CedarError: the optimizer does not update values independently, or cannot be constructed for this test.
    """
    draws = torch.Generator().manual_seed(0)
    first, *gradients = torch.randn(4, 4, 6, generator=draws, dtype=torch.float64, device="cpu")

    def trained(shapes: Callable[[torch.Tensor], Sequence[torch.Tensor]]) -> tuple[torch.Tensor, Optimizer]:
        values = [nn.Parameter(part.clone()) for part in shapes(first)]
        optimizer = make(values)
        for group in optimizer.param_groups:
            group |= {"lr": 1e-2} | ({"capturable": False} if "capturable" in group else {})  # only supported on GPUs
        for gradient in gradients:
            for p, part in zip(values, shapes(gradient), strict=True):
                p.grad = part.clone()
            optimizer.step()
        return torch.cat([p.detach().flatten() for p in values]), optimizer

    why: object = "it does not update each value independently"
    try:
        pieces, optimizer = trained(lambda whole: torch.split(whole.flatten(), [7, 17]))
        if torch.allclose(pieces, trained(lambda whole: [whole])[0], rtol=1e-9, atol=1e-12):
            state: dict[str, Any] = next(iter(optimizer.state.values()), {})
            return {name: torch.as_tensor(value) for name, value in state.items() if value is not None}
    except (RuntimeError, TypeError, ValueError) as error:
        why = error
    raise CedarError(
        f"{of.__name__} cannot work on slices of weights: {why}",
        fix="use an optimizer that updates values independently: AdamW, Adam, SGD, RMSprop, Adagrad, Lion, ...",
    )
