"""Read tar shards in webdataset's layout: consecutive members with the same key form one row.

A member's key is its path up to the first or last dot of the file name. The rest, in lower case, is the extension.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar, Literal, Self

import pyarrow as pa

from cedar.core.columns import Column, ColumnType
from cedar.core.errors import SourceError, invalid_call
from cedar.core.limits import MemoryReservation
from cedar.datasets.base import Chunk, Split, once, selected
from cedar.datasets.files_io import File, actual_format, check_unchanged, open_file, reading
from cedar.datasets.filesource import FileSource, Paths, as_paths
from cedar.datasets.split_table import SplitTable
from cedar.datasets.text import whole_files

_NAMES = {  # groups: key (path up to the first or last dot of the name), extension
    "first": re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]*)", re.DOTALL),
    "last": re.compile(r"((?:.*/)?[^./][^/]*)\.([^./]*)", re.DOTALL),
}
_ROWS = 256  # maximum samples per chunk
_BYTES = 16 << 20  # a chunk ends when its samples reach this many bytes
_TAIL = 1 << 20  # bytes read at a time after the archive's end marker


@dataclass
class _TarSample:
    key: str
    parts: dict[str, bytes | None] = field(default_factory=dict)
    size: int = 0


_LONG_HEADERS = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)


class _Archive(tarfile.TarFile):
    """An archive that reserves memory for long headers before it reads them."""

    last = ""  # name of the previous member

    def __init__(self, *args: Any, reservation: MemoryReservation, **options: Any) -> None:
        self.reservation = reservation
        super().__init__(*args, **options)  # this already reads the first header


class _StrictHeader(tarfile.TarInfo):
    """A header that raises if it is damaged or truncated; tarfile would treat this as the end of the archive."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.TarError as error:
            if type(error).__name__ == "EOFHeaderError":  # the block of zeros that ends an archive
                raise
            raise tarfile.ReadError(f"{error}: the archive is truncated or damaged") from error

    def _proc_member(self, tarfile_: Any) -> Self:
        """Reserve memory for a long name or pax fields, which tarfile reads completely."""
        if self.type in _LONG_HEADERS:
            header = f"the header after member {tarfile_.last!r}" if tarfile_.last else "the first header"
            tarfile_.reservation.take(max(0, self.size), header)
            if self.type != tarfile.XGLTYPE:  # tarfile keeps global fields in memory
                tarfile_.reservation.give(max(0, self.size))
        member: Self = super()._proc_member(tarfile_)  # type: ignore[misc]
        return member


@dataclass(frozen=True, repr=False)
class TarSource(FileSource):
    """Webdataset shards. Each shard is one streaming split; members are read into memory, not extracted to disk."""

    missing: Literal["error", "null"] = "error"
    dot: Literal["first", "last"] = "first"
    reader: ClassVar[str] = "read_tar"
    selections_share: ClassVar[tuple[str, ...]] = ("_extensions",)

    def sound_splits(self) -> SplitTable:
        return whole_files(self.listing)

    @once
    def _extensions(self) -> tuple[str, ...]:
        """Return the extensions of the first sample (with missing="null": 256 samples) of the first non-empty shard."""
        few = _ROWS if self.missing == "null" else 1
        for file in self.listing:
            found: dict[str, None] = {}
            for sample in islice(
                _samples(file, set(), MemoryReservation(file.url, file.limits), _NAMES[self.dot]), few
            ):
                if "key" in sample.parts:
                    raise SourceError(f"{file.url}: a member with extension 'key' clashes with the column 'key'")
                found |= dict.fromkeys(sample.parts)
            if found:
                return tuple(found)
        return ()

    def read(self, split: Split) -> Iterator[Chunk]:
        file = self.listing[split.file]
        names = list(self.schema())
        pending: list[_TarSample] = []
        size = 0
        reservation = MemoryReservation.of_task(file.url, file.limits)
        try:
            for sample in _samples(file, set(names), reservation, _NAMES[self.dot]):
                self._check(file, sample)
                pending.append(sample)
                size += sample.size
                if len(pending) == _ROWS or size >= _BYTES:
                    yield _chunk(pending, names)
                    reservation.give(size)
                    pending, size = [], 0
        except SourceError:
            if pending:  # deliver the complete samples first
                yield _chunk(pending, names)
            raise
        if pending:
            yield _chunk(pending, names)

    def _check(self, file: File, sample: _TarSample) -> None:
        if sample.parts.keys() == set(self._extensions):
            return
        required = [] if self.missing == "null" else self._extensions
        missing = [f".{e}" for e in required if e not in sample.parts]
        extra = [f".{e}" for e in sample.parts if e not in self._extensions]
        if not missing and not extra:
            return
        known = "the first sample has" if required else f"the first {_ROWS} samples have"
        mismatch = f"has no {', '.join(missing)}" if missing else f"also has {', '.join(extra)}"
        fix = (
            f"put a sample with {', '.join(extra)} among the first {_ROWS} of the first shard, or leave it out"
            if self.missing == "null"
            else "every sample needs the same extensions, and its members one after the other; "
            'read_tar(missing="null") gives nulls for those that a sample lacks'
        )
        raise SourceError(
            f"{file.url}: sample {sample.key!r} {mismatch}; {known} {', '.join(self._extensions)}", fix=fix
        )

    def schema(self) -> dict[str, ColumnType]:
        types = {"key": pa.large_string()} | dict.fromkeys(self._extensions, pa.large_binary())
        return selected(types, self.columns, self.describe())


