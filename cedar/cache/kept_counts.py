"""Kept counts: how many rows filters leave of each row group of files, in a file that ranks and later runs share.

40 bytes (a mark, and the SHA-256 of the rest), then an Arrow stream: a row for each file under each of the last
filters, with what the filters are known by, what the file is known by (its URL, size and stamp), and what is left of
its row groups. They are a cache: a run that reads finds the same. The least recently used make room: filters in a file,
and sources in the user's cache folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from cedar.core.errors import CedarError
from cedar.core.redact import redact_url
from cedar.datasets.kept_file import Damaged, read_file, sealed, unsealed, write_file
from cedar.datasets.listing import File
from cedar.store.eviction import EntryInfo, surplus
from cedar.store.ownership import ForeignFile, is_owned, make_owned, remove_tree
from cedar.store.private_folder import private_folder

KIND = "counts 2"
_FOLDER, _NAME = "counts", "filters.counts"
_MARK = b"cedarct2"
_SCHEMA = pa.schema([("filters", pa.large_string()), ("file", pa.large_string()), ("left", pa.large_list(pa.int64()))])
_FILTERS = 8  # whose counts are kept of a source
_BUDGET = 256 << 20  # bytes, of all sources in the user's cache folder

_log = logging.getLogger("cedar")
Counts: TypeAlias = dict[str, tuple[int, ...]]
"""What is left of the row groups of files, by what these are known by."""


class CountKey(NamedTuple):
    """A file, and what the filters are known by whose counts are kept there."""

    where: str
    filters: str


def file_mark(file: File) -> str | None:
    """What a file is known by; None where nothing tells it from another of its name and size."""
    if file.stamp is None:
        return None
    return _digest(file.known_by)


def place_of(source: Any, filters: str) -> CountKey | None:
    """Where the counts of a source over files are kept: beside its manifest, else in the user's cache folder."""
    manifest = getattr(source, "manifest", None)
    if manifest is not None and source.storage_options is None:
        return CountKey(f"{manifest}.counts", filters)
    folder = private_folder(_FOLDER)
    if folder is None:
        return None
    own = os.path.join(folder, _digest(list(source.paths)))  # its own: who counts holds a lock of it
    try:
        make_owned(own, KIND)
    except OSError:
        return None
    return CountKey(os.path.join(own, _NAME), filters)


def load_counts(place: CountKey) -> Counts:
    """What is kept under some filters; nothing where there is no such file, or it cannot be used, which is said."""
    counts = _load(place.where).get(place.filters, {})
    if counts and _in_cache(place.where):
        with contextlib.suppress(OSError):  # the time of its last use
            os.utime(place.where)
    return counts


def save_counts(place: CountKey, counts: Counts) -> None:
    """Keep counts as the latest ones; where that cannot be, it is said."""
    where, filters = place
    try:
        content = read_file(where)
        if content is not None and not content.startswith(_MARK[:-1]) and not _in_cache(where):
            raise ForeignFile("cedar did not write what is there")
        others = [(key, kept) for key, kept in _load(where, say=False).items() if key != filters]
        write_file(where, sealed(_MARK, _packed(dict([*others, (filters, counts)][-_FILTERS:]))))
    except (CedarError, OSError) as error:
        _log.warning("the counts %r cannot be kept: %s", redact_url(where), error)
        return
    if _in_cache(where):
        _evict(os.path.dirname(where))


def _in_cache(where: str) -> bool:
    """It lies in a folder that was made for it."""
    return os.path.basename(where) == _NAME and is_owned(os.path.dirname(where), KIND)


def _evict(used: str) -> None:
    """Remove the counts of sources that were not asked for the longest, beyond what all may have; not those at hand."""
    folder, entries = os.path.dirname(used), []
    for each in os.scandir(folder):
        with contextlib.suppress(OSError):
            if is_owned(each.path, KIND):
                status = os.stat(os.path.join(each.path, _NAME))
                entries.append(EntryInfo(each.path, "", status.st_size, status.st_mtime))
    for old in surplus(entries, _BUDGET):
        if old.name != used:
            remove_tree(old.name, KIND)


def _load(where: str, say: bool = True) -> dict[str, Counts]:
    try:
        data = read_file(where)
        return {} if data is None else _opened(data)
    except (CedarError, OSError, ValueError, TypeError, pa.ArrowException) as error:
        if say:
            _log.warning("the counts %r cannot be used: %s; rows are counted anew", redact_url(where), error)
        return {}


def _packed(kept: dict[str, Counts]) -> memoryview:
    rows = [(filters, file, list(left)) for filters, counts in kept.items() for file, left in counts.items()]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA) as writer:
        writer.write_table(pa.table(list(map(list, zip(*rows, strict=True))) or [[], [], []], schema=_SCHEMA))
    return memoryview(sink.getvalue())


def _opened(data: bytes) -> dict[str, Counts]:
    with pa.ipc.open_stream(pa.py_buffer(unsealed(_MARK, data))) as stream:
        if stream.schema != _SCHEMA:
            raise Damaged("its columns are not those of this version")
        table = stream.read_all()
    table.validate(full=True)
    kept: dict[str, Counts] = {}
    for filters, file, left in zip(*(table[name].to_pylist() for name in _SCHEMA.names), strict=True):
        if any(type(each) is not int or each < 0 for each in left):
            raise Damaged("it has counts that are none")
        kept.setdefault(filters, {})[file] = tuple(left)
    return kept


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:32]
