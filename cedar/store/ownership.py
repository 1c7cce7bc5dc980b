"""What may be removed: files that this format wrote, in folders that it made and marked. Nothing else ever is.

A folder is marked by a small file when it is created. Before anything in it is removed the mark is read again, and
names are those of the format; so a folder of the user's that gets into a path by mistake stays unchanged.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile

from cedar.store.whole_files import write_whole

MARK = ".cedar-owned"
_MOST = 4096  # bytes of a mark


class ForeignFile(OSError):
    """A folder, or a file, that cedar did not make."""


def mark_of(kind: str) -> bytes:
    """What the mark of a folder says."""
    return f"cedar made this folder, and removes what it wrote here: {kind}\n".encode()


def make_owned(path: str, kind: str, mode: int = 0o700) -> None:
    """Make a folder, for this user alone if not set otherwise, with its mark; one that is there must bear it.

    Args:
        path: of the folder; those above it are made too.
        kind: of what is kept in it, and the version of its format, such as ``cache 5``.
        mode: as ``os.mkdir`` takes it.

    Raises:
        ForeignFile: a folder that is there is not ours.
        OSError: it cannot be made.
    """
    os.makedirs(os.path.dirname(path) or ".", mode=mode, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode)
    if is_owned(path, kind):
        return
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        raise ForeignFile(f"{path!r} is not a folder")
    if foreign := holds_foreign(path, kind):
        raise ForeignFile(f"{path!r} holds what cedar did not write, such as {foreign!r}")
    _write_mark(path, kind)


def holds_foreign(path: str, kind: str) -> str:
    """A name in a folder that does not bear the mark of this kind; "" if there is none, or the folder is ours."""
    names = sorted(name for name in os.listdir(path) if not name.startswith((f"{MARK}-", f".{MARK}.tmp-")))
    return names[0] if names and not is_owned(path, kind) else ""  # another thread may have marked it meanwhile


def _write_mark(path: str, kind: str) -> None:
    write_whole(os.path.join(path, MARK), mark_of(kind))


def is_owned(path: str, kind: str) -> bool:
    """Whether a folder is there, is not a link, and bears the mark of this kind."""
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            return False
        with open(os.path.join(path, MARK), "rb") as file:
            return file.read(_MOST) == mark_of(kind)
    except OSError:
        return False


def remove_file(folder: str, name: str, kind: str, names: re.Pattern[str]) -> bool:
    """Remove a regular file that bears a name of the format, from a folder of the kind; whether it was.

    A name may lie in a folder below, which is not a link.
    """
    path = os.path.join(folder, name)
    if not names.fullmatch(name) or not is_owned(folder, kind):
        return False
    inside = os.path.join(os.path.realpath(folder), os.path.dirname(name))
    if os.path.realpath(os.path.dirname(path)) != inside.rstrip(os.sep):
        return False
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return False
        os.unlink(path)
    except OSError:
        return False
    return True


def remove_tree(path: str, kind: str) -> bool:
    """Remove a marked folder with all that is in it; whether it was there, and ours."""
    if not is_owned(path, kind):
        return False
    shutil.rmtree(path, ignore_errors=True)
    return True


def temporary_folder(kind: str) -> str:
    """A new folder among the system's temporary ones, marked, for this user alone."""
    path = tempfile.mkdtemp(prefix=f"cedar-{kind}-")
    _write_mark(path, kind)
    return path
