"""Repeated rows and values: expanded late (RecD's O6, arXiv 2211.05239), processed once (O7); and sliding lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from cedar.recommendation.slices import slide


@dataclass(frozen=True, eq=False)
class Expansion:
    """Maps each row to its unique row."""

    index: torch.Tensor  # int64 ``[rows]``
    unique: int  # number of unique rows; each occurs at least once
    ends: torch.Tensor  # int64 ``[unique + 1]``: where the rows of each unique row begin in ``order``
    # int64 ``[rows]``: rows sorted by their unique row; None if ``index`` is already ascending
    order: torch.Tensor | None = None

    @classmethod
    def of(cls, inverse: torch.Tensor, unique: int) -> Expansion:
        """Build from the inverse index of a group of features, int32 or int64 ``[rows]``.

        Examples:
            >>> Expansion.of(torch.tensor([0, 0, 1]), 2).ends.tolist(), Expansion.of(torch.tensor([1, 0]), 2).order
            ([0, 2, 3], tensor([1, 0]))
        """
        index = ascending = inverse.long()
        order = None
        if len(index) > 1 and not bool((index[1:] >= index[:-1]).all()):
            ascending, order = torch.sort(index, stable=True)
        return cls(index, unique, torch.searchsorted(ascending, torch.arange(unique + 1, device=index.device)), order)

    def __len__(self) -> int:
        return len(self.index)

    def summed(self, rows: torch.Tensor, places: Sequence[int]) -> torch.Tensor:
        """Sum ``rows[:, places]`` by unique row; ``rows``: ``[rows, n, width]``; ``[len(places), unique, width]``."""
        count, (n, width) = len(self), rows.shape[1:]
        if not count:
            return rows.new_zeros(len(places), self.unique, width)
        every = torch.arange(count, device=rows.device) if self.order is None else self.order
        index = every * n + torch.tensor(places, device=rows.device)[:, None]
        shifts = torch.arange(len(places), device=rows.device)[:, None] * count
        ends = functional.pad((self.ends[1:] + shifts).flatten(), (1, 0))
        sums = functional.embedding_bag(
            index.flatten(), rows.reshape(-1, width), ends, mode="sum", include_last_offset=True
        )
        return sums.view(len(places), self.unique, width)


def expand(rows: torch.Tensor, by: Expansion) -> torch.Tensor:
    """Return ``rows[by.index]``: ``[unique, ...]`` to ``[rows, ...]``.

    Examples:
        >>> unique = torch.tensor([[1.0], [2.0]], requires_grad=True)
        >>> expand(unique, Expansion.of(torch.tensor([0, 0, 1]), 2)).sum().backward()
        >>> unique.grad.flatten().tolist()
        [2.0, 1.0]
    """
    return side_by_side([rows.flatten(1)], [by]).view(len(by), *rows.shape[1:])


def side_by_side(parts: Sequence[torch.Tensor], by: Sequence[Expansion | None]) -> torch.Tensor:
    """Stack the expanded features into ``[rows, features, width]`` without intermediate copies. ``parts``: per feature
    ``[unique, width]`` with an expansion, else ``[rows, width]``, all of one dtype; ``by``: the expansions, one object
    for all features of a group.

    Examples:
        >>> plain, once = torch.tensor([[1.0], [2.0]]), torch.tensor([[9.0]])
        >>> side_by_side([plain, once], [None, Expansion.of(torch.tensor([0, 0]), 1)]).squeeze(2).tolist()
        [[1.0, 9.0], [2.0, 9.0]]
    """
    joined: torch.Tensor = _SideBySide.apply(tuple(by), *parts)  # type: ignore[no-untyped-call]
    return joined


class _SideBySide(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, by: tuple[Expansion | None, ...], *parts: torch.Tensor) -> torch.Tensor:
        ctx.by = by
        rows = len(parts[0]) if by[0] is None else len(by[0])
        joined = parts[0].new_empty(rows, len(parts), parts[0].shape[1])
        for at, (part, each) in enumerate(zip(parts, by, strict=True)):
            if each is None:
                joined[:, at] = part
            else:
                torch.index_select(part, 0, each.index, out=joined[:, at])
        return joined

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        gradients = list(grads[0].unbind(1))
        groups: dict[int, list[int]] = {}
        for at, each in enumerate(ctx.by):
            if each is not None:
                groups.setdefault(id(each), []).append(at)
        for places in groups.values():
            for at, part in zip(places, ctx.by[places[0]].summed(grads[0], places), strict=True):
                gradients[at] = part
        return None, *gradients


def tells_apart(module: nn.Module) -> str:
    """Return why a module in training may treat equal rows differently, or depend on how often a row occurs.

    Calls of torch.nn.functional inside a module are not detected.

    Returns:
        The submodule and its effect: dropout (above 0) or batch statistics; empty if there is none.

    Examples:
        >>> tells_apart(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)))
        ''
        >>> tells_apart(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
        "BatchNorm1d ('1') takes statistics of a batch"
    """
    for name, part in module.named_modules():
        kind = f"{type(part).__name__} ({name or 'itself'!r})"
        drops = (isinstance(part, (_DropoutNd, nn.RReLU)) and getattr(part, "p", 1.0) > 0) or (
            isinstance(part, nn.MultiheadAttention) and part.dropout > 0
        )
        if drops:
            return f"{kind} draws random numbers for each row"
        if isinstance(part, _BatchNorm):
            return f"{kind} takes statistics of a batch"
    return ""


def on_lists(
    module: nn.Module, rows: torch.Tensor, offsets: torch.Tensor, by: Expansion | None, *, anyway: bool = False
) -> tuple[torch.Tensor, Expansion | None]:
    """Apply ``module(rows, offsets)`` to unique lists, or to the lists of all rows if it treats equal rows differently.

    Args:
        module: maps lists, ``[total, width]`` with ``offsets`` ``[lists + 1]``, to ``[lists, ...]``.
        by: the unique list of each row; None if there is one list per row.
        anyway: always use unique lists, so that equal rows share a dropout mask, and statistics count them once.

    Returns:
        The results, and the expansion to apply to them, which is None if there is already one result per row.

    Examples:
        >>> mean = lambda rows, offsets: torch.stack([part.mean(0) for part in rows.split(offsets.diff().tolist())])
        >>> class Mean(nn.Dropout):
        ...     def forward(self, rows, offsets):
        ...         return mean(rows, offsets)
        >>> lists, by = torch.tensor([[1.0], [3.0], [5.0]]), Expansion.of(torch.tensor([0, 0, 1]), 2)
        >>> on_lists(Mean(0.5), lists, torch.tensor([0, 2, 3]), by)[0].flatten().tolist()
        [2.0, 2.0, 5.0]
        >>> on_lists(Mean(0.0), lists, torch.tensor([0, 2, 3]), by)[0].flatten().tolist()
        [2.0, 5.0]
    """
    if by is not None and module.training and not anyway and tells_apart(module):
        values, offsets = ranges(offsets[:-1].index_select(0, by.index), offsets.diff().index_select(0, by.index))
        rows, by = rows.index_select(0, values), None
    pooled: torch.Tensor = module(rows, offsets)
    return pooled, by


@dataclass(frozen=True, eq=False)
class Windows:
    """Lists as ranges of shared values: list i is ``values[starts[i]:ends[i]]``. Starts and ends ascend."""

    starts: torch.Tensor  # int64 ``[lists]``
    ends: torch.Tensor  # int64 ``[lists]``
    total: int  # number of values

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def lengths(self) -> torch.Tensor:
        """The list lengths, int64 ``[lists]``."""
        return self.ends - self.starts

    def cut(self, start: int, stop: int) -> tuple[Windows, slice]:
        """Return the lists from ``start`` to ``stop``, and the slice of values that they use."""
        if start == stop:
            return Windows(self.starts[:0], self.ends[:0], 0), slice(0, 0)
        first, last = int(self.starts[start]), int(self.ends[stop - 1])
        return Windows(self.starts[start:stop] - first, self.ends[start:stop] - first, last - first), slice(first, last)

    def to(self, device: torch.device | None) -> Windows:
        return self if device is None else Windows(self.starts.to(device), self.ends.to(device), self.total)

    @cached_property
    def inside(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Indices of the values of all lists, and the lists' offsets, as an embedding bag takes them."""
        return ranges(self.starts, self.lengths)

    @cached_property
    def around(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Indices of the lists that contain each value (consecutive, as starts and ends ascend), and their offsets."""
        values = torch.arange(self.total, device=self.starts.device)
        first = torch.searchsorted(self.ends, values, right=True)
        return ranges(first, torch.searchsorted(self.starts, values, right=True) - first)


def windows_of(ids: torch.Tensor, offsets: torch.Tensor) -> tuple[torch.Tensor, Windows]:
    """Return (values that lists share, the lists as windows over them). ``ids``: integers ``[n]``; ``offsets``: int64
    ``[lists + 1]``, from 0 to n.

    Examples:
        >>> values, windows = windows_of(torch.tensor([1, 2, 3, 2, 3, 4, 9]), torch.tensor([0, 3, 6, 7]))
        >>> values.tolist(), windows.starts.tolist(), windows.ends.tolist()
        ([1, 2, 3, 4, 9], [0, 1, 4], [3, 4, 5])
    """
    slices = slide(ids.cpu().numpy(), offsets.cpu().numpy())
    starts = torch.from_numpy(slices.starts)
    values = torch.from_numpy(slices.values).to(ids.device)
    windows = Windows(starts, starts + torch.from_numpy(slices.lengths), len(values))
    return values, windows.to(ids.device)


def pool(rows: torch.Tensor, windows: Windows) -> torch.Tensor:
    """Return the sum of each window of ``rows`` ``[total, width]``: ``[lists, width]``.

    Examples:
        >>> _, windows = windows_of(torch.tensor([1, 2, 2, 3]), torch.tensor([0, 2, 4]))
        >>> rows = torch.tensor([[1.0], [10.0], [100.0]], requires_grad=True)
        >>> sums = pool(rows, windows)
        >>> sums.sum().backward()
        >>> sums.flatten().tolist(), rows.grad.flatten().tolist()
        ([11.0, 110.0], [1.0, 2.0, 1.0])
    """
    sums: torch.Tensor = _Pool.apply(rows, windows)  # type: ignore[no-untyped-call]
    return sums


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, windows: Windows) -> torch.Tensor:
        ctx.windows = windows
        return _sums(rows, *windows.inside)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _sums(grads[0], *ctx.windows.around), None


def _sums(rows: torch.Tensor, index: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    if not len(index):
        return rows.new_zeros(len(offsets) - 1, rows.shape[1])
    return functional.embedding_bag(index, rows.contiguous(), offsets, mode="sum", include_last_offset=True)


def ranges(starts: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (the concatenated ranges of integers with these starts and lengths, where each range begins)."""
    offsets = functional.pad(lengths.cumsum(0), (1, 0))
    total = int(offsets[-1])
    shifts = torch.repeat_interleave(starts - offsets[:-1], lengths, output_size=total)
    return shifts + torch.arange(total, device=starts.device), offsets
