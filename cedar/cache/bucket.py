"""Entries as objects below a URL, in a marked folder of their own; what is read there is believed only when checked."""

from __future__ import annotations

import contextlib
import datetime as dt
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from cedar.cache.entries import tail, write_body
from cedar.cache.entry_reader import Damaged
from cedar.cache.eviction import EntryInfo
from cedar.cache.folder import DISK_BYTES, ENTRY, INSIDE, KIND, NOTE_BYTES, SUFFIX
from cedar.core.block import Block
from cedar.core.errors import SourceError
from cedar.core.remote import Remote, rename
from cedar.core.requests import Account, Patience
from cedar.store.ownership import MARK, ForeignFile, mark_of

_TIMES = ("LastModified", "mtime", "last_modified", "updated", "created")


class Bucket:
    """A URL of any filesystem that fsspec knows. The least recently written entries go first: few storages tell more.

    Who can write there is the storage's affair: entries may be a stranger's, and are checked in all their parts.
    """

    kind = "url"

    def __init__(self, fs: Any, path: str) -> None:
        self._remote = Remote(fs, Account(Patience.of_environment()))
        self._path = f"{path}/{INSIDE}"
        self._marked = False

    def check(self) -> None:
        """Nothing can be asked."""

    def budget(self, taken: int) -> int:
        """The bytes that entries may take when the user gave no number."""
        return DISK_BYTES

    def load(self, name: str) -> tuple[Any, Any] | None:
        """The bytes of an entry; None where there is none. Raises OSError, and Damaged: more than an entry ever has."""
        path = self._file(name)
        try:
            with _oserrors():
                size = self._ask("info", path).get("size")
                if isinstance(size, int) and size > DISK_BYTES:
                    raise Damaged(f"it has {size:,} bytes")
                return self._remote.fetch(path, 0, None, size if isinstance(size, int) else None), None
        except FileNotFoundError:
            return None

    def save(self, name: str, blocks: Sequence[Block], ordinals: Sequence[int], room: Callable[[int], bool]) -> int:
        """Write an entry where there is room for its bytes, and return them; else 0. Raises OSError."""
        sink = pa.BufferOutputStream()
        described = write_body(blocks, sink, ordinals)
        body = sink.getvalue()
        raw = b"".join((body, tail(name, described, zlib.crc32(body))))
        if not room(len(raw)):
            return 0
        self._put(self._file(name), raw)
        return len(raw)

    def _put(self, path: str, raw: bytes) -> None:
        temporary = f"{self._path}/.{uuid.uuid4().hex}.tmp"
        with _oserrors():
            self._ask("makedirs", self._path, exist_ok=True)
            if not self._is_ours():
                if self._ask("ls", self._path, detail=False, refresh=True):
                    raise ForeignFile(f"it has a folder {INSIDE!r} that cedar did not make")
                self._ask("pipe_file", f"{self._path}/{MARK}", value=mark_of(KIND))
                self._marked = True
            self._ask("pipe_file", temporary, value=raw)
            rename(self._remote, temporary, path)

    def entries(self) -> list[EntryInfo]:
        """What is there."""
        try:
            with _oserrors():
                listed = self._ask("ls", self._path, detail=True, refresh=True)
        except OSError:
            return []
        entries = []
        for info in listed:
            name = str(info["name"]).rpartition("/")[2]
            if ENTRY.fullmatch(name) and info.get("type") == "file":
                name = name.removesuffix(SUFFIX)
                entries.append(EntryInfo(name, name.partition("-")[0], int(info.get("size") or 0), _written(info)))
        return entries

    def remove(self, name: str) -> None:
        """Remove an entry, where the folder is marked."""
        with contextlib.suppress(OSError), _oserrors():
            if ENTRY.fullmatch(name + SUFFIX) and self._is_ours():
                self._ask("rm_file", self._file(name))

    def _is_ours(self) -> bool:
        if not self._marked:
            with contextlib.suppress(FileNotFoundError), _oserrors():
                self._marked = self._ask("cat_file", f"{self._path}/{MARK}") == mark_of(KIND)
        return self._marked

    def read_note(self, name: str) -> bytes | None:
        """A small object beside the entries."""
        path = f"{self._path}/{name}"
        try:
            with _oserrors():
                size = self._ask("info", path).get("size")
                if (size or 0) > NOTE_BYTES:
                    return None
                return self._remote.fetch(path, 0, None, size)
        except OSError:
            return None

    def write_note(self, name: str, text: bytes) -> None:
        """Write a small object. Raises OSError."""
        self._put(f"{self._path}/{name}", text)

    def _ask(self, operation: str, path: str, **arguments: Any) -> Any:
        """What an operation of the filesystem returns, tried again while it fails in a way that passes."""
        return self._remote.call(path, lambda: getattr(self._remote.fs, operation)(path, **arguments))

    def _file(self, name: str) -> str:
        return f"{self._path}/{name}{SUFFIX}"


@contextlib.contextmanager
def _oserrors() -> Iterator[None]:
    """Whatever a storage's library raises, as an OSError."""
    try:
        yield
    except (OSError, Damaged):
        raise
    except SourceError as error:
        raise OSError(error.args[0]) from error
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def _written(info: dict[str, Any]) -> float:
    """Seconds since 1970, 0 where the storage does not tell."""
    for name in _TIMES:
        given = info.get(name)
        if isinstance(given, (int, float)):
            return float(given)
        with contextlib.suppress(ValueError):
            given = dt.datetime.fromisoformat(given) if isinstance(given, str) else given
            if isinstance(given, dt.datetime):
                return given.timestamp()
    return 0.0
