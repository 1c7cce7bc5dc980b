"""A folder that only this user can write to, for data that outlive a run and for keys of services."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile


def private_folder(name: str = "") -> str | None:
    """Return ``$XDG_CACHE_HOME/cedar`` or ``~/.cache/cedar``, or a folder in it; None if others can write to it.

    A missing folder is made private to this user. If that fails, a folder in the temporary directory is used.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".cache")
    if not os.path.isabs(base):
        return None
    folder = os.path.join(base, "cedar")
    with contextlib.suppress(OSError):
        os.makedirs(base, exist_ok=True)
    if not ours(folder):
        if os.path.lexists(folder):
            return None
        folder = os.path.join(tempfile.gettempdir(), f"cedar-{os.geteuid()}")
        if not ours(folder):
            return None
    inside = os.path.join(folder, name) if name else folder
    return inside if inside == folder or ours(inside) else None


def ours(folder: str) -> bool:
    """Make a folder if it is missing. Return whether it belongs to this user and no other user may write to it."""
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        return not why_not_ours(os.lstat(folder))
    except OSError:
        return False


def why_not_ours(status: os.stat_result) -> str:
    """Return why a path is not a folder that only this user can write to; "" if it is such a folder."""
    if not stat.S_ISDIR(status.st_mode):
        return "is not a directory"
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        return f"belongs to another user (uid {status.st_uid}, you are {os.geteuid()})"
    if hasattr(os, "geteuid") and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"can be written by others (mode {stat.S_IMODE(status.st_mode):o})"
    return ""
