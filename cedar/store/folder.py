"""Store entries as files in a directory that only this user can write to, or as objects below a URL.

In both, the entries are in a subfolder that cedar made and marked.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import mmap
import os
import re
import shutil
import stat
import time
import uuid
import weakref
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from cedar.core.errors import CedarError, PipelineError, SourceError
from cedar.core.remote import Remote, rename
from cedar.core.requests import RequestPatience, RequestStats
from cedar.store.entry import Damaged, Versions, Write, sealed, tail
from cedar.store.files import (
    MARK,
    ForeignFile,
    alone,
    holds_foreign,
    is_owned,
    make_owned,
    mark_of,
    remove_file,
    why_not_ours,
)
from cedar.store.place import BYTES, INSIDE, KIND, NAME, SUFFIX, EntryInfo, Place

_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.tmp")
_FREE_SHARE = 0.8
_ABANDONED = 3600.0  # seconds after which a temporary file counts as abandoned
_SMALL = 4 << 20  # bytes; smaller entries are not mapped, as a map uses a file descriptor until its rows are released
_MAX_MAPS = 128

_maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


class Folder(Place):
    """A store in a directory. Files are renamed into place when complete, and large ones are memory-mapped.

    Entries are in a marked folder inside the directory. cedar only removes files of that folder that have an entry's
    name; processes that have them open can still read them. It never changes other files, such as the user's data.

    Args:
        path: the directory; created with the first entry.
        shown: how messages name it.
        limit: maximum bytes of all entries; None means the smaller of 16 GiB and 80% of the free space.
        least: as for ``Place``.
        shared: True if other users may read entries, and write them if the parent directory allows that.
    """

    def __init__(
        self, path: str, shown: str = "", limit: int | None = None, *, least: int = 0, shared: bool = False
    ) -> None:
        super().__init__(shown or repr(path), limit, least)
        self._given = path
        self._path = os.path.join(path, INSIDE)
        self._shared = shared

    def path(self, name: str) -> str:
        """Return the file of an entry."""
        return os.path.join(self._path, name + SUFFIX)

    # ---- ownership ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise if another user could have written entries to the directory.

        Raises:
            PipelineError: another user owns the directory or can write to it, it is not a directory, or the folder
                for entries exists without cedar's marker.
        """
        for path, look in () if self._shared else ((self._given, os.stat), (self._path, os.lstat)):
            try:
                problem = why_not_ours(look(path))
            except FileNotFoundError:
                continue
            except OSError as error:
                problem = f"cannot be examined: {error}"
            if problem:
                raise self._refused(problem, f"or: chmod go-w {path}" if "written by others" in problem else "")
        if os.path.lexists(self._path) and holds_foreign(self._path, KIND):
            raise self._refused(f"has a folder {INSIDE!r} that cedar did not make", "or move that away")

    def _refused(self, problem: str, more: str = "") -> PipelineError:
        return PipelineError(
            f"{self.shown}: the directory {problem}",
            done="nothing was read from it: others could have put data there in place of yours",
            fix=f"give your own directory; one that does not exist is made private {more}".strip(),
        )

    def _make(self) -> None:
        try:
            make_owned(self._path, KIND, 0o777 if self._shared else 0o700)
        except ForeignFile:
            self.check()  # raises an error for the user, unless the folder was removed
            raise
        self.check()

    # ---- entries -----------------------------------------------------------------------------------------------------

    def entries(self) -> list[EntryInfo]:
        """Return the existing entries, and remove temporary files that were left behind."""
        entries: list[EntryInfo] = []
        if not is_owned(self._path, KIND):
            return entries
        try:
            files = list(os.scandir(self._path))
        except OSError:
            return entries
        for file in files:
            with contextlib.suppress(OSError):  # another process may have removed the file
                info = file.stat(follow_symlinks=False)
                if not stat.S_ISREG(info.st_mode):
                    continue
                if NAME.fullmatch(file.name):
                    name = file.name.removesuffix(SUFFIX)
                    used = max(info.st_atime, info.st_mtime)
                    entries.append(self._info(name, info.st_size, used))
                elif time.time() - info.st_mtime > _ABANDONED:
                    remove_file(self._path, file.name, KIND, _TEMPORARY)
        return entries

    def remove(self, name: str) -> None:
        remove_file(self._path, name + SUFFIX, KIND, NAME)

    def alone(self, name: str) -> contextlib.AbstractContextManager[None]:
        try:
            self._make()
        except (CedarError, OSError):
            return contextlib.nullcontext()
        return alone(self.path(name))

    def _budget(self, taken: int) -> int:
        parent = self._given
        while not os.path.exists(parent):
            parent = os.path.dirname(parent) or "."
        return min(BYTES, int(_FREE_SHARE * (shutil.disk_usage(parent).free + taken)))

    def _load(self, name: str) -> tuple[Any, Any] | None:
        """Read the bytes, or map them privately: functions that write to the arrays must not change the entry."""
        try:
            with open(self.path(name), "rb", opener=_open_safely) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    return None
                raw: mmap.mmap | bytearray
                if status.st_size > _SMALL and len(_maps) < _MAX_MAPS:
                    raw = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
                    _maps.add(raw)
                else:
                    raw = bytearray(status.st_size)
                    del raw[file.readinto(raw) :]  # the file may have been cut short meanwhile
        except FileNotFoundError:
            return None
        mark = (self._path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        with contextlib.suppress(OSError):  # a read-only directory
            os.utime(self.path(name), ns=(time.time_ns(), status.st_mtime_ns))  # the access time records the last use
        return raw, mark

    def _save(self, name: str, write: Write, versions: Versions, room: Callable[[int], bool]) -> int:
        self._make()
        temporary = os.path.join(self._path, f".{uuid.uuid4().hex}.tmp")
        try:
            os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if self._shared else 0o600))
            with pa.OSFile(temporary, "wb") as sink:
                about, size = write(sink), sink.tell()
            with open(temporary, "r+b") as file:
                checksum = 0
                if size:
                    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as body:  # some mounts cannot share
                        checksum = zlib.crc32(body)
                file.seek(0, os.SEEK_END)
                file.write(tail(name, about, versions, size, checksum))
                size = file.tell()
            if not room(size):
                return 0
            os.replace(temporary, self.path(name))
            return size
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _open_safely(path: str, flags: int) -> int:
    """Open a file without following links. If it is a pipe, do not wait for its other end."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


# ---- stores at a URL -------------------------------------------------------------------------------------------------


_TIMES = ("LastModified", "mtime", "last_modified", "updated", "created")


class Bucket(Place):
    """A store at any fsspec URL. The oldest entries are evicted first, since few storages report the last use.

    cedar cannot know who else may write to the URL, so readers check every part of an entry.
    """

    def __init__(self, fs: Any, path: str, limit: int | None = None) -> None:
        self._remote = Remote(fs, RequestStats(RequestPatience.of_environment()))
        super().__init__(repr(self._remote.url(path)), limit)
        self._path = f"{path}/{INSIDE}"
        self._marked = False

    def check(self) -> None:
        """Do nothing: fsspec cannot report who may write to a URL."""

    def entries(self) -> list[EntryInfo]:
        """Return the existing entries, and remove temporary objects that were left behind."""
        try:
            with _as_oserrors():
                listed = self._call("ls", self._path, detail=True, refresh=True)
        except OSError:
            return []
        entries = []
        for info in listed:
            name = str(info["name"]).rpartition("/")[2]
            if NAME.fullmatch(name) and info.get("type") == "file":
                name = name.removesuffix(SUFFIX)
                entries.append(self._info(name, int(info.get("size") or 0), _write_time(info)))
            elif _TEMPORARY.fullmatch(name) and 0 < _write_time(info) < time.time() - _ABANDONED:
                with contextlib.suppress(OSError), _as_oserrors():  # another process may have removed it
                    if self._is_ours():
                        self._call("rm_file", f"{self._path}/{name}")
        return entries

    def remove(self, name: str) -> None:
        with contextlib.suppress(OSError), _as_oserrors():
            if NAME.fullmatch(name + SUFFIX) and self._is_ours():
                self._call("rm_file", self._file(name))

    def alone(self, name: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()  # few storages support locks; without them, the last write wins

    def _budget(self, taken: int) -> int:
        return BYTES

    def _load(self, name: str) -> tuple[Any, Any] | None:
        path = self._file(name)
        try:
            with _as_oserrors():
                size = self._call("info", path).get("size")
                if isinstance(size, int) and size > BYTES:
                    raise Damaged(f"it has {size:,} bytes")
                return self._remote.fetch(path, 0, None, size if isinstance(size, int) else None), None
        except FileNotFoundError:
            return None

    def _save(self, name: str, write: Write, versions: Versions, room: Callable[[int], bool]) -> int:
        raw = sealed(name, write, versions)
        if not room(len(raw)):
            return 0
        temporary = f"{self._path}/.{uuid.uuid4().hex}.tmp"
        with _as_oserrors():
            self._call("makedirs", self._path, exist_ok=True)
            if not self._is_ours():
                if self._call("ls", self._path, detail=False, refresh=True):
                    raise ForeignFile(f"it has a folder {INSIDE!r} that cedar did not make")
                self._call("pipe_file", f"{self._path}/{MARK}", value=mark_of(KIND))
                self._marked = True
            self._call("pipe_file", temporary, value=raw)
            rename(self._remote, temporary, self._file(name))
        return len(raw)

    def _is_ours(self) -> bool:
        if not self._marked:
            with contextlib.suppress(FileNotFoundError), _as_oserrors():
                self._marked = self._call("cat_file", f"{self._path}/{MARK}") == mark_of(KIND)
        return self._marked

    def _call(self, operation: str, path: str, **arguments: Any) -> Any:
        """Call a method of the filesystem, retry it after temporary failures, and return its result."""
        return self._remote.call(path, lambda: getattr(self._remote.fs, operation)(path, **arguments))

    def _file(self, name: str) -> str:
        return f"{self._path}/{name}{SUFFIX}"


@contextlib.contextmanager
def _as_oserrors() -> Iterator[None]:
    """Convert all errors of a storage library to OSError."""
    try:
        yield
    except (OSError, Damaged):
        raise
    except SourceError as error:
        raise OSError(error.args[0]) from error
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def _write_time(info: dict[str, Any]) -> float:
    """Return the time of the last write in seconds since 1970; 0 if the storage does not report it."""
    for name in _TIMES:
        given = info.get(name)
        if isinstance(given, (int, float)):
            return float(given)
        with contextlib.suppress(ValueError):
            given = dt.datetime.fromisoformat(given) if isinstance(given, str) else given
            if isinstance(given, dt.datetime):
                return given.timestamp()
    return 0.0
