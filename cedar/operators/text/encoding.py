"""Encode columns of text to ids: word by word with a cache if the tokenizer allows it, otherwise row by row."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow.compute as pc

from cedar.core.columns import Index, from_flags, from_numbers, numbers
from cedar.operators.text.cuts import Cutter
from cedar.operators.text.encoders import Encoder, UnfitIds
from cedar.operators.text.string_column import Mask, StringColumn, concatenate_lists, surround_lists, take_lists
from cedar.operators.text.words import Ids
from cedar.operators.transform import BadValues

_BYTES_PER_PASS = 1 << 18  # bytes per iteration, so that intermediate arrays stay in the processor's cache
_SPACE = ord(" ")


def encode(encoder: Encoder, strings: StringColumn, special: bool, longest: int) -> tuple[Ids, Index]:
    """Return the concatenated ids of all rows, and int64[rows + 1] offsets at which each row's ids begin.

    Args:
        special: whether to add the special ids that the tokenizer adds before and after a text.
        longest: maximum number of bytes to pass to the tokenizer at once.

    Raises:
        BadValues: rows contain a part of more than ``longest`` bytes that cannot be cut, or the tokenizer failed.
    """
    traits = encoder.traits
    if traits.cutter is None or (special and encoder.special_ids is None):
        return _encode_rows(encoder, strings, special, longest)
    try:
        return _encode_unblocked(encoder, strings, special, longest)
    except UnfitIds:  # encode row by row to find the rows that fail
        return _encode_rows(encoder, strings, special, longest)


def _encode_unblocked(encoder: Encoder, strings: StringColumn, special: bool, longest: int) -> tuple[Ids, Index]:
    """Encode rows in pieces. Rows that contain the name of a special token are encoded whole."""
    with_names = _rows_with_names(strings, encoder.traits.whole)
    if with_names is None:
        return _add_special_ids(encoder, *_encode_pieces(encoder, strings, longest), special)
    free, others = np.flatnonzero(~with_names), np.flatnonzero(with_names)
    with _renumber_bad_rows(free):
        first = _add_special_ids(encoder, *_encode_pieces(encoder, _rows(strings, free), longest), special)
    with _renumber_bad_rows(others):
        second = _encode_rows(encoder, _rows(strings, others), special, longest)
    return take_lists(*concatenate_lists(first, second), np.argsort(np.concatenate([free, others])))


def _rows(strings: StringColumn, rows: Index) -> StringColumn:
    return StringColumn.of(strings.array().take(from_numbers(rows)))


@contextmanager
def _renumber_bad_rows(rows: Index) -> Iterator[None]:
    """Convert the row indices of BadValues from positions in ``rows`` to row indices of the column."""
    try:
        yield
    except BadValues as bad:
        raise BadValues({int(rows[row]): why for row, why in bad.rows.items()}, bad.fix) from None


def _add_special_ids(encoder: Encoder, ids: Ids, offsets: Index, special: bool) -> tuple[Ids, Index]:
    begin, end = encoder.special_ids if special and encoder.special_ids else ([], [])
    return surround_lists(ids, offsets, begin, end)


def _rows_with_names(strings: StringColumn, names: tuple[str, ...]) -> Mask | None:
    """Return a mask of the rows that contain one of the names; None if no row does."""
    if not names or not len(strings.bytes):
        return None
    firsts = {name.encode()[0] for name in names if name}
    seen = np.zeros(256, dtype=np.bool_)
    seen[list(firsts)] = True
    data = strings.bytes
    if not (data == firsts.pop() if len(firsts) == 1 else seen.take(data)).any():
        return None
    matches = pc.match_substring_regex(strings.array(), "|".join(re.escape(name) for name in names if name))
    mask: Mask = matches.to_numpy(zero_copy_only=False)
    return mask if mask.any() else None


# ---- row by row ------------------------------------------------------------------------------------------------------


def _encode_rows(encoder: Encoder, strings: StringColumn, special: bool, longest: int) -> tuple[Ids, Index]:
    """Encode each row whole; of equal rows, only one is encoded."""
    long = np.flatnonzero(strings.lengths > longest)
    if len(long):
        raise _too_long({int(row): int(strings.lengths[row]) for row in long}, longest, "as a whole")
    column = strings.array()
    if strings.missing is not None:  # nulls are not encoded
        column = pc.if_else(from_flags(~strings.missing), column, None)
    encoded = column.dictionary_encode()
    rows = numbers(encoded.indices.fill_null(len(encoded.dictionary)))  # an empty list after the others
    try:
        ids, counts = encoder.encode(encoded.dictionary.to_pylist(), special)
    except UnfitIds as unfit:
        bad = np.flatnonzero(np.isin(rows, list(unfit.reasons)))
        whys = {int(row): unfit.reasons[int(rows[row])] for row in bad}
        fix = "fix the tokenizer, or drop such strings beforehand"
        if any("input_ids" in why for why in whys.values()):  # a slow tokenizer of transformers, used as a function
            fix = "give the tokenizer's function that returns ids: text.tokenize(tokenizer.encode)"
        raise BadValues(whys, fix) from None
    offsets = np.concatenate([[0], np.cumsum(counts), [len(ids)]])
    return (ids, offsets[:-1]) if len(counts) == len(strings) else take_lists(ids, offsets, rows)


# ---- in pieces -------------------------------------------------------------------------------------------------------


def _encode_pieces(encoder: Encoder, strings: StringColumn, longest: int) -> tuple[Ids, Index]:
    cutter = encoder.traits.cutter
    assert cutter is not None
    if encoder.traits.prefix:
        strings = _add_space_prefix(strings)
    offsets = np.zeros(len(strings) + 1, dtype=np.int64)
    parts: list[Ids] = []
    row, tokens = 0, 0  # the first unfinished row; the number of ids so far
    for bounds in _piece_bounds(cutter, strings):
        _check_piece_lengths(bounds, strings, longest)
        ids, counts = encoder.token_cache.ids(strings.data, bounds, encoder.encode_pieces)
        parts.append(ids)
        upto = int(np.searchsorted(strings.offsets, bounds[-1], side="right"))
        id_offsets = np.concatenate([[0], np.cumsum(counts)])
        offsets[row:upto] = tokens + id_offsets[np.searchsorted(bounds, strings.offsets[row:upto])]
        row, tokens = upto, tokens + len(ids)
    return (parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int32), *parts])), offsets


def _piece_bounds(cutter: Cutter, strings: StringColumn) -> Iterator[Index]:
    """Yield arrays of bounds between consecutive pieces. Row boundaries are always bounds."""
    data, offsets = strings.data, strings.offsets
    start, end = int(offsets[0]), int(offsets[-1])
    piece_start = position = start  # where the unfinished piece and the unscanned data begin
    while position < end:
        stop = min(position + _BYTES_PER_PASS, end)
        mask = cutter.cuts(data, position, stop)
        low, high = np.searchsorted(offsets, (position, stop))
        mask[offsets[low:high] - position] = True
        cuts = np.flatnonzero(mask) + position
        first = 1 if len(cuts) and cuts[0] == piece_start else 0
        last = [end] if stop == end else []
        bounds = np.concatenate([[piece_start], cuts[first:], last]).astype(np.int64, copy=False)
        if len(bounds) > 1:
            yield bounds
            piece_start = int(bounds[-1])
        position = stop


def _check_piece_lengths(bounds: Index, strings: StringColumn, longest: int) -> None:
    lengths = np.diff(bounds)
    if not len(lengths) or int(lengths.max()) <= longest:
        return
    pieces = np.flatnonzero(lengths > longest)
    rows = np.searchsorted(strings.offsets, bounds[pieces], side="right") - 1
    raise _too_long(dict(zip(rows.tolist(), lengths[pieces].tolist(), strict=True)), longest, "that cannot be cut")


def _too_long(rows: dict[int, int], longest: int, how: str) -> BadValues:
    whys = {row: f"tokenize: {size:,} bytes {how}; the limit is {longest:,}" for row, size in rows.items()}
    return BadValues(whys, "cut such strings beforehand, or give tokenize(longest=) more bytes")


def _add_space_prefix(strings: StringColumn) -> StringColumn:
    """Add a space at the start of each row that is not empty and does not begin with a space."""
    starts, nonempty = strings.offsets[:-1], strings.lengths > 0
    needs_space = nonempty.copy()
    needs_space[nonempty] = strings.data[starts[nonempty]] != _SPACE
    shift = np.concatenate([[0], np.cumsum(needs_space)])
    data = np.insert(strings.bytes, starts[needs_space] - strings.offsets[0], _SPACE)
    return StringColumn(data, strings.offsets - strings.offsets[0] + shift, strings.missing)