def _samples(
    file: File, wanted: set[str], reservation: MemoryReservation, names: re.Pattern[str]
) -> Iterator[_TarSample]:
    """Yield the samples of a shard; extensions that are not ``wanted`` have None instead of their bytes."""
    current: _TarSample | None = None
    seen: set[str] = set()
    for name, data, size in _members(file, wanted, reservation, names):
        match = names.fullmatch(name)
        if match is None:
            raise _member_error(file, name, "its name has no extension, or begins with a dot")
        key, extension = match[1], match[2].lower()
        if current is None or key != current.key:
            if current is not None:
                yield current
            if key in seen:
                raise _member_error(file, name, f"key {key!r} appeared before, with other keys in between")
            seen.add(key)
            current = _TarSample(key)
        if extension in current.parts:
            raise _member_error(file, name, f"key {key!r} has a second .{extension}")
        current.parts[extension] = data
        current.size += size
    if current is not None:
        yield current


def _members(
    file: File, wanted: set[str], reservation: MemoryReservation, names: re.Pattern[str]
) -> Iterator[tuple[str, bytes | None, int]]:
    """Yield the name, bytes (None if not wanted) and number of bytes read of each regular member."""
    with ExitStack() as stack:
        with reading(file.url):
            stream = stack.enter_context(open_file(file))
            options: Any = {"tarinfo": _StrictHeader, "reservation": reservation}
            try:
                archive = stack.enter_context(_Archive.open(fileobj=stream, mode="r|", bufsize=1 << 20, **options))
            except tarfile.ReadError:
                problem = actual_format(file)
                if problem is None:
                    raise
                raise SourceError(f"{file.url}: {problem[0]}", fix=problem[1]) from None
        name = ""
        while True:
            with reading(file.url, f"after member {name!r}" if name else ""):
                member = archive.next()
                if member is None:
                    check_unchanged(file)
                    _check_end(file, archive)
                    return
                archive.members.clear()  # type: ignore[attr-defined]  # tarfile would keep every header
                if member.isdir():
                    continue
                name = _safe_name(file, member)
                match = names.fullmatch(name)
                keep = match is not None and match[2].lower() in wanted
                archive.last = name
                if keep:
                    reservation.take(max(0, member.size), f"member {name!r}")
                opened = archive.extractfile(member) if keep else None
                data = None if opened is None else opened.read()
            yield name, data, 0 if data is None else len(data)


def _check_end(file: File, archive: Any) -> None:
    """Raise SourceError if there is data after the block of zeros that ends an archive."""
    while block := archive.fileobj.read(_TAIL):
        if block.strip(b"\0"):
            raise SourceError(
                f"{file.url}: data follows the end of the archive: it is damaged, or contains two archives",
                fix="rewrite it, with each archive as its own shard",
            )


def _safe_name(file: File, member: tarfile.TarInfo) -> str:
    name = member.name.removeprefix("./")
    if not member.isreg() or member.issparse():  # sparse files are not stored completely
        kind = (
            "a sparse file"
            if member.issparse()
            else "a link"
            if member.islnk() or member.issym()
            else "a device or another special file"
        )
        raise _member_error(file, member.name, f"it is {kind}")
    if any("\ud800" <= letter <= "\udfff" for letter in name):
        raise _member_error(file, member.name, "its name is not UTF-8")
    if name.startswith("/") or ".." in name.split("/"):
        raise _member_error(file, member.name, "its name leads out of the archive")
    return name


def _member_error(file: File, name: str, why: str) -> SourceError:
    return SourceError(f"{file.url}: member {name!r} is refused: {why}", fix="write the shard again without it")


def _chunk(samples: list[_TarSample], names: list[str]) -> Chunk:
    columns: dict[str, Column] = {}
    for name in names:
        if name == "key":
            columns[name] = pa.array([s.key for s in samples], pa.large_string())
        else:
            columns[name] = pa.array([s.parts.get(name) for s in samples], pa.large_binary())
    return Chunk(columns, length=len(samples))


def read_tar(
    paths: Paths, *, missing: Literal["error", "null"] = "error", dot: Literal["first", "last"] = "first"
) -> TarSource:
    """Return the source that ``cedar.read_tar`` uses."""
    for option, value, known in (("missing", missing, ("error", "null")), ("dot", dot, ("first", "last"))):
        if value not in known:
            raise invalid_call(f"read_tar({option}={value!r})", fix=f"{known[0]!r} or {known[1]!r}")
    return TarSource(as_paths(paths, "read_tar"), missing=missing, dot=dot)
