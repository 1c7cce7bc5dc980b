"""Read Lance data sets. A split is a range of rows of a fragment. The version is fixed on first use."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from cedar.core.boundary import canonical_types, checked_column
from cedar.core.columns import Column, TensorType
from cedar.core.errors import SourceError, invalid_call
from cedar.core.limits import Limits, MemoryReservation
from cedar.core.packages import library, plain_errors
from cedar.core.printable import StorageOptions, redact_url
from cedar.core.remote import as_options, is_remote, local_path
from cedar.datasets.base import BaseSource, Chunk, Selects, Split, numbered_rows, once, selected
from cedar.datasets.files_io import reading
from cedar.datasets.filesource import as_names
from cedar.datasets.parquet_schema import Types
from cedar.datasets.to_arrow import tensor_types, with_tensors
from cedar.lake.sinks import group_rows


@dataclass(frozen=True)
class Fragment:
    """A part of a data set.

    Args:
        number: the fragment's number in the data set.
        rows: number of rows that are not deleted.
        bytes: bytes of the fragment's files; 0 if the data set does not record them.
        files: names of the fragment's files, including a deletion file. Lance never reuses names.
    """

    number: int
    rows: int
    bytes: int
    files: tuple[str, ...]


@dataclass(frozen=True)
class VersionInfo:
    """The metadata of a version of a data set."""

    version: int
    types: Types
    tensors: dict[str, TensorType]
    fragments: tuple[Fragment, ...]
    limits: Limits


class _OpenDataset:
    """The opened data set fragments of this process."""

    def __init__(self) -> None:
        self.fragments: list[Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _OpenDataset, ()


@dataclass(frozen=True, repr=False)
class LanceSource(BaseSource):
    """A Lance data set.

    Args:
        uri: its location, in Lance's syntax.
        columns: the columns to read, in this order; None reads all.
        version: a number or a tag; None means the latest version at the time of first use.
        storage_options: keys, endpoints and other options for Lance.
    """

    uri: str
    columns: tuple[str, ...] | None = None
    version: int | str | None = None
    storage_options: StorageOptions | None = None
    own_code: ClassVar[bool] = False
    selects: ClassVar[Selects] = "columns"
    second_read_cost_bytes: ClassVar[int] = 512 << 10  # a second read of a split costs as much as decoding these bytes

    @once
    def _known(self) -> VersionInfo:
        dataset = self._dataset(self.version)
        shown = self.describe()
        types = canonical_types(dataset.schema, shown, SourceError)
        with reading(shown), plain_errors():
            dataset_fragments = dataset.get_fragments()
            fragments = tuple(_fragment(each.metadata) for each in dataset_fragments)
        self._opened.fragments = dataset_fragments
        tensors = tensor_types(dataset.schema, types)
        return VersionInfo(int(dataset.version), types, tensors, fragments, Limits.of_environment())

    @once
    def _opened(self) -> _OpenDataset:
        return _OpenDataset()

    def _dataset(self, version: int | str | None) -> Any:
        lance = library("lance", "lance", "read_lance")
        with reading(redact_url(self.uri)), plain_errors():
            return lance.dataset(self.uri, version=version, storage_options=dict(self.storage_options or {}) or None)

    def _fragments(self) -> list[Any]:
        """Return Lance's fragment objects for the version that is read."""
        known, opened = self._known, self._opened
        if opened.fragments is None:  # another process opened the data set first
            opened.fragments = self._dataset(known.version).get_fragments()
        return opened.fragments

    def splits(self) -> list[Split]:
        splits = []
        for number, fragment in enumerate(self._known.fragments):
            width = fragment.bytes / max(1, fragment.rows)
            step = group_rows(width)
            for part, start in enumerate(range(0, fragment.rows, step)):
                rows = min(step, fragment.rows - start)
                splits.append(Split(number, start, start + rows, rows, int(width * rows), part))
        return splits

    row_keys = staticmethod(numbered_rows)

    def read(self, split: Split) -> Iterator[Chunk]:
        types, rows = self.schema(), split.rows or 0
        if not types:
            yield Chunk({}, length=rows)
            return
        url = self.url(split.file)
        span = f"rows {split.start:,} to {split.start + rows:,}"
        reservation, count = MemoryReservation.of_task(url, self._known.limits), 0
        with reading(url, span), plain_errors():
            fragment = self._fragments()[split.file]
            scan = fragment.scanner(columns=list(types), offset=split.start, limit=rows)
            batches = iter(scan.to_batches())
        done = False
        while not done:
            with reading(url, span), plain_errors():
                batch = next(batches, None)
                done = batch is None
                columns: dict[str, Column] = {}
                if batch is not None:
                    reservation.take(batch.nbytes, f"a batch of {batch.num_rows:,} rows")
                    columns = {name: checked_column(batch.column(name)) for name in types}
                    columns = with_tensors(columns, self._known.tensors, url)
                    count += batch.num_rows
                if done and count != rows:
                    raise ValueError(f"there are {count:,} rows, its metadata says {rows:,}")
            if batch is not None:
                yield Chunk(columns, length=batch.num_rows)
                reservation.give(batch.nbytes)

    def schema(self) -> Types:
        return selected(self._known.types | self._known.tensors, self.columns, self.describe())

    def select(self, columns: Sequence[str]) -> LanceSource:
        """Return a source over the same data set that reads only ``columns``."""
        other = replace(self, columns=tuple(columns))
        other.__dict__.update((name, self.__dict__[name]) for name in ("_known", "_opened") if name in self.__dict__)
        return other

    @property
    def row_bytes(self) -> float | None:
        rows = sum(fragment.rows for fragment in self._known.fragments)
        size = sum(fragment.bytes for fragment in self._known.fragments)
        return size / rows if rows and size and self.columns is None else None

    def digest(self) -> str:
        """Hash the file names. Lance never reuses them, and they stay the same when the data set moves."""
        text = json.dumps([[each.rows, each.files] for each in self._known.fragments])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def identity(self) -> str:
        return f"lance {self.uri} {self.digest()} {self.storage_options.mark if self.storage_options else ''}".rstrip()

    def url(self, file: int) -> str:
        files = self._known.fragments[file].files
        return f"{redact_url(self.uri)}/data/{files[0]}" if files else redact_url(self.uri)

    def describe(self) -> str:
        return f"read_lance({redact_url(self.uri)})"

    def __repr__(self) -> str:
        return self.describe()


def _fragment(metadata: Any) -> Fragment:
    deletions = metadata.deletion_file
    files = [each.path for each in metadata.files]
    if deletions is not None:
        files.append(f"_deletions/{metadata.id}-{deletions.read_version}-{deletions.id}")
    size = sum(each.file_size_bytes or 0 for each in metadata.files)
    return Fragment(int(metadata.id), int(metadata.num_rows), int(size), tuple(files))


def read_lance(
    uri: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    version: int | str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> LanceSource:
    """Return the source that ``cedar.read_lance`` uses.

    Raises:
        PipelineError: ``uri`` is not a string or path.

    Examples:
        >>> read_lance("clicks.lance").describe()
        'read_lance(.../clicks.lance)'
    """
    if not isinstance(uri, str | os.PathLike) or not os.fspath(uri):
        raise invalid_call(f"read_lance: uri must be a string or a path, not {uri!r}")
    where = os.fspath(uri)
    where = where if is_remote(where) else local_path(where)
    return LanceSource(where, as_names(columns, "columns", "read_lance"), version, as_options(storage_options))
