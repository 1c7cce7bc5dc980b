"""Entries as files of a directory that this user alone can write, in a marked folder of their own."""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import shutil
import stat
import time
import uuid
import weakref
import zlib
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import pyarrow as pa

from cedar.cache.entries import FORMAT, tail, write_body
from cedar.cache.eviction import EntryInfo
from cedar.core.block import Block
from cedar.core.errors import PipelineError
from cedar.store.ownership import ForeignFile, holds_foreign, is_owned, make_owned, remove_file

SUFFIX = ".arrow"
KIND = f"cache {FORMAT}"
INSIDE = f".cedar-cache-{FORMAT}"  # hidden: no reader takes what is in it for data
ENTRY = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}\.arrow")
_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.tmp")
NOTE_BYTES = 64 << 20  # of a manifest; more is not read
DISK_BYTES = 16 << 30  # or 80% of what is free, whichever is less
_FREE_SHARE = 0.8
_ABANDONED = 3600.0  # seconds after which a temporary file is nobody's
_SMALL = 4 << 20  # bytes: up to that, entries are read; a map holds a file descriptor until nobody has its rows
_MOST_MAPS = 128

_maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


class Folder:
    """A directory. Files appear whole, by a rename; large ones are read through maps. Removing one hurts no reader.

    Entries lie in a folder of their own in it, which is marked. Only what bears names of this format there is ever
    removed; whatever else the directory holds, the data themselves among it, is left alone.

    Args:
        path: of the directory; made, for this user alone, with the first entry.
        shown: what messages call it.
    """

    kind = "disk"

    def __init__(self, path: str, shown: str) -> None:
        self._given = path
        self._path = os.path.join(path, INSIDE)
        self._shown = shown

    def check(self) -> None:
        """Refuse a directory into which somebody else could have put entries.

        Raises:
            PipelineError: another user owns it or can write it, it is no directory, or there is something else where
                entries would lie.
        """
        self._check_one(self._given, os.stat)
        self._check_one(self._path, os.lstat)
        if os.path.lexists(self._path) and holds_foreign(self._path, KIND):
            raise self._refused(f"has a folder {INSIDE!r} that cedar did not make", "or move that away")

    def _check_one(self, path: str, look: Callable[[str], os.stat_result]) -> None:
        try:
            status = look(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._refused(f"cannot be looked at: {error}") from error
        if not stat.S_ISDIR(status.st_mode):
            raise self._refused("is no directory")
        if not hasattr(os, "geteuid"):  # Windows: the user's profile is private
            return
        if status.st_uid != os.geteuid():
            raise self._refused(f"belongs to another user (uid {status.st_uid}, you are {os.geteuid()})")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise self._refused(
                f"can be written by others (mode {stat.S_IMODE(status.st_mode):o})", f"or: chmod go-w {path}"
            )

    def _refused(self, problem: str, more: str = "") -> PipelineError:
        return PipelineError(
            f"cache({self._shown!r}): the directory {problem}",
            done="nothing was read from it: what others can write could be taken for your data",
            fix=f"give a directory of your own; one that does not exist is made private {more}".strip(),
        )

    def budget(self, taken: int) -> int:
        """The bytes that entries may take when the user gave no number; ``taken`` are in use already."""
        at = self._given
        while not os.path.exists(at):
            at = os.path.dirname(at) or "."
        return min(DISK_BYTES, int(_FREE_SHARE * (shutil.disk_usage(at).free + taken)))

    def load(self, name: str) -> tuple[Any, Any] | None:
        """The bytes of an entry, and a mark that is another after every change of them; None where there is none.

        They are private: what a function writes into its arrays stays with it.
        """
        try:
            with open(self._file(name), "rb", opener=_plainly) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    return None
                large = status.st_size > _SMALL and len(_maps) < _MOST_MAPS
                raw = _mapped(file) if large else _read(file, status.st_size)
        except FileNotFoundError:
            return None
        mark = (self._path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        with contextlib.suppress(OSError):  # a directory that can only be read
            os.utime(self._file(name), ns=(time.time_ns(), status.st_mtime_ns))  # the access time is the last use
        return raw, mark

    def save(self, name: str, blocks: Sequence[Block], ordinals: Sequence[int], room: Callable[[int], bool]) -> int:
        """Write an entry where there is room for its bytes, and return them; else 0. Raises OSError."""
        temporary = self._temporary()
        try:
            with pa.OSFile(temporary, "wb") as sink:
                described = write_body(blocks, sink, ordinals)
            size = _seal(temporary, name, described)
            if not room(size):
                return 0
            os.replace(temporary, self._file(name))
            return size
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary)

    def _temporary(self) -> str:
        try:
            make_owned(self._path, KIND)
        except ForeignFile:
            self.check()  # which says it, unless it is gone
            raise
        self.check()
        path = os.path.join(self._path, f".{uuid.uuid4().hex}.tmp")
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        return path

    def entries(self) -> list[EntryInfo]:
        """What is there; temporary files that were left behind are removed."""
        entries: list[EntryInfo] = []
        if not is_owned(self._path, KIND):
            return entries
        try:
            files = list(os.scandir(self._path))
        except OSError:
            return entries
        for file in files:
            with contextlib.suppress(OSError):  # removed meanwhile
                info = file.stat(follow_symlinks=False)
                if not stat.S_ISREG(info.st_mode):
                    continue
                if ENTRY.fullmatch(file.name):
                    name = file.name.removesuffix(SUFFIX)
                    used = max(info.st_atime, info.st_mtime)
                    entries.append(EntryInfo(name, name.partition("-")[0], info.st_size, used))
                elif time.time() - info.st_mtime > _ABANDONED:
                    remove_file(self._path, file.name, KIND, _TEMPORARY)
        return entries

    def remove(self, name: str) -> None:
        """Remove an entry; whoever reads it goes on."""
        remove_file(self._path, name + SUFFIX, KIND, ENTRY)

    def read_note(self, name: str) -> bytes | None:
        """A small file beside the entries."""
        try:
            with open(os.path.join(self._path, name), "rb") as file:
                raw = file.read(NOTE_BYTES + 1)
        except OSError:
            return None
        return raw if len(raw) <= NOTE_BYTES else None

    def write_note(self, name: str, text: bytes) -> None:
        """Write a small file, whole. Raises OSError."""
        temporary = self._temporary()
        try:
            with open(temporary, "wb") as file:
                file.write(text)
            os.replace(temporary, os.path.join(self._path, name))
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary)

    def _file(self, name: str) -> str:
        return os.path.join(self._path, name + SUFFIX)


def _plainly(path: str, flags: int) -> int:
    """Opens a file, follows no link, and does not wait for the other end of a pipe."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


def _mapped(file: BinaryIO) -> mmap.mmap:
    made = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    _maps.add(made)
    return made


def _read(file: BinaryIO, size: int) -> bytearray:
    content = bytearray(size)
    del content[file.readinto(content) :]  # type: ignore[attr-defined]
    return content


def _seal(path: str, name: str, described: dict[str, Any]) -> int:
    """Append what makes a body the entry ``name``; returns the size of the file."""
    with open(path, "r+b") as file:
        checksum = 0
        if described["size"]:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as body:  # mounts may have no shared maps
                checksum = zlib.crc32(body)
        file.seek(0, os.SEEK_END)
        file.write(tail(name, described, checksum))
        return file.tell()
