"""Slices: lists that slide, such as histories of events, held as pieces of shared values.

Where [a, b, c] is followed by [b, c, d], no row equals another, but their values overlap: [a, b, c, d] and the pieces
(0, 3) and (1, 3) hold both. What looks at each value by itself (a hash, a lookup in a table) needs to see the shared
values alone; what looks at a whole row (the first x, n-grams, attention) needs the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cedar.core.arrow import numbers
from cedar.core.groups.encode import list_offsets
from cedar.core.groups.gather import gather, stretches

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Slices:
    """Row i is ``values[starts[i] : starts[i] + lengths[i]]``.

    Args:
        values: numbers, one-dimensional.
        starts: int64[rows].
        lengths: int64[rows].
    """

    values: npt.NDArray[Any]
    starts: Ints
    lengths: Ints

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def factor(self) -> float:
        """Values of all rows over those held; 1.0 without values."""
        return int(self.lengths.sum()) / len(self.values) if len(self.values) else 1.0

    def mapped(self, change: Callable[[pa.Array], pa.Array]) -> Slices:
        """Other values: ``change`` sees each shared value once, as an Arrow array, and gives one for each.

        For functions of one value by itself (a hash, a table), such as ``SigridHash(...).columns``; one that looks at
        whole rows, or at a value's place in its row, would see the wrong ones.

        Raises:
            ValueError: another number of values came back, or nulls.

        Examples:
            >>> import pyarrow as pa, pyarrow.compute as pc
            >>> held = slices_of(pa.array([[1, 2, 3], [2, 3, 4]], pa.large_list(pa.int64())))
            >>> held.mapped(lambda ids: pc.add(ids, 10)).plain().to_pylist()
            [[11, 12, 13], [12, 13, 14]]
        """
        made = change(pa.array(self.values))
        if len(made) != len(self.values) or made.null_count:
            raise ValueError(f"{len(self.values)} values became {len(made)}, {made.null_count} of them null")
        return Slices(numbers(made), self.starts, self.lengths)

    def plain(self) -> pa.Array:
        """Every row by itself."""
        places, offsets = stretches(self.starts, self.lengths)
        return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(self.values[places]))


def slices_of(lists: pa.Array, most: int = 8) -> Slices:
    """Lists of numbers as slices: a row that continues the one before it shares its values.

    A row continues the one before where, without that one's first m values, it begins like it, and ends no earlier;
    m is the least such, up to ``most``. Values are compared by their bits.

    Args:
        lists: a column of lists of numbers; no nulls.
        most: the largest shift that is looked for; each one that is tried costs a pass over the rows left.

    Examples:
        >>> import pyarrow as pa
        >>> held = slices_of(pa.array([[1, 2, 3], [2, 3, 4], [3, 4, 5], [9]], pa.large_list(pa.int64())))
        >>> held.values.tolist(), held.starts.tolist(), held.lengths.tolist()
        ([1, 2, 3, 4, 5, 9], [0, 1, 2, 5], [3, 3, 3, 1])
    """
    offsets = list_offsets(lists)
    return slide(numbers(lists.values)[offsets[0] : offsets[-1]], offsets - offsets[0], most)


def slide(values: npt.NDArray[Any], offsets: Ints, most: int = 8) -> Slices:
    """``slices_of``, of values and offsets: lists of numbers that lie one after the other.

    ``starts``, and ``starts + lengths``, ascend.
    """
    lengths = np.diff(offsets)
    shifts = _shifts(values.view(f"u{values.dtype.itemsize}"), offsets, most)
    alone = shifts < 0  # the row begins its own run
    before = np.concatenate([[0], lengths[:-1]]) if len(lengths) else lengths
    new = np.where(alone, lengths, lengths - (before - shifts))  # values that a row adds to the end
    ends = np.cumsum(new)
    if len(lengths) and ends[-1] == len(values):  # nothing slides
        return Slices(values, offsets[:-1], lengths)
    rows = np.arange(len(lengths))
    added, _ = gather(values, np.stack([offsets[1:] - new, offsets[1:]], axis=1).reshape(-1), 2 * rows)
    return Slices(added, ends - lengths, lengths)


def _shifts(bits: npt.NDArray[Any], offsets: Ints, most: int) -> Ints:
    """By how much each row slid from the one before; -1 if it did not."""
    lengths = np.diff(offsets)
    shifts = np.full(len(lengths), -1, dtype=np.int64)
    left = np.arange(1, len(lengths))
    for shift in range(most + 1):
        common = lengths[left - 1] - shift
        tried = left[(common > 0) & (lengths[left] >= common)]
        if not len(tried):
            continue
        common = lengths[tried - 1] - shift
        ends = np.cumsum(common)
        inner = np.arange(ends[-1]) - np.repeat(ends - common, common)
        was = bits[np.repeat(offsets[tried - 1] + shift, common) + inner]
        differ = was != bits[np.repeat(offsets[tried], common) + inner]
        slid = tried[np.add.reduceat(differ, ends - common) == 0]
        shifts[slid] = shift
        left = np.setdiff1d(left, slid, assume_unique=True)
    return shifts
