"""Atomic writes of local files by competing processes, even on mounts without hard links."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator


def temporary_name(path: str, owner: str = "") -> str:
    """Return a hidden, unique name next to a file, for use until the file is complete.

    Examples:
        >>> len(temporary_name("a", "job1")), temporary_name("out/a.json", "job1")[:20]
        (23, 'out/.a.json.tmp-job1')
    """
    folder, base = os.path.split(path)
    return os.path.join(folder, f".{base}.tmp-{owner}{uuid.uuid4().hex[:12]}")


def write_whole(path: str, data: bytes) -> None:
    """Write or replace a file atomically."""
    with _written(path, data) as temporary:
        os.replace(temporary, path)


def write_first(path: str, data: bytes) -> None:
    """Write a file unless its name exists. If several processes try at the same time, one of them succeeds.

    Many mounts have no hard links. Instead, each process makes a folder with the name of its temporary file, and
    renames the folder to one shared name, the claim. Only one rename can succeed, since the claim is not empty
    afterward. Any process that finds a claim renames that temporary file, so a killed process does not block others.
    """
    folder, base = os.path.split(path)
    claim = os.path.join(folder, f".{base}.claim")
    with _written(path, data) as temporary:
        while os.path.exists(temporary) and not os.path.exists(path):
            mine = tempfile.mkdtemp(prefix=f".{base}.tmp-", dir=folder)
            with open(os.path.join(mine, os.path.basename(temporary)), "xb"):
                pass
            try:
                os.rename(mine, claim)
            except OSError as error:
                shutil.rmtree(mine, ignore_errors=True)
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY) and not os.path.isdir(claim):
                    raise
            _settle(claim)


def settle_claims(folder: str) -> None:
    """Complete the ``write_first`` calls of killed processes in a folder."""
    for name in os.listdir(folder):
        if name.startswith(".") and name.endswith(".claim"):
            _settle(os.path.join(folder, name))


def _settle(claim: str) -> None:
    folder, base = os.path.dirname(claim), os.path.basename(claim)[1 : -len(".claim")]
    with contextlib.suppress(OSError):  # another process has completed the claim, or is completing it
        for name in os.listdir(claim):
            if name.startswith(f".{base}.tmp-") and not os.path.exists(os.path.join(folder, base)):
                with contextlib.suppress(FileNotFoundError):
                    os.rename(os.path.join(folder, name), os.path.join(folder, base))
            os.unlink(os.path.join(claim, name))
        os.rmdir(claim)


@contextlib.contextmanager
def _written(path: str, data: bytes) -> Iterator[str]:
    """Write a temporary file to disk and yield its name. Remove the file afterward, unless it was renamed."""
    temporary = temporary_name(path)
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
