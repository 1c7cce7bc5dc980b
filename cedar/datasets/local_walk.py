"""Walks through local folders. Links are followed; one that leads back to a folder that it lies in ends there."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator


def folders_below(root: str, hidden: tuple[str, ...]) -> Iterator[tuple[str, list[str]]]:
    """``root`` and the folders below it, each with the names of the files in it.

    A folder that is, by its inode, one of those it was reached through is not entered again. Two links to one folder,
    or to one file, are two: their rows are read twice.

    Args:
        root: a folder.
        hidden: folders whose names begin so are left out.

    Raises:
        OSError: a folder cannot be listed.
    """
    inodes: dict[str, tuple[int, int]] = {root: _inode(root)}
    for folder, folders, names in os.walk(root, onerror=_raise, followlinks=True):
        through, at = {inodes[folder]}, folder
        while at != root:
            at = os.path.dirname(at)
            through.add(inodes[at])
        kept = []
        for name in folders:
            path = os.path.join(folder, name)
            if name.startswith(hidden) or (inode := _inode(path)) in through:
                continue
            inodes[path] = inode
            kept.append(name)
        folders[:] = kept
        yield folder, names


def local_glob(pattern: str) -> set[str]:
    """What matches a pattern, as ``glob.glob(pattern, recursive=True)``, without running round in links.

    Raises:
        OSError: a folder below ``**`` cannot be listed.
    """
    parts = pattern.split("/")
    if "**" not in parts:
        return set(glob.glob(pattern))
    above = "/".join(parts[: parts.index("**")]) or "/"
    found = _matches(parts)
    folders = {os.path.dirname(path) for path in found}
    circles = {folder for folder in folders if _circles(folder, above.count("/"))}
    return {path for path in found if os.path.dirname(path) not in circles}


def _matches(parts: list[str]) -> set[str]:
    if "**" not in parts:
        return set(glob.glob("/".join(parts)))
    place = parts.index("**")
    above, below = "/".join(parts[:place]) or "/", parts[place + 1 :]
    found: set[str] = set()
    for base in glob.glob(above):
        for folder, names in folders_below(base, (".",)) if os.path.isdir(base) else ():
            if below:
                found |= _matches([*glob.escape(folder).split("/"), *below])
            else:
                found |= {folder, *(os.path.join(folder, name) for name in names if not name.startswith("."))}
    return found


def _circles(folder: str, depth: int) -> bool:
    """Whether a folder and those above it, from so many levels on, come to one that they come from."""
    parts = folder.split("/")
    inodes = [_inode("/".join(parts[:n]) or "/") for n in range(depth + 1, len(parts) + 1)]
    return len(set(inodes)) < len(inodes)


def _inode(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _raise(error: OSError) -> None:
    raise error
