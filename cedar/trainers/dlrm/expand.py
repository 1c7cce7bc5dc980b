"""From unique rows to all rows, with a gradient that adds up what belongs together (RecD's O6, arXiv 2211.05239)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional


@dataclass(frozen=True, eq=False)
class Expansion:
    """Which unique row each row is.

    Args:
        index: int64 ``[rows]``.
        unique: how many unique rows there are; each is used.
        ends: int64 ``[unique + 1]``: where each unique row's rows begin in ``order``.
        order: int64 ``[rows]``: rows by their unique row; None where the index ascends, as they stand so.
    """

    index: torch.Tensor
    unique: int
    ends: torch.Tensor
    order: torch.Tensor | None = None

    @classmethod
    def of(cls, inverse: torch.Tensor, unique: int) -> Expansion:
        """The index of a group of features, int32 or int64 ``[rows]``.

        Example:
            >>> Expansion.of(torch.tensor([0, 0, 1]), 2).ends.tolist(), Expansion.of(torch.tensor([1, 0]), 2).order
            ([0, 2, 3], tensor([1, 0]))
        """
        index = held = inverse.long()
        order = None
        if len(index) > 1 and not bool((index[1:] >= index[:-1]).all()):
            held, order = torch.sort(index, stable=True)
        return cls(index, unique, torch.searchsorted(held, torch.arange(unique + 1, device=index.device)), order)

    def __len__(self) -> int:
        return len(self.index)

    def summed(self, rows: torch.Tensor, places: Sequence[int]) -> torch.Tensor:
        """``[len(places), unique, width]``: of ``rows`` ``[rows, n, width]`` those at ``places`` of the n, added up."""
        count, (n, width) = len(self), rows.shape[1:]
        if not count:
            return rows.new_zeros(len(places), self.unique, width)
        every = torch.arange(count, device=rows.device) if self.order is None else self.order
        index = every * n + torch.tensor(places, device=rows.device)[:, None]
        shifts = torch.arange(len(places), device=rows.device)[:, None] * count
        ends = functional.pad((self.ends[1:] + shifts).flatten(), (1, 0))
        found = functional.embedding_bag(
            index.flatten(), rows.reshape(-1, width), ends, mode="sum", include_last_offset=True
        )
        return found.view(len(places), self.unique, width)


def expand(rows: torch.Tensor, by: Expansion) -> torch.Tensor:
    """``rows[by.index]``: ``[unique, ...]`` to ``[rows, ...]``.

    Example:
        >>> unique = torch.tensor([[1.0], [2.0]], requires_grad=True)
        >>> expand(unique, Expansion.of(torch.tensor([0, 0, 1]), 2)).sum().backward()
        >>> unique.grad.flatten().tolist()
        [2.0, 1.0]
    """
    return side_by_side([rows.flatten(1)], [by]).view(len(by), *rows.shape[1:])


def side_by_side(parts: Sequence[torch.Tensor], by: Sequence[Expansion | None]) -> torch.Tensor:
    """Features of all rows, ``[rows, features, width]``, written where they stay.

    Args:
        parts: of each feature ``[unique, width]`` where it has an expansion, else ``[rows, width]``; of one dtype.
        by: the expansions: one object for all features of a group.

    Example:
        >>> plain, once = torch.tensor([[1.0], [2.0]]), torch.tensor([[9.0]])
        >>> side_by_side([plain, once], [None, Expansion.of(torch.tensor([0, 0]), 1)]).squeeze(2).tolist()
        [[1.0, 9.0], [2.0, 9.0]]
    """
    found: torch.Tensor = _SideBySide.apply(tuple(by), *parts)  # type: ignore[no-untyped-call]
    return found


class _SideBySide(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, by: tuple[Expansion | None, ...], *parts: torch.Tensor) -> torch.Tensor:
        ctx.by = by
        rows = len(parts[0]) if by[0] is None else len(by[0])
        found = parts[0].new_empty(rows, len(parts), parts[0].shape[1])
        for at, (part, each) in enumerate(zip(parts, by, strict=True)):
            if each is None:
                found[:, at] = part
            else:
                torch.index_select(part, 0, each.index, out=found[:, at])
        return found

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        found = list(grads[0].unbind(1))
        groups: dict[int, list[int]] = {}
        for at, each in enumerate(ctx.by):
            if each is not None:
                groups.setdefault(id(each), []).append(at)
        for places in groups.values():
            for at, part in zip(places, ctx.by[places[0]].summed(grads[0], places), strict=True):
                found[at] = part
        return None, *found
