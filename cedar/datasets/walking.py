"""Walks through folders of other storage. fsspec's own leave out, without a word, a folder that cannot be listed."""

from __future__ import annotations

import re
from typing import Any

from cedar.datasets.faults import fault_of, status_of
from cedar.datasets.remote import Remote

Found = dict[str, dict[str, Any]]


def find(remote: Remote, root: str, depth: int | None = None) -> Found:
    """What lies below ``root``, by path; folders too where the storage has any.

    Args:
        remote: the storage.
        root: a folder; nothing is found where it does not exist.
        depth: levels below it; None is all of them.

    Raises:
        Exception: a folder cannot be listed.
    """
    if depth is None and _flat(remote.fs):
        return dict(remote.call(root, lambda: remote.fs.find(root, detail=True)))
    found: Found = {}
    folders = [(root, 1)]
    while folders:
        folder, level = folders.pop()
        for info in remote.call(folder, lambda folder=folder: _entries(remote.fs, folder)):  # type: ignore[misc]
            path = info["name"].rstrip("/")
            if path == folder.rstrip("/") or path in found:
                continue
            found[path] = info
            if info["type"] == "directory" and (depth is None or level < depth):
                folders.append((path, level + 1))
    return dict(sorted(found.items()))


def glob(remote: Remote, pattern: str, root: str) -> Found:
    """What matches a pattern, by path.

    Args:
        remote: the storage.
        pattern: as fsspec has them, with ``**``.
        root: the folder above its first component that is a pattern.

    Raises:
        Exception: a folder cannot be listed.
    """
    from fsspec.utils import glob_translate

    if _flat(remote.fs):
        return dict(remote.call(pattern, lambda: remote.fs.glob(pattern, detail=True)))
    depth = None if "**" in pattern else pattern[len(root) :].strip("/").count("/") + 1
    matches = re.compile(glob_translate(pattern)).match
    return {path: info for path, info in find(remote, root, depth).items() if matches(path)}


def _flat(fs: Any) -> bool:
    """The storage lists all that is below a prefix by itself, and says so where it fails."""
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
