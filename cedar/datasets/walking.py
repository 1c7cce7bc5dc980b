"""Walk remote and local folders; unlike fsspec, raise if a folder cannot be listed."""

from __future__ import annotations

import glob as patterns
import os
import re
from collections.abc import Iterator, Sequence
from fnmatch import translate
from typing import Any

from cedar.core.remote import Remote
from cedar.core.requests import fault_of, status_of

Found = dict[str, dict[str, Any]]


def find(remote: Remote, root: str, depth: int | None = None) -> Found:
    """Return the entries of all files below ``root`` by path, and of folders unless the storage lists recursively.

    Args:
        remote: the remote storage.
        root: a folder; the result is empty if it does not exist.
        depth: how many levels below ``root`` to list; None lists all levels.

    Raises:
        Exception: a folder cannot be listed.
    """
    if depth is None and _lists_recursively(remote.fs):
        return dict(remote.call(root, lambda: remote.fs.find(root, detail=True)))
    entries: Found = {}
    folders = [(root, 1)]
    while folders:
        folder, level = folders.pop()
        for info in remote.call(folder, lambda folder=folder: _entries(remote.fs, folder)):  # type: ignore[misc]
            path = info["name"].rstrip("/")
            if path == folder.rstrip("/") or path in entries:
                continue
            entries[path] = info
            if info["type"] == "directory" and (depth is None or level < depth):
                folders.append((path, level + 1))
    return dict(sorted(entries.items()))


def glob(remote: Remote, pattern: str, root: str) -> Found:
    """Return the entries of all files and folders that match a pattern, by path.

    Args:
        remote: the remote storage.
        pattern: a pattern in fsspec's syntax, with ``**``.
        root: the folder above the pattern's first component with a wildcard.

    Raises:
        Exception: a folder cannot be listed.
    """
    from fsspec.utils import glob_translate

    if _lists_recursively(remote.fs):
        return dict(remote.call(pattern, lambda: remote.fs.glob(pattern, detail=True)))
    depth = None if "**" in pattern else pattern[len(root) :].strip("/").count("/") + 1
    matches = re.compile(glob_translate(pattern)).match
    return {path: info for path, info in find(remote, root, depth).items() if matches(path)}


def _lists_recursively(fs: Any) -> bool:
    """Return whether the storage can list everything below a prefix by itself and then reports failures."""
    from fsspec.asyn import AsyncFileSystem
    from fsspec.spec import AbstractFileSystem

    own = getattr(type(fs), "_find", AsyncFileSystem._find)
    return own is not AsyncFileSystem._find or type(fs).find is not AbstractFileSystem.find


def _entries(fs: Any, folder: str) -> list[dict[str, Any]]:
    try:
        return list(fs.ls(folder, detail=True))
    except FileNotFoundError as error:
        if fault_of(error) is not None or status_of(error) in {401, 403}:
            raise
        return []


# ---- local folders -------------------------------------------------------------------------------------------------


def folders_below(
    root: str, hidden: tuple[str, ...], above: tuple[tuple[int, int], ...] = ()
) -> Iterator[tuple[str, list[str]]]:
    """Yield ``root`` and the folders below it, except with a prefix in ``hidden``, each with the names of its files.

    A link to a folder above itself (``above`` has their inodes) is not followed. If two links lead to one folder or
    file, both are included, so that its rows are read twice.

    Raises:
        OSError: a folder cannot be listed.
    """
    inode = _inode(root)
    if inode in above:
        return
    with os.scandir(root) as entries:
        is_folder = {entry.name: entry.is_dir() for entry in entries}
    yield root, [name for name, folder in is_folder.items() if not folder]
    for name, folder in is_folder.items():
        if folder and not name.startswith(hidden):
            yield from folders_below(os.path.join(root, name), hidden, (*above, inode))


def local_glob(pattern: str) -> set[str]:
    """Return the paths that match an absolute pattern, like ``glob.glob(pattern, recursive=True)`` without link cycles.

    Raises:
        OSError: a folder cannot be listed.
    """
    parts = pattern.split("/")
    matches = set(_matches(parts[0] or "/", parts[1:]))
    if "**" not in parts:
        return matches
    depth = ("/".join(parts[: parts.index("**")]) or "/").count("/")
    cyclic_folders = set()
    for folder in {os.path.dirname(path) for path in matches}:
        names = folder.split("/")
        inodes = [_inode("/".join(names[:n]) or "/") for n in range(depth + 1, len(names) + 1)]
        if len(set(inodes)) < len(inodes):  # the path contains the same folder twice: links form a cycle
            cyclic_folders.add(folder)
    return {path for path in matches if os.path.dirname(path) not in cyclic_folders}


def _matches(folder: str, parts: Sequence[str]) -> Iterator[str]:
    """Yield the paths in a folder that match the components of a pattern."""
    part, rest = parts[0], parts[1:]
    if part == "**":
        for below, names in folders_below(folder, (".",)) if os.path.isdir(folder) else ():
            if rest:
                yield from _matches(below, rest)
            else:
                yield from (below, *(os.path.join(below, name) for name in names if not name.startswith(".")))
        return
    wild = patterns.has_magic(part)
    for name in _names_like(folder, part, bool(rest)) if wild else (part,):
        path = os.path.join(folder, name)
        if rest:
            yield from _matches(path, rest)
        elif wild or os.path.lexists(path):
            yield path


def _names_like(folder: str, pattern: str, only_folders: bool) -> list[str]:
    """Return the names in a folder that match a pattern; none if the folder does not exist."""
    match = re.compile(translate(pattern)).match
    hidden = () if pattern.startswith(".") else (".",)
    try:
        with os.scandir(folder) as entries:
            found = [entry for entry in entries if match(entry.name) and not entry.name.startswith(hidden)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    if only_folders:  # ``is_dir`` would raise for a link to itself
        found = [entry for entry in found if (os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir())]
    return [entry.name for entry in found]


def _inode(path: str) -> tuple[int, int]:
    stat = os.stat(path)
    return stat.st_dev, stat.st_ino
