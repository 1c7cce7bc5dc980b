"""Restore a source's file list from a saved state, so that an epoch can continue after files changed.

A state records the files of a source and their splits, and the rest of the epoch uses these splits. cedar reads the
current contents of a changed file, omits the rows of a removed file, and adds new files only in the next epoch.
Positions in the state therefore remain valid.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from cedar.core.errors import CedarError, SourceError
from cedar.datasets.base import GONE, LOST, ONE_SLOT, UNCOUNTED, row_bytes_of
from cedar.datasets.files_io import File
from cedar.datasets.filesource import FileSource
from cedar.datasets.listing import Listing
from cedar.datasets.split_table import SplitTable

_MAX_SPLITS = 512  # a state records the listing only of sources with at most this many files and splits
_MAX_TEXT = 1536  # maximum characters of the encoded listing
_MAX_BYTES = 1 << 20  # maximum bytes of the listing after decompression
_COLUMNS = ("file", "start", "stop", "rows", "bytes", "part", "streaming")


def listing_text(source: Any) -> str | None:
    """Encode the files and splits of a source for a state; return None if it has no files or too many."""
    if not isinstance(source, FileSource):
        return None
    splits, listing = SplitTable.of(source.splits()), source.listing
    if max(len(splits), len(listing.every)) > _MAX_SPLITS:
        return None
    columns = {name: splits.column(name).astype(np.int64).tolist() for name in _COLUMNS}
    columns["part"] = [max(part, UNCOUNTED) for part in columns["part"]]
    files = [[name, file.size] for name, file in zip(listing.names(), listing.every, strict=True)]
    payload = json.dumps([source.digest(), row_bytes_of(source), files, columns], separators=(",", ":")).encode()
    frame = pa.Codec("zstd", compression_level=19).compress(payload, asbytes=True)
    text = f"{len(payload)} {base64.b85encode(frame).decode()}"
    return text if len(text) <= _MAX_TEXT else None


@dataclass(frozen=True)
class Saved:
    """What a state records about a source.

    Args:
        digest: the source's digest.
        row_bytes: estimated decoded bytes of a row, None if unknown.
        files: the name and size of each file.
        columns: the fields of all splits, one list per field of ``Split``.
    """

    digest: str
    row_bytes: float | None
    files: list[tuple[str, int | None]]
    columns: dict[str, list[int]]

    @property
    def misses_uncounted(self) -> bool:
        """Whether files were missing whose rows are not counted, so that positions do not fit if they are back."""
        return UNCOUNTED in self.columns["part"]

    @staticmethod
    def of(text: str) -> Saved:
        """Decode the output of ``listing_text``; raise ValueError if ``text`` is invalid."""
        length, _, packed = text.partition(" ")
        try:
            if not 0 < int(length) <= _MAX_BYTES:
                raise ValueError(length)
            frame = base64.b85decode(packed)
            payload = json.loads(pa.Codec("zstd").decompress(frame, int(length), asbytes=True))
            digest, row_bytes, files, columns = payload
            files = [(str(name), None if size is None else int(size)) for name, size in files]
            columns = {name: [int(value) for value in columns[name]] for name in _COLUMNS}
        except (ValueError, TypeError, KeyError, OSError, RecursionError) as error:
            raise ValueError("'listings' cannot be read") from error
        lengths = {len(values) for values in columns.values()}
        if len(lengths) != 1 or not all(0 <= file < len(files) for file in columns["file"]):
            raise ValueError("'listings' is not valid")
        return Saved(str(digest), row_bytes, files, columns)


def as_saved(
    source: FileSource, saved: Saved, marks: Any, counted: bool, in_order: bool = True
) -> tuple[FileSource, list[str]]:
    """Return the source with the files and splits of a state, and warnings about files that changed after it was saved.

    Args:
        source: the source with its current listing.
        saved: what the state records about the source.
        marks: the result of ``FileSource.marks`` when the state was saved.
        counted: whether positions in the epoch count rows; if so, the rows of a removed file keep their positions.
        in_order: whether a position may be inside a removed file whose rows are not counted.
    """
    now = {name: number for number, name in enumerate(source.listing.names())}
    if not any(name in now for name, _ in saved.files):
        raise SourceError(
            f"the data of {source.describe()} changed: the state is for other files, such as {saved.files[0][0]}",
            fix="read the files of the state, or set_epoch() to the next epoch without the state",
        )
    splits = SplitTable.of(source.splits())
    columns = {name: np.array(values, dtype=np.int64) for name, values in saved.columns.items()}
    file = columns["file"].copy()
    lost: list[tuple[File, CedarError]] = list(source.listing.lost)
    changed, gone = [], []
    for number, (name, size) in enumerate(saved.files):
        own_splits = np.flatnonzero(file == number)
        position = now.get(name)
        if position is not None and position >= len(source.listing):  # the file is damaged now
            gone.append(source.listing[position].url)
            _mark_removed(columns, own_splits, counted)
            columns["file"][own_splits] = position
            continue
        if position is None or (columns["part"][own_splits] == LOST).any():
            known = _removed_file(source.listing, name, size) if position is None else source.listing[position]
            if position is None:
                gone.append(known.url)
                _mark_removed(columns, own_splits, counted)
            columns["file"][own_splits] = len(source.listing) + len(lost)
            why = "was removed" if position is None else "was damaged when the epoch began"
            lost.append((known, SourceError(f"{known.url} {why}: its rows are missing")))
            continue
        columns["file"][own_splits] = position
        if source.listing[position].size != size or (columns["part"][own_splits] <= GONE).any():
            changed.append(source.listing[position].url)
            current = splits[splits.column("file") == position]
            _use_current_splits(columns, own_splits, current, source.listing[position])
    new = [source.listing[number].url for name, number in now.items() if name not in dict(saved.files)]
    other = source.share_known(replace(source))
    listing = Listing(source.listing.files, tuple(lost))
    # Files that were removed, or came back, since the state was saved.
    uncounted = (columns["part"] == UNCOUNTED) != (np.array(saved.columns["part"]) == UNCOUNTED)
    if not in_order:
        columns["part"] = np.where(columns["part"] == UNCOUNTED, ONE_SLOT, columns["part"])
    table = SplitTable(**columns | {"streaming": columns["streaming"].astype(bool)})
    other.__dict__.update(
        listing=listing, splits=partial(_constant, table), digest=partial(_constant, saved.digest),
        marks=marks, saved_row_bytes=(saved.row_bytes,),
        gone=frozenset(columns["file"][uncounted].tolist()),
    )  # fmt: skip
    messages = [
        f"{len(urls)} file(s) of {source.describe()} {what}: {', '.join(urls[:3])}{', ...' if len(urls) > 3 else ''}"
        for urls, what in (
            (gone, "were removed or damaged since the state was saved: their remaining rows are missing"),
            (changed, "changed since the state was saved, and are read as they are now"),
            (new, "were added since the state was saved, and join in the next epoch"),
        )
        if urls
    ]
    return other, messages


def _mark_removed(columns: dict[str, Any], own_splits: Any, counted: bool) -> None:
    """Mark the splits of a removed file as missing; if positions count rows, the missing rows keep their positions."""
    absent = np.where((columns["rows"][own_splits] >= 0) & counted, GONE, UNCOUNTED)
    columns["part"][own_splits] = np.where(columns["part"][own_splits] == LOST, LOST, absent)


def _constant(value: Any) -> Any:
    return value


def _removed_file(listing: Listing, name: str, size: int | None) -> File:
    """Return the listing entry of a file that no longer exists."""
    known, first_name = listing[0], listing.names()[0]
    root = known.path[: -len(first_name)] if known.path.endswith(first_name) else ""
    return replace(known, path=root + name, name=name, size=size, stamp=None)


def _use_current_splits(columns: dict[str, Any], own_splits: Any, splits: Sequence[Any], file: File) -> None:
    """Replace the saved splits of a changed file by its current ones; raise SourceError if their row counts differ."""
    now = SplitTable.of(splits)
    rows, before = now.rows.astype(np.int64), columns["rows"][own_splits]
    if len(now) != len(own_splits) or ((before >= 0) & (rows != before)).any():
        raise SourceError(
            f"{file.url} has changed: its splits or row counts differ from the saved state",
            fix="restore the file as it was, or set_epoch() to the next epoch without the state",
        )
    for name in ("start", "stop", "part", "streaming"):
        columns[name][own_splits] = now.column(name).astype(np.int64)
