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
from cedar.datasets.files_io import BUCKETS, File, changed_runs, marks_of, run_of
from cedar.datasets.filesource import FileSource
from cedar.datasets.listing import Listing
from cedar.datasets.split_table import SplitTable

_MAX_SPLITS = 512  # a state records the listing only of sources with at most this many files and splits
_MAX_TEXT = 1536  # maximum characters of the encoded listing
_MAX_BYTES = 1 << 20  # maximum bytes of the listing after decompression
_CHANGES = {
    "gone": "were removed or damaged since the state was saved: their remaining rows are missing",
    "changed": "changed since the state was saved, and are read as they are now",
    "doubtful": "include one that changed since the state was saved, and are read as they are now",
    "unlike": "have other row counts than when the state was saved: the parts that differ join in the next epoch",
    "new": "were added since the state was saved, and join in the next epoch",
}
_COLUMNS = ("file", "start", "stop", "rows", "bytes", "part", "streaming")


def listing_text(source: Any) -> str | None:
    """Encode the files and splits of a source for a state; return None if it has no such splits or too many."""
    if not isinstance(source, FileSource) or source.splits_join_files:
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
    source: FileSource, saved: Saved, marks: Any, counted: bool, by_number: bool, in_order: bool = True
) -> tuple[FileSource, list[str]] | None:
    """Return the source with the files and splits of a state, and warnings about files that changed after it was saved.

    The result is None if no file changed.

    Args:
        source: the source with its current listing.
        saved: what the state records about the source.
        marks: the result of ``FileSource.marks`` when the state was saved; None if unknown.
        counted: whether positions in the epoch count rows; if so, the rows of a removed file keep their positions.
        by_number: whether positions fit whatever values the counted rows have.
        in_order: whether a position may be inside a removed file whose rows are not counted.
    """
    listing = source.listing
    now = {name: number for number, name in reversed([*enumerate(listing.names())])}
    if not any(name in now for name, _ in saved.files):
        raise SourceError(
            f"the data of {source.describe()} changed: the state is for other files, such as {saved.files[0][0]}",
            fix="read the files of the state, or set_epoch() to the next epoch without the state",
        )
    columns = {name: np.array(values, dtype=np.int64) for name, values in saved.columns.items()}
    file, part, splits = columns["file"].copy(), columns["part"].copy(), SplitTable.of(source.splits())
    known = [listing[now[name]] if name in now else _removed_file(listing, name, size) for name, size in saved.files]
    rewritten = _rewritten(source, known[: min(file[part < 0].tolist(), default=len(known))], marks)
    if source.digest() == saved.digest and not rewritten and UNCOUNTED not in part:
        return None
    lost: list[tuple[File, CedarError]] = list(listing.lost)
    urls: dict[str, list[str]] = {change: [] for change in _CHANGES}
    altered: dict[int, str] = {}  # file -> how positions may not fit its rows
    for number, (name, size) in enumerate(saved.files):
        own, position, url = np.flatnonzero(file == number), now.get(name), known[number].url
        if not len(own):  # it has no rows in this epoch
            continue
        why: CedarError = SourceError(f"{url} was removed: its rows are missing")
        missing = own
        if position is None:
            urls["gone"].append(url)
        elif position >= len(listing):  # it is damaged now
            why = listing.lost[position - len(listing)][1]
            urls["gone"].append(url)
        elif (part[own] == LOST).any():
            why = SourceError(f"{url} was damaged when the epoch began: its rows are missing")
        else:
            columns["file"][own], back = position, bool((part[own] <= GONE).any())
            if listing[position].size == size and number not in rewritten and not back:
                continue
            current = splits[splits.column("file") == position]
            missing = own[~_use_current_splits(columns, own, current)]
            why = SourceError(f"{url} has other row counts than when the epoch began: its rows are missing")
            doubtful = len(saved.files) > BUCKETS and listing[position].size == size
            unlike = len(missing) or len(own) != len(current)
            urls["unlike" if unlike else "doubtful" if doubtful else "changed"].append(url)
            change = "is back" if back else "may have changed" if doubtful else "has changed"
            altered[position] = f"{url} {change} since the state was saved"
        if len(missing):
            _mark_removed(columns, missing, counted)
            columns["file"][missing] = len(listing) + len(lost)
            lost.append((known[number], why))
    every = Listing(listing.files, tuple(lost))
    gone = columns["file"][(columns["part"] <= GONE) & (part >= 0)].tolist()
    altered |= {number: f"{every[number].url} is gone" for number in gone}
    urls["new"] = [listing[number].url for name, number in now.items() if name not in dict(saved.files)]
    other = source.share_known(replace(source))
    if not in_order:
        columns["part"] = np.where(columns["part"] == UNCOUNTED, ONE_SLOT, columns["part"])
    other.__dict__.update(
        listing=every, digest=partial(_constant, saved.digest), saved_row_bytes=(saved.row_bytes,),
        splits=partial(_constant, SplitTable(**columns | {"streaming": columns["streaming"].astype(bool)})),
        altered={} if by_number else altered,
    )  # fmt: skip
    messages = [
        f"{len(each)} file(s) of {source.describe()} {_CHANGES[change]}: "
        f"{', '.join(each[:3])}{', ...' if len(each) > 3 else ''}"
        for change, each in urls.items()
        if each
    ]
    return other, messages


def _rewritten(source: FileSource, files: Sequence[File], marks: Any) -> set[int]:
    """Return the numbers of the files in runs that changed since ``marks`` were made. A run may be a single file."""
    if marks is None:
        return set()
    own = source.marks if files == list(source.listing.files) else marks_of(files)
    if [len(each) for each in own] != [len(each) for each in marks]:
        raise ValueError("'files' does not match 'listings'")
    runs = changed_runs(len(files), marks, own)
    return {number for run in runs for number in run_of(range(len(files)), run)}


def _mark_removed(columns: dict[str, Any], missing: Any, counted: bool) -> None:
    """Mark splits as missing; if positions count rows, the missing rows keep their positions."""
    absent = np.where((columns["rows"][missing] >= 0) & counted, GONE, UNCOUNTED)
    columns["part"][missing] = np.where(columns["part"][missing] == LOST, LOST, absent)


def _constant(value: Any) -> Any:
    return value


def _removed_file(listing: Listing, name: str, size: int | None) -> File:
    """Return the listing entry of a file that no longer exists."""
    known, first_name = listing[0], listing.names()[0]
    root = known.path[: -len(first_name)] if known.path.endswith(first_name) else ""
    return replace(known, path=root + name, name=name, size=size, stamp=None)


def _use_current_splits(columns: dict[str, Any], own: Any, splits: Sequence[Any]) -> Any:
    """Replace each saved split of a changed file by the current one with the same start, and rows if they are known.

    Return which of them there are.
    """
    now = SplitTable.of(splits)
    numbers: dict[tuple[int, int], int] = {}
    for number, (start, rows) in enumerate(zip(now.column("start").tolist(), now.rows.tolist(), strict=True)):
        numbers[start, rows] = numbers[start, -1] = number
    keys = zip(columns["start"][own].tolist(), columns["rows"][own].tolist(), strict=True)
    found = np.array([numbers.get(key, -1) for key in keys])
    fits = found >= 0
    for name in ("stop", "part", "streaming"):
        columns[name][own[fits]] = now.column(name)[found[fits]].astype(np.int64)
    return fits
