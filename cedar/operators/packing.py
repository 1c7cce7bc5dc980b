"""The kernels of ``pack``, which place documents into rows of a fixed length."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from cedar.core.block import Block
from cedar.core.columns import Index
from cedar.core.cursor import KeyParts, concat_keys
from cedar.operators.documents import ADDED_COLUMNS, Documents, concat_documents
from cedar.operators.fill_values import Fill, fill_for_column

_STRETCH = 1 << 17  # tokens copied at a time; does not affect results


@dataclass(frozen=True)
class PackLayout:
    """The output row and column of each contiguous run of tokens, ordered by row and column.

    A run consists of ``tokens`` tokens from ``document`` (a slot), beginning with token ``offset``. It is copied to
    ``row``, beginning at ``column``. All arrays are int64 and have one entry per run.
    """

    document: Index
    offset: Index
    tokens: Index
    row: Index
    column: Index


def layout_concat(lengths: Index, offset: int, rows: int, length: int) -> PackLayout:
    """Lay out documents one after the other, cut at the ends of rows; leave out the first ``offset`` tokens."""
    starts = np.concatenate([[0], np.cumsum(lengths)]) - offset
    stop = min(int(starts[-1]), rows * length)
    cuts = _merge_sorted(np.clip(starts, 0, stop), np.arange(0, stop, length))
    begin = cuts[:-1]
    document = np.searchsorted(starts, begin, side="right") - 1
    return PackLayout(document, begin - starts[document], np.diff(cuts), begin // length, begin % length)


def _merge_sorted(one: Index, other: Index) -> Index:
    """Merge two ascending arrays into one without duplicates."""
    both = np.concatenate([one, other])
    both.sort(kind="stable")  # merges sorted runs efficiently
    fresh = np.ones(len(both), dtype=np.bool_)
    np.not_equal(both[1:], both[:-1], out=fresh[1:])
    return both[fresh]


def layout_best(lengths: Index, length: int) -> PackLayout:
    """Cut documents into runs of at most ``length`` tokens, and assign them to rows by best fit, the longest run first.

    Rows are ordered by their first document.
    """
    runs = -(-lengths // length)
    document = np.repeat(np.arange(len(lengths)), runs)
    number = np.arange(len(document)) - np.repeat(np.cumsum(runs) - runs, runs)
    offset = number * length
    tokens = np.minimum(length, lengths[document] - offset)
    bins = best_fit(tokens, length)
    _, first, inverse = np.unique(bins, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    row = rank[inverse]
    order = np.argsort(row, kind="stable")
    row, tokens = row[order], tokens[order]
    ends = np.cumsum(tokens)
    heads = np.searchsorted(row, row, side="left")
    column = (ends - tokens) - (ends - tokens)[heads]
    return PackLayout(document[order], offset[order], tokens, row, column)


def best_fit(sizes: Index, room: int) -> Index:
    """Return the bin of each item by best fit, largest item first; of equally full bins, use the newest."""
    bins = np.empty(len(sizes), dtype=np.int64)
    spaces: list[int] = []  # distinct free spaces of open bins, ascending
    open_bins: dict[int, list[int]] = {}
    made = 0
    largest_first = np.argsort(-sizes, kind="stable")
    for item, size in zip(largest_first.tolist(), sizes[largest_first].tolist(), strict=True):
        place = bisect_left(spaces, size)
        if place == len(spaces):
            number, space, made = made, room, made + 1
        else:
            space = spaces[place]
            number = open_bins[space].pop()
            if not open_bins[space]:
                spaces.pop(place)
        bins[item] = number
        if rest := space - size:
            stack = open_bins.setdefault(rest, [])
            if not stack:
                insort(spaces, rest)
            stack.append(number)
    return bins


def pack_concat(
    runs: Sequence[Documents], offset: int, rows: int, length: int, fill: Fill = 0, parts: bool = False
) -> Block:
    """Pack documents one after the other into ``rows`` rows.

    The slot of a skipped document follows the row that is filled at that point. With ``parts``, the key of a row lists
    the keys of its documents.
    """
    docs = concat_documents(runs)
    starts = np.concatenate([[0], np.cumsum(docs.lengths)]) - offset
    layout = layout_concat(docs.lengths, offset, rows, length)
    return _fill(docs, layout, rows, length, starts[:-1] // length, fill, parts)


def pack_best(runs: Sequence[Documents], length: int, fill: Fill = 0, parts: bool = False) -> Block:
    """Pack one window of documents by best fit. Slots of skipped documents come last."""
    docs = concat_documents(runs)
    layout = layout_best(docs.lengths, length)
    rows = int(layout.row[-1]) + 1 if len(layout.row) else 0
    return _fill(docs, layout, rows, length, np.full(len(docs), rows), fill, parts)


def _ranges(begins: Index, lengths: Index, dtype: type[np.integer[Any]]) -> npt.NDArray[Any]:
    """Concatenate the ranges that start at ``begins`` and have these ``lengths``."""
    before = np.cumsum(lengths) - lengths
    return np.repeat((begins - before).astype(dtype), lengths) + np.arange(int(lengths.sum()), dtype=dtype)


def _run_indices(begins: Index, lengths: Index) -> Index | slice:
    """Return the indices of all tokens in some runs; for adjacent runs, return a slice, which copies faster."""
    if not len(begins):
        return slice(0, 0)
    if np.array_equal(begins[1:], begins[:-1] + lengths[:-1]):
        return slice(int(begins[0]), int(begins[-1] + lengths[-1]))
    return _ranges(begins, lengths, np.int64)


def _fill(
    docs: Documents, layout: PackLayout, rows: int, length: int, row_of_slot: Index, fill: Fill, parts: bool
) -> Block:
    heads = np.searchsorted(layout.row, np.arange(rows), side="left")
    columns = _columns(docs, layout, rows, length, heads, fill)
    keys = docs.keys.take(layout.document[heads]).items(layout.offset[heads])
    if parts:
        made = KeyParts(np.bincount(layout.row, minlength=rows), docs.keys.take(layout.document))
        keys = replace(keys, parts=made)
    if not docs.dead:
        return Block(columns, keys)
    slots = np.array(sorted(docs.dead), dtype=np.int64)
    order = np.argsort(np.concatenate([np.arange(rows), row_of_slot[slots]]), kind="stable")
    reasons = {rows + i: docs.dead[int(slot)] for i, slot in enumerate(slots)}
    dead = {i: reasons[int(was)] for i, was in enumerate(order) if int(was) in reasons}
    return Block(columns, concat_keys([keys, docs.keys.take(slots)]).take(order), dead)


def _columns(
    docs: Documents, layout: PackLayout, rows: int, length: int, heads: Index, fill: Fill
) -> dict[str, npt.NDArray[Any]]:
    """Return the packed columns; copy limited numbers of tokens at a time, so that indices stay in the CPU cache."""
    dtypes = {name: values.dtype for name, values in docs.values.items()} | dict.fromkeys(
        ADDED_COLUMNS, np.dtype(np.int32)
    )
    flat = {name: np.zeros(rows * length, dtype=dtype) for name, dtype in dtypes.items()}
    for name in docs.values:
        if value := fill_for_column(fill, name):
            flat[name].fill(value)
    begins = (np.cumsum(docs.lengths) - docs.lengths)[layout.document] + layout.offset
    places = layout.row * length + layout.column
    segment = (np.arange(len(layout.row)) - heads[layout.row] + 1).astype(np.int32)
    cuts = np.searchsorted(np.cumsum(layout.tokens), np.arange(0, int(layout.tokens.sum()), _STRETCH), side="left")
    for low, high in pairwise([*np.unique(cuts).tolist(), len(layout.tokens)]):
        tokens = layout.tokens[low:high]
        source, target = _run_indices(begins[low:high], tokens), _run_indices(places[low:high], tokens)
        for name, values in docs.values.items():
            flat[name][target] = values[source]
        flat["segment_ids"][target] = np.repeat(segment[low:high], tokens)
        flat["positions"][target] = _ranges(layout.offset[low:high], tokens, np.int32)
    return {name: values.reshape(rows, length) for name, values in flat.items()}
