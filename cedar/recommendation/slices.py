"""Slices: sliding lists, such as event histories, stored as slices of shared values.

If [b, c, d] follows [a, b, c], the rows differ but their values overlap. Both rows are
slices (start, length) of the values [a, b, c, d]: (0, 3) and (1, 3). A function of single values, such as a hash or a
table lookup, only needs the shared values. A function of whole rows (the first x, n-grams, attention) needs the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cedar.core.columns import numbers
from cedar.core.distinct import list_offsets
from cedar.core.jagged import gather, stretches

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
        """The number of values in all rows divided by the number of stored values; 1.0 if there are no values."""
        return int(self.lengths.sum()) / len(self.values) if len(self.values) else 1.0

    def mapped(self, change: Callable[[pa.Array], pa.Array]) -> Slices:
        """Replace the values: ``change`` receives each shared value once, as an Arrow array, and returns one for each.

        Use it for functions of single values (a hash, a table), such as ``SigridHash(...).columns``. A function of
        whole rows, or of a value's position in its row, would return wrong results.

        Raises:
            ValueError: ``change`` returned another number of values, or nulls.

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
        """Return an Arrow array with every row as a separate list."""
        places, offsets = stretches(self.starts, self.lengths)
        return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(self.values[places]))


def sliding_factor(samples: float, length: float, shift: float) -> float:
    """Return the expected ``Slices.factor`` of ``samples`` histories of ``length`` values that slide by ``shift`` each.

    Examples:
        >>> round(sliding_factor(16, 50, 1), 1)
        12.3
    """
    return samples * length / (length + (samples - 1) * shift)


def slices_of(lists: pa.Array, most: int = 8) -> Slices:
    """Convert lists of numbers to slices: a row that continues the row before shares its values.

    A row continues the previous row if it begins with all but the first m of that row's values. m is the smallest
    possible shift, up to ``most``. Values are compared by their bits.

    Args:
        lists: a column of lists of numbers without nulls.
        most: the largest shift to try; each one costs a pass over the rows not yet matched.

    Examples:
        >>> import pyarrow as pa
        >>> held = slices_of(pa.array([[1, 2, 3], [2, 3, 4], [3, 4, 5], [9]], pa.large_list(pa.int64())))
        >>> held.values.tolist(), held.starts.tolist(), held.lengths.tolist()
        ([1, 2, 3, 4, 5, 9], [0, 1, 2, 5], [3, 3, 3, 1])
    """
    offsets = list_offsets(lists)
    return slide(numbers(lists.values)[offsets[0] : offsets[-1]], offsets - offsets[0], most)


def slide(values: npt.NDArray[Any], offsets: Ints, most: int = 8) -> Slices:
    """Apply ``slices_of`` to lists that are given by values and offsets.

    In the result, ``starts`` and ``starts + lengths`` ascend.
    """
    lengths = np.diff(offsets)
    shifts = _shifts(values.view(f"u{values.dtype.itemsize}"), offsets, most)
    begins_run = shifts < 0  # the row does not continue the previous row
    before = np.concatenate([[0], lengths[:-1]]) if len(lengths) else lengths
    new = np.where(begins_run, lengths, lengths - (before - shifts))  # the number of values that each row appends
    ends = np.cumsum(new)
    if len(lengths) and ends[-1] == len(values):  # no rows overlap
        return Slices(values, offsets[:-1], lengths)
    rows = np.arange(len(lengths))
    added, _ = gather(values, np.stack([offsets[1:] - new, offsets[1:]], axis=1).reshape(-1), 2 * rows)
    return Slices(added, ends - lengths, lengths)


def _shifts(bits: npt.NDArray[Any], offsets: Ints, most: int) -> Ints:
    """Return by how many values each row is shifted against the previous row; -1 if it does not continue that row."""
    lengths = np.diff(offsets)
    shifts = np.full(len(lengths), -1, dtype=np.int64)
    unmatched = np.arange(1, len(lengths))
    for shift in range(most + 1):
        common = lengths[unmatched - 1] - shift
        tried = unmatched[(common > 0) & (lengths[unmatched] >= common)]
        if not len(tried):
            continue
        common = lengths[tried - 1] - shift
        ends = np.cumsum(common)
        inner = np.arange(ends[-1]) - np.repeat(ends - common, common)
        previous = bits[np.repeat(offsets[tried - 1] + shift, common) + inner]
        differ = previous != bits[np.repeat(offsets[tried], common) + inner]
        slid = tried[np.add.reduceat(differ, ends - common) == 0]
        shifts[slid] = shift
        unmatched = np.setdiff1d(unmatched, slid, assume_unique=True)
    return shifts
