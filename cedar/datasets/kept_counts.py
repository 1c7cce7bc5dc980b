"""Kept counts: how many rows of each row group pass the filters, saved for other ranks and later runs.

Each combination of source and filters has one entry. The entry has a row per file: the file's identity (URL, size and
stamp) and the counts of its row groups. A run that reads all of the data would find the same counts.
"""

from __future__ import annotations

import hashlib
import json
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from cedar.datasets.files_io import File
from cedar.datasets.filesource import FileSource
from cedar.store.entry import Damaged, Entry, table_body, table_of
from cedar.store.keep import load, save, store_next_to, user_place
from cedar.store.place import Place, name_of

_SCHEMA = pa.schema([("file", pa.large_string()), ("left", pa.large_list(pa.int64()))])
_BUDGET = 256 << 20  # maximum bytes of a store next to a manifest

Counts: TypeAlias = dict[str, tuple[int, ...]]
"""The counts of the row groups of files, by the identity of the file."""


class CountKey(NamedTuple):
    """The store and the entry name of the counts for a source and its filters."""

    place: Place
    name: str


def file_mark(file: File) -> str | None:
    """Return a digest of a file's identity; None if no stamp (such as a modification time) would reveal changes."""
    if file.stamp is None:
        return None
    return hashlib.sha256(json.dumps(file.identity_parts).encode()).hexdigest()[:32]


def place_of(source: FileSource, filters: str) -> CountKey | None:
    """Return where the counts of a file source are saved: next to its manifest, else in the user's store."""
    if source.manifest is not None and source.storage_options is None:
        return CountKey(store_next_to(f"{source.manifest}.counts", _BUDGET), name_of("counts", filters))
    place = user_place()
    return None if place is None else CountKey(place, name_of("counts", [list(source.paths), filters]))


def load_counts(key: CountKey) -> Counts:
    """Return the saved counts. If they cannot be used, log that and return no counts."""
    return load(*key, _counts) or {}


def save_counts(key: CountKey, counts: Counts) -> None:
    """Save counts; log a failure."""
    rows = [list(counts), [list(left) for left in counts.values()]]
    save(*key, table_body(pa.table(rows, schema=_SCHEMA)))


def _counts(entry: Entry) -> Counts:
    table = table_of(entry)
    if table.schema != _SCHEMA:
        raise Damaged("its columns are not those of this version")
    left = [tuple(each) for each in table["left"].to_pylist()]
    if any(type(each) is not int or each < 0 for counts in left for each in counts):
        raise Damaged("it has invalid counts")
    return dict(zip(table["file"].to_pylist(), left, strict=True))
