"""Lists that slide: the values that they share are looked up once, and each list is a window over them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.nn import functional

from cedar.groups.slices import slide


@dataclass(frozen=True, eq=False)
class Windows:
    """List i is what lies from ``starts[i]`` to ``ends[i]``; both ascend.

    Args:
        starts: int64 ``[lists]``.
        ends: int64 ``[lists]``.
        held: how many values there are.
    """

    starts: torch.Tensor
    ends: torch.Tensor
    held: int

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def lengths(self) -> torch.Tensor:
        """int64 ``[lists]``."""
        return self.ends - self.starts

    def cut(self, start: int, stop: int) -> tuple[Windows, slice]:
        """The lists from ``start`` to ``stop``, and which values they hold."""
        if start == stop:
            return Windows(self.starts[:0], self.ends[:0], 0), slice(0, 0)
        first, last = int(self.starts[start]), int(self.ends[stop - 1])
        return Windows(self.starts[start:stop] - first, self.ends[start:stop] - first, last - first), slice(first, last)

    def to(self, device: torch.device | None) -> Windows:
        return self if device is None else Windows(self.starts.to(device), self.ends.to(device), self.held)

    @cached_property
    def inside(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(values of each list, offsets of lists), as an embedding bag takes them."""
        return _ranges(self.starts, self.lengths)

    @cached_property
    def around(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(lists that hold each value, offsets of values): they stand one after the other, as both ends ascend."""
        values = torch.arange(self.held, device=self.starts.device)
        first = torch.searchsorted(self.ends, values, right=True)
        return _ranges(first, torch.searchsorted(self.starts, values, right=True) - first)


def windows_of(ids: torch.Tensor, offsets: torch.Tensor) -> tuple[torch.Tensor, Windows]:
    """(values that lists share, the lists as windows over them).

    Args:
        ids: integers ``[n]``.
        offsets: int64 ``[lists + 1]``, from 0 to n.

    Example:
        >>> held, windows = windows_of(torch.tensor([1, 2, 3, 2, 3, 4, 9]), torch.tensor([0, 3, 6, 7]))
        >>> held.tolist(), windows.starts.tolist(), windows.ends.tolist()
        ([1, 2, 3, 4, 9], [0, 1, 4], [3, 4, 5])
    """
    found = slide(ids.cpu().numpy(), offsets.cpu().numpy())
    starts = torch.from_numpy(found.starts)
    values = torch.from_numpy(found.values).to(ids.device)
    windows = Windows(starts, starts + torch.from_numpy(found.lengths), len(values))
    return values, windows.to(ids.device)


def pool(rows: torch.Tensor, windows: Windows) -> torch.Tensor:
    """The sum over each window of ``rows`` ``[held, width]``: ``[lists, width]``.

    Example:
        >>> _, windows = windows_of(torch.tensor([1, 2, 2, 3]), torch.tensor([0, 2, 4]))
        >>> rows = torch.tensor([[1.0], [10.0], [100.0]], requires_grad=True)
        >>> found = pool(rows, windows)
        >>> found.sum().backward()
        >>> found.flatten().tolist(), rows.grad.flatten().tolist()
        ([11.0, 110.0], [1.0, 2.0, 1.0])
    """
    found: torch.Tensor = _Pool.apply(rows, windows)  # type: ignore[no-untyped-call]
    return found


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


def _ranges(starts: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    offsets = functional.pad(lengths.cumsum(0), (1, 0))
    total = int(offsets[-1])
    shifts = torch.repeat_interleave(starts - offsets[:-1], lengths, output_size=total)
    return shifts + torch.arange(total, device=starts.device), offsets
