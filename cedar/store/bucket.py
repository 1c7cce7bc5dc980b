"""Store entries as objects below a URL, in a folder with a marker file of cedar."""

from __future__ import annotations

import contextlib
import datetime as dt
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from cedar.core.errors import SourceError
from cedar.core.remote import Remote, rename
from cedar.core.requests import RequestPatience, RequestStats
from cedar.store.entry import Damaged, Versions, Write, sealed
from cedar.store.files import MARK, ForeignFile, mark_of
from cedar.store.place import BYTES, INSIDE, KIND, NAME, SUFFIX, EntryInfo, Place

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
