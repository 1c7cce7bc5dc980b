"""The base class of all sources that read files, and checks of the arguments that their readers share."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from cedar.core.columns import UNKNOWN, Index
from cedar.core.dtypes import type_from_dtype
from cedar.core.errors import CedarError, RowError, SourceError, invalid_call
from cedar.core.printable import StorageOptions, redact_url
from cedar.core.requests import RequestStats, Use
from cedar.datasets.base import LOST, BaseSource, Chunk, Selects, Split, once
from cedar.datasets.files_io import concurrently, marks_of
from cedar.datasets.listing import Listing, list_files, split_braces
from cedar.datasets.split_table import SplitTable

Paths: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"
_S = TypeVar("_S", bound="FileSource")


def requests_outside_tasks(sources: Iterable[Any]) -> Use:
    """Return the storage requests that sources sent outside tasks: for listings, footers and streamed files."""
    accounts: dict[int, RequestStats] = {}
    for source in sources:
        if isinstance(source, FileSource) and "listing" in source.__dict__:
            listing = source.listing
            remote = next((file.remote for file in listing if file.remote is not None), None)
            accounts |= {} if remote is None else {id(remote.account): remote.account}  # the same for all files
    use = Use()
    for account in accounts.values():
        use.add(account.metadata)
    return use


@dataclass(frozen=True, repr=False)
class FileSource(BaseSource):
    """A source over files. Files are listed once, at first use, and the listing is pickled with the source.

    Args:
        columns: the columns to read, in this order; None reads all.
        storage_options: options for storage other than local files.
        unread: columns that no operator reads; the source delivers them as nulls without parsing their values.
    """

    paths: tuple[str, ...]
    columns: tuple[str, ...] | None = field(default=None, kw_only=True)
    storage_options: StorageOptions | None = field(default=None, kw_only=True)
    unread: frozenset[str] = field(default=frozenset(), kw_only=True)
    reader: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...] | None] = None
    own_code: ClassVar[bool] = False
    selections_share: ClassVar[tuple[str, ...]] = ("_footers", "_lines", "_opened")
    can_skip_parsing: ClassVar[bool] = False  # whether the format can skip parsing the columns in ``unread``
    reads_files: ClassVar[bool] = True
    splits_join_files: ClassVar[bool] = False  # whether a split may have rows of several files
    selects: ClassVar[Selects] = "columns"

    @property
    def manifest(self) -> str | None:
        """Return the path or URL of the file that stores the listing and the metadata; None if there is none."""
        return None

    @once
    def listing(self) -> Listing:
        return list_files(self.paths, self.suffixes, self.storage_options)

    def share_known(self, other: _S) -> _S:
        """Copy the cached listing and metadata to ``other``, a source over the same files, and return ``other``."""
        for known in ("listing", "tolerant", *self.selections_share):
            if known in self.__dict__:
                other.__dict__[known] = self.__dict__[known]
        return other

    def leaving(self, unread: frozenset[str]) -> Self:
        """Return a source with the same rows and columns that delivers the columns in ``unread`` as nulls."""
        return self.share_known(replace(self, unread=unread))

    def with_unread(self, columns: dict[str, Any], rows: int) -> dict[str, Any]:
        """Return the columns of the schema, with nulls of their type for columns in ``unread``."""
        types = self.schema() or {}
        kinds = {types[name] for name in self.unread if name in types}
        nulls = {kind: pa.nulls(rows, None if kind is UNKNOWN else kind) for kind in kinds}
        return {name: nulls[kind] if name in self.unread else columns[name] for name, kind in types.items()}

    def select(self, columns: Sequence[str]) -> Self:
        return self.share_known(replace(self, columns=tuple(columns)))

    @abstractmethod
    def sound_splits(self) -> Sequence[Split]:
        """Return the splits of the readable files, without those of lost files."""

    def splits(self) -> Sequence[Split]:
        splits = self.sound_splits()
        if not self.listing.lost:
            return splits
        numbers = len(self.listing) + np.arange(len(self.listing.lost))
        return SplitTable.of(splits) + SplitTable(file=numbers, stop=1, rows=1, bytes=0, part=LOST)

    def skipping_damaged(self) -> Self:
        """Return a source over the same files that skips damaged ones; files with unreadable metadata are lost.

        A lost file has one split with one row, and reading this split fails. Other damage is found during reading.

        Raises:
            CedarError: no file is readable, or the error does not come from individual files.
        """
        tolerant_source = self._tolerant(self.listing)
        if (metadata_error := tolerant_source.metadata_error()) is None:
            return tolerant_source
        each = concurrently(lambda file: (file, self._tolerant(Listing((file,))).metadata_error()), self.listing.files)
        lost = tuple((file, error) for file, error in each if error is not None)
        if not 0 < len(lost) < len(each):
            raise metadata_error
        tolerant_source = self._tolerant(Listing(tuple(file for file, error in each if error is None), lost))
        if (metadata_error := tolerant_source.metadata_error()) is not None:
            raise metadata_error
        return tolerant_source

    def _tolerant(self, listing: Listing) -> Self:
        other = replace(self)
        other.__dict__.update(listing=listing, tolerant=True)
        return other

    def metadata_error(self) -> CedarError | None:
        """Return the error that prevents reading the metadata, or None."""
        try:
            _ = self.schema(), self.splits()
        except (SourceError, RowError) as error:
            return error
        return None

    def read_whole(self, split: Split) -> Iterator[Chunk]:
        if split.part < 0:
            raise self.listing.lost[split.file - len(self.listing)][1]
        yield from self.read(split)

    def url(self, file: int) -> str:
        return self.listing[file].url

    def file_ids(self) -> Index:
        return self.listing.ids

    def digest(self) -> str:
        return self.listing.digest()

    def identity(self) -> str:
        return self.listing.identity

    @once
    def marks(self) -> tuple[list[str], list[str]]:
        """Return stamps and content hashes of groups of files, which a state stores: see ``changed_runs``."""
        return marks_of(self.listing.files)

    def describe(self) -> str:
        more = f", +{len(self.paths) - 1}" if len(self.paths) > 1 else ""
        return f"{self.reader}({redact_url(self.paths[0])}{more})"


def as_paths(paths: Paths, reader: str) -> tuple[str, ...]:
    """Return ``paths`` as a tuple of strings, with ``{a,b}`` and ``{000..127}`` expanded as ``split_braces`` does."""
    given = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    if not isinstance(given, Sequence) or not all(isinstance(p, (str, os.PathLike)) for p in given):
        raise invalid_call(f"{reader}: paths must be a string, a pathlib.Path or a list of them, not {_kind_of(paths)}")
    strings = tuple(chain.from_iterable(split_braces(os.fspath(p)) for p in given))
    if not strings or not all(strings):
        raise invalid_call(f"{reader}: {'an empty path' if strings else 'no paths'} given")
    return strings


def as_names(names: Sequence[str] | None, option: str, reader: str) -> tuple[str, ...] | None:
    """Return column names as a tuple; a single string is one name."""
    if names is None:
        return None
    given = (names,) if isinstance(names, str) or not isinstance(names, Iterable) else tuple(names)
    if not all(isinstance(name, str) for name in given) or len(set(given)) < len(given):
        problem = f"{reader}: {option}={names!r} is not a list of different names"
        raise invalid_call(problem, fix=f'give names as strings: {option}=["x", "y"]')
    return given


def as_types(types: Any, option: str, reader: str) -> tuple[tuple[str, pa.DataType], ...]:
    """Return names and canonical types from a dict or an Arrow schema."""
    given = dict(zip(types.names, types.types, strict=True)) if isinstance(types, pa.Schema) else types or {}
    problem = "" if isinstance(given, Mapping) else f"takes a dict of names and types, not {type(types).__name__}"
    kinds = {} if problem else {name: type_from_dtype(kind) for name, kind in given.items()}
    for name, kind in kinds.items():
        problem = problem if isinstance(kind, pa.DataType) else f"a column of a file cannot be {kind}: {name!r}"
    if problem:
        raise invalid_call(f"{reader}: {option}= {problem}")
    return tuple(kinds.items())


def as_flag(value: Any, option: str, reader: str) -> bool:
    """Return ``value`` as a bool. Truthy values of other types are rejected, since their meaning is ambiguous."""
    if not isinstance(value, (bool, np.bool_)):
        raise invalid_call(f"{reader}({option}={value!r}): True or False is expected, not {type(value).__name__}")
    return bool(value)


def _kind_of(paths: Any) -> str:
    if isinstance(paths, (list, tuple)):
        odd = next(p for p in paths if not isinstance(p, (str, os.PathLike)))
        return f"a list with {type(odd).__name__} in it"
    return type(paths).__name__
