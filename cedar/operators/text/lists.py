"""Lists of ids: cut to a length, with special tokens around."""

from __future__ import annotations

from typing import Any

import numpy as np

from cedar.core.columns import Index


def picked(items: Any, offsets: Index, rows: Index) -> tuple[Any, Index]:
    """The lists at ``rows``, in that order."""
    starts = offsets[:-1][rows]
    lengths = offsets[1:][rows] - starts
    ends = np.cumsum(lengths)
    places = np.repeat(starts - (ends - lengths), lengths)
    places += np.arange(len(places), dtype=np.int64)
    return items[places], np.concatenate([[0], ends]).astype(np.int64)


def joined(one: tuple[Any, Index], other: tuple[Any, Index]) -> tuple[Any, Index]:
    """Lists after lists."""
    return np.concatenate([one[0], other[0]]), np.concatenate([one[1], other[1][1:] + one[1][-1]])


def with_ends(ids: Any, offsets: Index, begin: Any, end: Any) -> tuple[Any, Index]:
    """Every list with the same items before and after it."""
    if not len(begin) and not len(end):
        return ids, offsets
    more = len(begin) + len(end)
    wider = offsets + more * np.arange(len(offsets), dtype=np.int64)
    out = np.empty(int(wider[-1]), dtype=ids.dtype)
    own = np.ones(len(out), dtype=np.bool_)
    for place, item in enumerate(begin):
        out[wider[:-1] + place] = item
        own[wider[:-1] + place] = False
    for place, item in enumerate(end):
        out[wider[1:] - len(end) + place] = item
        own[wider[1:] - len(end) + place] = False
    out[own] = ids
    return out, wider
