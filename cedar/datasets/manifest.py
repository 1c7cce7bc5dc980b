"""Manifests: files with a source's listing and footers, which ranks read instead of listing the files themselves.

A manifest starts with 64 bytes that identify the format. An Arrow stream with one row per file follows, in the format
of a cache entry. cedar does not list the files again; it detects a changed file when it reads the file. A manifest can
only contain files below the paths for which it was created. The counts of rows that pass filters are kept next to it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from cedar.core.errors import SourceError, invalid_call
from cedar.core.limits import DEFAULT, Limits
from cedar.core.printable import StorageOptions, redact_url
from cedar.core.remote import as_options, is_remote, local_path
from cedar.datasets.files_io import File, concurrently, reading, stamps_differ
from cedar.datasets.filesource import FileSource, Paths, as_paths
from cedar.datasets.footers import FileSchema, KeptFooters, kind_of, pack_footer
from cedar.datasets.listing import Listing, below, list_files
from cedar.store.entry import PAGE, Damaged, Entry, opened, sealed, table_body, table_of
from cedar.store.keep import exclusive_at, load, read_file, save, storage_of, store_next_to, user_place, write_file
from cedar.store.place import Place, name_of

_log = logging.getLogger("cedar")
_MARK = b"cedarmf2".ljust(PAGE, b"\0")
_NAME, _VERSIONS = "manifest", {"format": "2"}
_PATHS = b"cedar.paths"
_FOOTERS_AT_ONCE = 256  # parsed footers in memory at a time; a footer of 20 KB takes 1 MB
_THREADS = 64  # for footer requests, which mostly wait for storage
_SCHEMA = pa.schema(
    [
        ("given", pa.int32()),
        ("path", pa.large_string()),
        ("name", pa.large_string()),
        ("size", pa.int64()),
        ("stamp", pa.large_string()),
        ("kind", pa.int64()),
        ("rows", pa.large_list(pa.int64())),
        ("bytes", pa.large_list(pa.int64())),
        ("footer", pa.large_binary()),
    ]
)
_NULLABLE = {"size", "stamp"}
SUFFIXES = (".parquet", ".parq", ".pq")


@dataclass(frozen=True)
class Manifest:
    """The listing and the footers of a dataset; ``columns`` is the table from which both were read."""

    listing: Listing
    footers: KeptFooters
    columns: pa.Table


@dataclass(frozen=True)
class ManifestResult:
    """The result of ``write_manifest``.

    Args:
        files, row_groups, rows: how many files, row groups and rows the manifest covers.
        read: number of files whose footers were read; the manifest already had the footers of the other files.
        bytes: size of the manifest file.
    """

    files: int
    row_groups: int
    rows: int
    read: int
    bytes: int

    def __str__(self) -> str:
        return (
            f"{self.files:,} files, {self.row_groups:,} row groups, {self.rows:,} rows; "
            f"{self.read:,} footers read, {self.files - self.read:,} unchanged; {self.bytes:,} bytes"
        )


def write_manifest(
    paths: Paths, out: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None
) -> ManifestResult:
    """Write a manifest for ``read_parquet(paths, manifest=out)``: list Parquet files and read their footers.

    If ``out`` is already a manifest, only footers of new files and of files whose size, time or tag changed are read.

    Args:
        paths: the same paths as for ``read_parquet``.
        out: a local path or any fsspec URL.
        storage_options: options for the filesystems of ``paths`` and ``out``.

    Raises:
        PipelineError: ``out`` exists and is not a manifest, or is a manifest for other paths.
        SourceError: no file matches, a file cannot be read, or the manifest cannot be written.

    Examples:
        >>> import pyarrow as pa, pyarrow.parquet as pq
        >>> pq.write_table(pa.table({"x": [1, 2]}), "a.parquet")
        >>> write_manifest("*.parquet", "x.manifest").read, write_manifest("*.parquet", "x.manifest").read
        (1, 0)
        >>> import cedar
        >>> cedar.read_parquet("*.parquet", manifest="x.manifest").count()
        2
    """
    given, where, options = as_paths(paths, "write_manifest"), os.fspath(out), as_options(storage_options)
    with exclusive_at(where):
        return _build(given, where, _load(given, where, options), options)[1]


def manifest_of(paths: Sequence[str], where: str, options: StorageOptions | None = None) -> Manifest:
    """Load the manifest of ``paths``; if it is missing or damaged, one process per machine creates it.

    Raises:
        PipelineError, SourceError: as ``write_manifest``.
    """
    manifest = _load(paths, where, options, quiet=True)
    if manifest is None:
        with exclusive_at(where):
            manifest = _load(paths, where, options)  # another process may have created it
            if manifest is None:
                manifest = _build(paths, where, None, options)[0]
    return manifest


# ---- creating ------------------------------------------------------------------------------------------------------


def _build(
    paths: Sequence[str], where: str, before: Manifest | None, options: StorageOptions | None
) -> tuple[Manifest, ManifestResult]:
    normalized = _normalized(paths)
    listing = list_files(paths, SUFFIXES, options)
    owner = _owners(listing, normalized, options)
    known = _unchanged(listing, before)
    schemas: list[FileSchema] = []
    new_kinds: dict[int, int] = {}  # schema index in the previous manifest -> in this one
    kinds: list[int] = []
    rows: list[Any] = []
    sizes: list[Any] = []
    footers: list[Any] = []
    for low in range(0, len(listing), _FOOTERS_AT_ONCE):
        places = range(low, min(low + _FOOTERS_AT_ONCE, len(listing)))
        read = iter(concurrently(pack_footer, [listing[i] for i in places if i not in known], _THREADS))
        for place in places:
            if place not in known:
                footer, *reported = next(read)
                kind = kind_of(footer, listing[place], schemas)
            else:
                assert before is not None
                old, row = int(before.footers.kinds[known[place]]), before.columns.slice(known[place], 1)
                if old not in new_kinds:
                    new_kinds[old] = kind_of(before.footers[known[place]], listing[place], schemas)
                kind, reported = new_kinds[old], [row[name][0].as_py() for name in ("rows", "bytes", "footer")]
            kinds.append(kind)
            rows.append(reported[0])
            sizes.append(reported[1])
            footers.append(reported[2])
    stamps = [None if f.stamp is None else json.dumps(f.stamp) for f in listing]
    columns = pa.table(
        [owner, [f.path for f in listing], [f.name for f in listing], [f.size for f in listing], stamps,
         kinds, rows, sizes, footers],
        schema=_SCHEMA.with_metadata({_PATHS: json.dumps(normalized)}),
    )  # fmt: skip
    data = _as_bytes(columns)
    try:
        write_file(where, data, options)
    except OSError as error:
        raise SourceError(
            f"the manifest {redact_url(where)!r} cannot be written: {error}",
            fix="create it in advance where writing is allowed: cedar data manifest PATHS --out FILE",
        ) from error
    manifest = _parse_table(columns, listing, where)
    total = int(manifest.footers.rows.sum())
    return manifest, ManifestResult(
        len(listing), len(manifest.footers.rows), total, len(listing) - len(known), len(data)
    )


def _normalized(paths: Sequence[str]) -> list[str]:
    """Return paths in the form that a manifest stores, which does not depend on the working directory."""
    for path in paths:
        if redact_url(path) != path:
            raise invalid_call(
                f"{redact_url(path)!r}: a URL with credentials cannot be stored in a manifest",
                fix="set the credentials in the environment or in fsspec's configuration",
            )
    return [path if is_remote(path) else local_path(path) for path in paths]


def _owners(listing: Listing, normalized: list[str], options: StorageOptions | None) -> list[int]:
    """Return for each file the index of the path that matched it."""
    roots = [_root(path, options) for path in normalized]
    places = [(remote is None, root) for remote, root in roots]
    owners = []
    for file in listing:
        local = file.remote is None
        owner = next((i for i, (here, root) in enumerate(places) if here == local and below(root, file.path)), None)
        if owner is None:
            raise SourceError(f"{file.url} cannot be in a manifest: it is not below any of the given paths")
        owners.append(owner)
    return owners


def _root(path: str, options: StorageOptions | None) -> tuple[Any, str]:
    with reading(redact_url(path)):
        return storage_of(path, options)


def _unchanged(listing: Listing, before: Manifest | None) -> dict[int, int]:
    """Return the unchanged files, as a map from position in the listing to position in the previous manifest."""
    if before is None:
        return {}
    places = {file.url: i for i, file in enumerate(before.listing)}
    known = {}
    for place, file in enumerate(listing):
        i = places.get(file.url)
        if i is None or file.stamp is None or before.listing[i].stamp is None:
            continue
        if file.size == before.listing[i].size and not stamps_differ(before.listing[i].stamp, file.stamp):
            known[place] = i
    return known


def _as_bytes(columns: pa.Table) -> bytes:
    def write(sink: Any) -> dict[str, Any]:
        sink.write(_MARK)
        return table_body(columns)(sink)

    return sealed(_NAME, write, _VERSIONS)


# ---- reading; the contents are not trusted -------------------------------------------------------------------------


def _load(paths: Sequence[str], where: str, options: StorageOptions | None, quiet: bool = False) -> Manifest | None:
    """Read the manifest; return None if it is missing or damaged. Log damage unless ``quiet``."""
    normalized = _normalized(paths)
    with reading(redact_url(where)):
        data = read_file(where, options)
    if data is None:
        return None
    if data[: len(_MARK)] != _MARK[: len(data)]:
        raise invalid_call(f"{redact_url(where)!r} is not a manifest", fix="give manifest= its own name")
    try:
        columns = _columns(data)
        reported = json.loads(columns.schema.metadata[_PATHS])
    except (OSError, ValueError, KeyError, TypeError, RecursionError, pa.ArrowException) as error:
        _damaged(where, error, quiet)
        return None
    if reported != normalized:
        raise invalid_call(
            f"the manifest {redact_url(where)!r} was written for other paths: "
            f"{redact_url(str(reported))}, not {normalized}",
            fix="use one manifest per data set, or remove this one",
        )
    try:
        return _parse_table(columns, _files(columns, normalized, options), where)
    except (ValueError, TypeError, RecursionError, pa.ArrowException) as error:
        _damaged(where, error, quiet)
        return None


def _damaged(where: str, error: Exception, quiet: bool) -> None:
    if not quiet:
        _log.warning("the manifest %r is damaged: %s; it is rebuilt", redact_url(where), error)


def _columns(data: bytes) -> pa.Table:
    """Check a manifest completely and return its table."""
    table = table_of(Entry(opened(data, _NAME, _VERSIONS).body[PAGE:], {})).combine_chunks()
    if table.schema != _SCHEMA:
        raise Damaged("its columns do not match this version")
    for name in _SCHEMA.names:
        if name not in _NULLABLE and table[name].null_count:
            raise Damaged(f"column {name!r} has nulls")
    return table


def _files(columns: pa.Table, normalized: list[str], options: StorageOptions | None) -> Listing:
    """Return the files in a manifest's table; raise Damaged for files outside the manifest's paths."""
    roots = [_root(path, options) for path in normalized]
    limits = Limits.of_environment()
    limits = DEFAULT if limits == DEFAULT else limits
    files, seen = [], set()
    names = ("given", "path", "name", "size", "stamp")
    for given, path, name, size, stamp in zip(*(columns[n].to_pylist() for n in names), strict=True):
        if not 0 <= given < len(roots) or not below(roots[given][1], path) or not path.endswith(name):
            raise Damaged(f"it names {redact_url(path)!r}, which is not below its paths")
        if (given, path) in seen or (size is not None and size < 0):
            raise Damaged(f"it names {redact_url(path)!r} twice, or with a size below 0")
        seen.add((given, path))
        files.append(File(path, name, size, roots[given][0], limits, _stamp(stamp)))
    if not files:
        raise Damaged("it has no files")
    return Listing(tuple(files))


def _stamp(text: str | None) -> Any:
    if text is None:
        return None
    stamp = json.loads(text)
    kinds = [type(part) for part in stamp] if isinstance(stamp, list) else []
    if kinds not in ([int] * 3, [str] * 2):
        raise Damaged(f"a file has the invalid stamp {text[:80]}")
    return tuple(stamp)


def _parse_table(columns: pa.Table, listing: Listing, where: str) -> Manifest:
    """Convert the table into a listing and footers; raise Damaged if counts contradict each other."""
    kinds = columns["kind"].to_numpy()
    firsts = np.unique(kinds, return_index=True)[1]
    if kinds.min() != 0 or len(firsts) != kinds.max() + 1 or (np.diff(firsts) < 0).any():
        raise Damaged("its schemas are not numbered in order")
    rows, groups = _list_values(columns, "rows")
    sizes, ends = _list_values(columns, "bytes")
    footers = KeptFooters(listing.files, kinds, groups, rows, sizes, ends, columns["footer"], redact_url(where))
    return Manifest(listing, footers, columns)


def _list_values(columns: pa.Table, name: str) -> tuple[Any, Any]:
    """Return the values and offsets of a list column; raise Damaged for negative or huge values."""
    lists = columns[name].chunk(0)
    values, ends = lists.flatten().to_numpy(), lists.offsets.to_numpy()
    if len(values) and (values.min() < 0 or values.astype(np.float64).sum() > 1 << 62):
        raise Damaged(f"column {name!r} has numbers below 0, or beyond 62 bits")
    return values, ends - ends[0]


# ---- kept counts: how many rows of each row group pass the filters, saved for other ranks and later runs -------------
#
# Each combination of source and filters has one entry. The entry has a row per file: the file's identity (URL, size and
# stamp) and the counts of its row groups. A run that reads all of the data would find the same counts.


_COUNTS_SCHEMA = pa.schema([("file", pa.large_string()), ("left", pa.large_list(pa.int64()))])
_COUNTS_BYTES = 256 << 20  # maximum bytes of a store next to a manifest

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
        return CountKey(store_next_to(f"{source.manifest}.counts", _COUNTS_BYTES), name_of("counts", filters))
    place = user_place()
    return None if place is None else CountKey(place, name_of("counts", [list(source.paths), filters]))


def load_counts(key: CountKey) -> Counts:
    """Return the saved counts. If they cannot be used, log that and return no counts."""
    return load(*key, _counts) or {}


def save_counts(key: CountKey, counts: Counts) -> None:
    """Save counts; log a failure."""
    rows = [list(counts), [list(left) for left in counts.values()]]
    save(*key, table_body(pa.table(rows, schema=_COUNTS_SCHEMA)))


def _counts(entry: Entry) -> Counts:
    table = table_of(entry)
    if table.schema != _COUNTS_SCHEMA:
        raise Damaged("its columns are not those of this version")
    left = [tuple(each) for each in table["left"].to_pylist()]
    if any(type(each) is not int or each < 0 for counts in left for each in counts):
        raise Damaged("it has invalid counts")
    return dict(zip(table["file"].to_pylist(), left, strict=True))
