"""Gather rows of jagged values by row number, in NumPy or torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from cedar.core.jagged import JaggedTensor


def gather(values: Any, offsets: Any, rows: Any) -> tuple[Any, Any]:
    """Return (values, offsets) of the rows ``rows``, in that order; a row may occur several times.

    Args:
        values: as in a JaggedTensor: an array or tensor (total, ...), a list, a dict of these, or a JaggedTensor.
        offsets: int64[rows + 1].
        rows: integers [n], of the same framework as ``offsets``.

    Examples:
        >>> import numpy as np
        >>> values, offsets = gather(np.array([7, 8, 9]), np.array([0, 2, 3]), np.array([1, 0, 1]))
        >>> values.tolist(), offsets.tolist()
        ([9, 7, 8, 9], [0, 1, 3, 4])
    """
    starts = offsets[:-1][rows]
    lengths = offsets[1:][rows] - starts
    new: Any
    places: Any
    if isinstance(offsets, np.ndarray):
        places, new = stretches(starts, lengths)
    else:
        import torch

        new = torch.zeros(len(lengths) + 1, dtype=torch.int64, device=offsets.device)
        torch.cumsum(lengths, 0, out=new[1:])
        total = int(new[-1])
        shifts = torch.repeat_interleave(starts - new[:-1], lengths, output_size=total)
        places = shifts + torch.arange(total, device=offsets.device)
    return pick(values, places), new


def stretches(starts: Any, lengths: Any) -> tuple[Any, Any]:
    """Return the positions of the values of ranges, in NumPy: (positions int64[total], offsets int64[ranges + 1]).

    Examples:
        >>> places, offsets = stretches(np.array([7, 2]), np.array([2, 1]))
        >>> places.tolist(), offsets.tolist()
        ([7, 8, 2], [0, 2, 3])
    """
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    places = np.repeat(starts - offsets[:-1], lengths)
    places += np.arange(offsets[-1], dtype=np.int64)
    return places, offsets


def pick(values: Any, places: Any) -> Any:
    """Return the values at the positions ``places``."""
    if isinstance(values, dict):
        return {name: pick(child, places) for name, child in values.items()}
    if isinstance(values, JaggedTensor):
        return JaggedTensor(*gather(values.values, values.offsets, places))
    if isinstance(values, list):
        return [values[i] for i in places.tolist()]
    return values[places]


def join(parts: list[Any]) -> Any:
    """Concatenate values."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, dict):
        return {name: join([part[name] for part in parts]) for name in first}
    if isinstance(first, JaggedTensor):
        return join_jagged(parts)
    if isinstance(first, list):
        return [value for part in parts for value in part]
    if isinstance(first, np.ndarray):
        return np.concatenate(parts)
    import torch

    return torch.cat(parts)


def join_jagged(parts: list[JaggedTensor]) -> JaggedTensor:
    """Concatenate jagged tensors row by row."""
    offsets = [parts[0].offsets]
    end = parts[0].offsets[-1]
    for part in parts[1:]:
        offsets.append(part.offsets[1:] + end)
        end = end + part.offsets[-1]
    return JaggedTensor(join([part.values for part in parts]), join(offsets))
