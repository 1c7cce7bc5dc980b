"""Results that runs save for later runs, in the user's folder or next to data. Missing results are recomputed."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from cedar.core.errors import CedarError
from cedar.core.printable import StorageOptions, redact
from cedar.core.remote import Remote, is_remote, local_path
from cedar.store.entry import Entry, OtherVersion, Versions, Write
from cedar.store.files import alone, private_folder, write_whole
from cedar.store.folder import Bucket, Folder
from cedar.store.place import Place

T = TypeVar("T")
_MIN_ENTRY_BYTES = 1 << 20  # each entry counts as at least this many bytes, which limits a store to 16,384 entries
_log = logging.getLogger("cedar")


def user_place() -> Folder | None:
    """Return this user's store; None if there is no folder that only this user can write to."""
    folder = private_folder()
    return None if folder is None else _folder(folder)


@functools.lru_cache(maxsize=64)
def _folder(path: str) -> Folder:
    return Folder(path, least=_MIN_ENTRY_BYTES)


def store_next_to(where: str, limit: int) -> Place:
    """Return a store next to data, at a path or URL. Everyone who may write to that folder shares the store."""
    if is_remote(where):
        remote, path = Remote.at(where, None)
        return Bucket(remote.fs, path, limit)
    return Folder(local_path(where), limit=limit, shared=True)


def load(place: Place | None, name: str, read: Callable[[Entry], T], versions: Versions | None = None) -> T | None:
    """Return ``read(entry)``; None if the entry is missing or cannot be used. The latter is logged.

    Args:
        place: the store; None means that nothing is saved.
        name: a name from ``name_of``.
        read: converts an entry; raises ValueError, TypeError or KeyError if the entry is invalid.
        versions: the expected versions in the entry.
    """
    if place is None:
        return None
    try:
        entry = place.get(name, versions or {})
        return None if entry is None else read(entry)
    except OtherVersion:
        return None
    except (ValueError, TypeError, KeyError) as error:
        place.remove(name)
        _log.warning("an entry in %s cannot be used and will be recomputed: %s", place.shown, redact(str(error)))
    except (CedarError, OSError) as error:
        _log.info("entries in %s cannot be read: %s", place.shown, redact(str(error)))
    return None


def save(place: Place | None, name: str, write: Write, versions: Versions | None = None, expected: int = 0) -> bool:
    """Save an entry and return True. Return False without room or if writing fails; the first failure is a warning.

    Args:
        place: the store; None means that nothing is saved.
        name, write, versions, expected: as for ``Place.put``.
    """
    if place is None:
        return False
    try:
        return bool(place.put(name, write, versions or {}, expected))
    except (CedarError, OSError) as error:
        level = logging.INFO if place.refuses else logging.WARNING
        _log.log(level, "entries cannot be saved in %s: %s", place.shown, redact(str(error)))
        place.refuses = True
        return False


def once(place: Place | None, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return saved JSON, or compute and save it in one process while others wait. ``place=None`` saves nothing."""
    with contextlib.nullcontext() if place is None else place.alone(name):
        known = load(place, name, lambda entry: entry.about)
        if known is None:
            known = computed = make()
            save(place, name, lambda _: computed)
        return known


# ---- files that the user names ---------------------------------------------------------------------------------------


def exclusive_at(where: str) -> contextlib.AbstractContextManager[None]:
    """Lock the creation of a local file: one process at a time runs the ``with`` block. URLs are not locked."""
    return contextlib.nullcontext() if is_remote(where) else alone(local_path(where))


def storage_of(path: str, options: StorageOptions | None = None) -> tuple[Remote | None, str]:
    """Return the storage of a path (None for local paths) and the path in it."""
    return Remote.at(path, options) if is_remote(path) else (None, path)


def read_file(where: str, options: StorageOptions | None = None) -> bytes | None:
    """Return the bytes of a file; None if it does not exist. Errors of the storage are raised unchanged."""
    remote, path = storage_of(where, options)
    with contextlib.suppress(FileNotFoundError):
        if remote is not None:
            fs = remote.fs
            return bytes(remote.call(path, lambda: fs.cat_file(path)))
        with open(local_path(where), "rb") as stream:
            return stream.read()
    return None


def write_file(where: str, data: bytes, options: StorageOptions | None = None) -> None:
    """Write a file completely or not at all."""
    remote, path = storage_of(where, options)
    if remote is None:
        write_whole(local_path(where), data)
        return
    fs = remote.fs
    remote.call(path, lambda: fs.pipe_file(path, data))
