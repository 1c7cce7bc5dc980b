"""Batches of one size from pieces of any size: dicts of ndarrays, lists as ``name/values`` and ``name/offsets``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from benchmarks.peers.workload import Array

Piece = dict[str, Array]


def rows_of(piece: Piece) -> int:
    for name, column in piece.items():
        if name.endswith("/offsets"):
            return len(column) - 1
        if "/" not in name:
            return len(column)
    return 0


def cut(piece: Piece, start: int, stop: int) -> Piece:
    """Rows ``start`` to ``stop``; views, but for the offsets, which begin with 0 again."""
    made: Piece = {}
    for name, column in piece.items():
        if name.endswith("/values"):
            continue
        if name.endswith("/offsets"):
            values = piece[name.removesuffix("offsets") + "values"]
            offsets = column[start : stop + 1]
            made[name.removesuffix("offsets") + "values"] = values[offsets[0] : offsets[-1]]
            made[name] = offsets - offsets[0] if offsets[0] else offsets
        else:
            made[name] = column[start:stop]
    return made


def joined(pieces: list[Piece]) -> Piece:
    """One piece of several."""
    if len(pieces) == 1:
        return pieces[0]
    made: Piece = {}
    for name in pieces[0]:
        columns = [piece[name] for piece in pieces]
        if name.endswith("/offsets"):
            ends = np.cumsum([0] + [column[-1] for column in columns[:-1]])
            tails = [column[1:] + end for column, end in zip(columns, ends, strict=True)]
            made[name] = np.concatenate([columns[0][:1], *tails])
        else:
            made[name] = np.concatenate(columns)
    return made


def rebatched(pieces: Iterable[Piece], size: int) -> Iterator[Piece]:
    """Batches of ``size`` rows; the last one may be shorter."""
    waiting: list[Piece] = []
    count = 0
    for piece in pieces:
        start, rows = 0, rows_of(piece)
        while count + rows - start >= size:
            stop = start + size - count
            yield joined([*waiting, cut(piece, start, stop)])
            waiting, count, start = [], 0, stop
        if start < rows:
            waiting.append(cut(piece, start, rows))
            count += rows - start
    if waiting:
        yield joined(waiting)
