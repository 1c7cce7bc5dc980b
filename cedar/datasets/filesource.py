"""What every source over files has in common: a listing, and what is said about it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import pyarrow as pa

from cedar.core.asking import Use
from cedar.core.columns import Index
from cedar.core.errors import CedarError, RowError, SourceError
from cedar.core.redact import StorageOptions, redact_url
from cedar.core.requests import RequestStats
from cedar.datasets.base import LOST, BaseSource, Chunk, Split
from cedar.datasets.files_io import marks_of
from cedar.datasets.listing import Listing, concurrently, list_files
from cedar.datasets.once import once
from cedar.datasets.split_table import SplitTable

_S = TypeVar("_S", bound="FileSource")


def asked_outside_tasks(sources: Iterable[Any]) -> Use:
    """What was asked of storage for listings and footers of sources, and for files that can only be streamed."""
    accounts: dict[int, RequestStats] = {}
    for source in sources:
        listing = getattr(source, "__dict__", {}).get("listing")
        if isinstance(listing, Listing):
            remote = next((file.remote for file in listing if file.remote is not None), None)
            accounts |= {} if remote is None else {id(remote.account): remote.account}  # one for all of a listing
    use = Use()
    for account in accounts.values():
        use.add(account.metadata)
    return use


@dataclass(frozen=True, repr=False)
class FileSource(BaseSource):
    """A source over files, listed once, at the first need; the listing travels with the source.

    Args:
        storage_options: of other storage than local files.
        unread: columns whose values are not parsed, as nothing reads them: they come as nulls.
    """

    paths: tuple[str, ...]
    storage_options: StorageOptions | None = field(default=None, kw_only=True)
    unread: frozenset[str] = field(default=frozenset(), kw_only=True)
    reader: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...] | None] = None
    own_code: ClassVar[bool] = False
    selections_share: ClassVar[tuple[str, ...]] = ("_footers", "_lines", "_opened")
    leaves_unread: ClassVar[bool] = False  # values of columns that nothing reads may be anything
    tolerant = False  # see ``tolerating``
    gone: ClassVar[frozenset[int]] = frozenset()  # files that were taken out, of unknown rows: see ``as_saved``
    told_row_bytes: ClassVar[tuple[float | None, ...]] = ()  # of a state, where it is read as that was saved

    @once
    def listing(self) -> Listing:
        return list_files(self.paths, self.suffixes, self.storage_options)

    def keep(self, other: _S) -> _S:
        """``other``, a source over the same files, with what is already known of them."""
        for known in ("listing", "tolerant", *self.selections_share):
            if known in self.__dict__:
                other.__dict__[known] = self.__dict__[known]
        return other

    def leaving(self, unread: frozenset[str]) -> Self:
        """The same rows and columns, of which some are nulls."""
        return self.keep(replace(self, unread=unread))

    def with_unread(self, columns: dict[str, Any], names: Iterable[str], rows: int) -> dict[str, Any]:
        """The columns ``names``, those that were not parsed among them."""
        return {name: pa.nulls(rows) if name in self.unread else columns[name] for name in names}

    @abstractmethod
    def sound_splits(self) -> Sequence[Split]:
        """The pieces of the files, without those that are lost."""

    def splits(self) -> Sequence[Split]:
        splits = self.sound_splits()
        if not self.listing.lost:
            return splits
        numbers = len(self.listing) + np.arange(len(self.listing.lost))
        return SplitTable.of(splits) + SplitTable(file=numbers, stop=1, rows=1, bytes=0, part=LOST)

    def tolerating(self) -> Self:
        """The same files for a run that skips damaged ones: where metadata cannot be read, those to blame are lost.

        A lost file has one split of one row, whose reading fails. What is damaged further down fails as it is read.

        Raises:
            CedarError: no file is sound, or it is not a single file that is to blame.
        """
        whole = self._tolerant(self.listing)
        if (fault := whole.fault()) is None:
            return whole
        each = concurrently(lambda file: (file, self._tolerant(Listing((file,))).fault()), self.listing.files)
        lost = tuple((file, error) for file, error in each if error is not None)
        if not 0 < len(lost) < len(each):
            raise fault
        whole = self._tolerant(Listing(tuple(file for file, error in each if error is None), lost))
        if (fault := whole.fault()) is not None:
            raise fault
        return whole

    def _tolerant(self, listing: Listing) -> Self:
        other = replace(self)
        other.__dict__.update(listing=listing, tolerant=True)
        return other

    def fault(self) -> CedarError | None:
        """Why the metadata cannot be read."""
        try:
            _ = self.schema(), self.splits()
        except (SourceError, RowError) as error:
            return error
        return None

    def read_whole(self, split: Split) -> Iterator[Chunk]:
        """As ``read``, which no lost file comes to."""
        if split.part < 0:
            raise self.listing.lost[split.file - len(self.listing)][1]
        yield from self.read(split)

    def url(self, file: int) -> str:
        return self.listing[file].url

    def file_ids(self) -> Index:
        """What row keys call each file."""
        return self.listing.ids

    def digest(self) -> str:
        return self.listing.digest()

    @once
    def _identity(self) -> str:
        return self.listing.identity()

    def identity(self) -> str:
        return self._identity

    @once
    def _marks(self) -> tuple[list[str], list[str]]:
        return marks_of(self.listing.files)

    def marks(self) -> tuple[list[str], list[str]]:
        """Stands for stamps and contents of runs of the files, for a state: see ``stamps.changed_runs``."""
        return self._marks

    def describe(self) -> str:
        more = f", +{len(self.paths) - 1}" if len(self.paths) > 1 else ""
        return f"{self.reader}({redact_url(self.paths[0])}{more})"

    def __repr__(self) -> str:
        return self.describe()
