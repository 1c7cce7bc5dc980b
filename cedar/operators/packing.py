"""The input of ``pack`` as flat arrays, and its kernels, which place documents into rows of a fixed length.

``pad`` and ``pack`` share fill values: the numbers written after the end of a list; one for all columns, or a dict.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cedar.core.block import Block, Skipped
from cedar.core.columns import UNKNOWN, Column, ColumnType, Index, TensorType, numbers
from cedar.core.cursor import KeyParts, Keys, concat_keys
from cedar.core.errors import PipelineError, RowError, Site, invalid_call
from cedar.core.groups import plain
from cedar.core.stream import Rows
from cedar.core.values import misfits

ADDED_COLUMNS = ("segment_ids", "positions")


@dataclass(frozen=True, slots=True)
class Documents:
    """The tokens of several consecutive rows.

    Args:
        values: for each column, the concatenated tokens of all rows.
        lengths: the number of tokens per slot (row position), int64; 0 if the row was skipped.
        keys: one key per slot.
        dead: maps the slot of a skipped row to the reason.
    """

    values: dict[str, npt.NDArray[Any]]
    lengths: Index
    keys: Keys
    dead: Mapping[int, Skipped]

    def __len__(self) -> int:
        return len(self.lengths)

    def slice(self, start: int, stop: int) -> Documents:
        """Return slots ``start`` to ``stop`` without copying tokens."""
        if start == 0 and stop >= len(self):
            return self
        low, high = int(self.lengths[:start].sum()), int(self.lengths[:stop].sum())
        return Documents(
            {name: column[low:high] for name, column in self.values.items()},
            self.lengths[start:stop],
            self.keys.take(slice(start, stop)),
            {slot - start: why for slot, why in self.dead.items() if start <= slot < stop},
        )


def concat_documents(runs: Sequence[Documents]) -> Documents:
    """Concatenate several runs of documents."""
    if len(runs) == 1:
        return runs[0]
    dead: dict[int, Skipped] = {}
    slots = 0
    for run in runs:
        dead.update({slot + slots: why for slot, why in run.dead.items()})
        slots += len(run)
    return Documents(
        {name: np.concatenate([run.values[name] for run in runs]) for name in runs[0].values},
        np.concatenate([run.lengths for run in runs]),
        concat_keys([run.keys for run in runs]),
        dead,
    )


def token_dtype(kind: ColumnType) -> np.dtype[Any] | None:
    """Return the dtype of the numbers in a column of lists; None if the column does not contain lists of numbers."""
    if isinstance(kind, TensorType):
        return np.dtype(kind.dtype) if len(kind.shape) == 1 and np.dtype(kind.dtype).kind in "biuf" else None
    if not isinstance(kind, pa.DataType) or not (pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        return None
    inner = kind.value_type
    number = pa.types.is_integer(inner) or pa.types.is_floating(inner) or pa.types.is_boolean(inner)
    return np.dtype(inner.to_pandas_dtype()) if number else None


def token_columns(types: Mapping[str, ColumnType], wanted: Sequence[str], site: Site | None = None) -> tuple[str, ...]:
    """Return the columns to pack: those in ``wanted``, or all columns of lists of numbers."""
    wrong = [n for n in wanted if types.get(n, UNKNOWN) is not UNKNOWN and token_dtype(types[n]) is None]
    if wrong:
        raise PipelineError(
            "pack needs lists of numbers: " + ", ".join(f"{n!r} is {types[n]}" for n in wrong),
            site=site,
            fix="name the token columns, or tokenize with map first",
        )
    taken = [n for n in ADDED_COLUMNS if n in (wanted or types)]
    if taken:
        raise PipelineError(
            f"pack adds the columns {' and '.join(ADDED_COLUMNS)}, but the input already has {taken[0]!r}",
            site=site,
            fix="rename or drop it",
        )
    chosen = tuple(wanted) or tuple(n for n, kind in types.items() if token_dtype(kind) is not None)
    if not chosen and UNKNOWN not in types.values():
        raise PipelineError(
            "pack: no column is a list of numbers: " + ", ".join(f"{n!r} is {kind}" for n, kind in types.items()),
            site=site,
            fix="tokenize with map first",
        )
    return chosen


def documents(rows: Rows, columns: Sequence[str], site: Site | None) -> Documents:
    """Gather rows and store their tokens as flat arrays.

    Raises:
        RowError: a row's columns have different lengths, or a list or a number in a list is null.
    """
    return block_documents(rows.gather(), columns, site)


def block_documents(block: Block, columns: Sequence[str], site: Site | None) -> Documents:
    """Return the documents of a block, as ``documents`` does for rows."""
    token_columns({name: block.types[name] for name in columns}, columns, site)
    lengths: Index | None = None
    values = {}
    for name in columns:
        values[name], counts = _flat(block, name, plain(block.columns[name]), site)
        if lengths is not None and not np.array_equal(lengths, counts):
            row = int(np.flatnonzero(lengths - counts)[0])
            raise RowError(
                f"pack: columns {columns[0]!r} and {name!r} have {lengths[row]} and {counts[row]} tokens in one row",
                site=site,
                row=block.live_keys().ref(row),
                fix="columns that are packed together must have equal lengths in every row",
            )
        lengths = counts
    slots = np.zeros(block.slots, dtype=np.int64)
    if lengths is not None:
        slots[block.live_slots()] = lengths
    return Documents(values, slots, block.keys, dict(block.dead))


def _flat(block: Block, name: str, column: Column, site: Site | None) -> tuple[npt.NDArray[Any], Index]:
    if not isinstance(column, pa.Array):
        return column.reshape(-1), np.full(len(column), column.shape[1], dtype=np.int64)
    if column.null_count:
        _refuse(block, name, int(np.argmax(np.asarray(column.is_null()))), "is missing (null)", site)
    lengths = numbers(pc.list_value_length(column)).astype(np.int64)
    flat: Any = cast("Any", column).flatten()
    if flat.null_count:
        token = int(np.argmax(np.asarray(flat.is_null())))
        row = int(np.searchsorted(np.cumsum(lengths), token, side="right"))
        _refuse(block, name, row, "holds a missing number (null)", site)
    return flat.to_numpy(zero_copy_only=False) if pa.types.is_boolean(flat.type) else numbers(flat), lengths


def _refuse(block: Block, name: str, row: int, problem: str, site: Site | None) -> None:
    raise RowError(
        f"pack: the list in column {name!r} {problem}",
        site=site,
        row=block.live_keys().ref(row),
        fix="fill or filter missing values before pack()",
    )


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


Fill: TypeAlias = "float | tuple[tuple[str, float], ...]"


def as_fill(value: Any, label: str) -> Fill:
    """Return a number unchanged, and a dict of numbers by column as sorted pairs, so that operators stay hashable.

    Examples:
        >>> as_fill({"labels": -100}, "pack")
        (('labels', -100),)
    """
    given = dict(value) if isinstance(value, Mapping | tuple) else {"": value}
    for name, number in given.items():
        if not isinstance(name, str) or not isinstance(number, int | float | np.number | np.bool_):
            raise invalid_call(
                f"{label}(value={value!r}): lists of numbers are filled with a number",
                fix='give a number, or a dict of numbers by column such as {"labels": -100}',
            )
    return tuple(sorted(given.items())) if isinstance(value, Mapping | tuple) else value


def fill_for_column(fill: Fill, column: str) -> float:
    """Return the fill value of a column; 0 for a column that is not in the dict."""
    return dict(fill).get(column, 0) if isinstance(fill, tuple) else fill


def check_fill(fill: Fill, dtypes: Mapping[str, np.dtype[Any] | None], label: str, site: Site | None) -> None:
    """Raise PipelineError for a fill value that its column cannot contain, or of a column that is not filled.

    Args:
        fill: the fill value, as ``as_fill`` returns it.
        dtypes: the dtype of each filled column; None if it is unknown before a run.
        label: the operator's label.
        site: the user's line.
    """
    for name in dict(fill) if isinstance(fill, tuple) else ():
        if name not in dtypes:
            raise PipelineError(
                f"{label}: value= names {name!r}, which is not one of its columns",
                site=site,
                fix=f"name one of {', '.join(map(repr, dtypes)) or 'the list columns'}",
            )
    for name, dtype in dtypes.items():
        if dtype is not None and not _can_hold(dtype, fill_for_column(fill, name)):
            raise PipelineError(
                f"{label}: column {name!r} of {dtype} cannot hold the value {fill_for_column(fill, name)!r}",
                site=site,
                fix=f"give a value of {dtype}, or cast the lists first",
            )


def _can_hold(dtype: np.dtype[Any], value: float) -> bool:
    if dtype.kind == "b":
        return value in (0, 1)
    whole = isinstance(value, bool | np.bool_) or (dtype.kind != "f" and float(value).is_integer())
    return not misfits([int(value) if whole else value], pa.from_numpy_dtype(dtype))
