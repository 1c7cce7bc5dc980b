"""Safe removal: cedar only removes files that it wrote, in folders that it made and marked.

When cedar makes a folder, it adds a small marker file. Before it removes a file from a folder, it reads the marker and
checks that the file's name matches the format's pattern. Other folders, such as one named by mistake, stay unchanged.
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
_MOST = 4096  # maximum bytes to read from a marker file


class ForeignFile(OSError):
    """Raised for a folder or file that cedar did not make."""


def mark_of(kind: str) -> bytes:
    """Return the content of the marker file for a kind of folder."""
    return f"cedar made this folder, and removes what it wrote here: {kind}\n".encode()


def make_owned(path: str, kind: str, mode: int = 0o700) -> None:
    """Make a folder with a marker file, by default private to this user. If the folder exists, it must have the marker.

    Args:
        path: the folder; missing parent folders are made too.
        kind: the kind of its contents and their format version, such as ``cache 5``.
        mode: as for ``os.mkdir``.

    Raises:
        ForeignFile: the folder exists and cedar did not make it.
        OSError: the folder cannot be made.
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
    """Return the first name in a folder that lacks this kind's marker; "" if the folder is empty or has the marker."""
    names = sorted(name for name in os.listdir(path) if not name.startswith((f"{MARK}-", f".{MARK}.tmp-")))
    return names[0] if names and not is_owned(path, kind) else ""  # another thread may just have added the marker


def _write_mark(path: str, kind: str) -> None:
    write_whole(os.path.join(path, MARK), mark_of(kind))


def is_owned(path: str, kind: str) -> bool:
    """Whether a folder exists, is not a link, and has the marker of this kind."""
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            return False
        with open(os.path.join(path, MARK), "rb") as file:
            return file.read(_MOST) == mark_of(kind)
    except OSError:
        return False


def remove_file(folder: str, name: str, kind: str, names: re.Pattern[str]) -> bool:
    """Remove a regular file if its name matches the pattern and its folder has the marker; return whether it did.

    The file may be in a subfolder that is not a link.
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
    """Remove a folder and its contents if it has the marker; return whether that was the case."""
    if not is_owned(path, kind):
        return False
    shutil.rmtree(path, ignore_errors=True)
    return True


def temporary_folder(kind: str) -> str:
    """Make a private folder with a marker in the system's temporary directory."""
    path = tempfile.mkdtemp(prefix=f"cedar-{kind}-")
    _write_mark(path, kind)
    return path
