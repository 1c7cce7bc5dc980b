"""Local files that appear whole, under names that others may want, too; on mounts without hard links as well."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator


def temporary_name(path: str, owner: str = "") -> str:
    """A hidden name next to a file that no other process gives, for as long as the file is not whole.

    Examples:
        >>> len(temporary_name("a", "job1")), temporary_name("out/a.json", "job1")[:20]
        (23, 'out/.a.json.tmp-job1')
    """
    folder, base = os.path.split(path)
    return os.path.join(folder, f".{base}.tmp-{owner}{uuid.uuid4().hex[:12]}")


def write_whole(path: str, data: bytes) -> None:
    """Write a file, or replace it: all of it, or nothing."""
    with _written(path, data) as temporary:
        os.replace(temporary, path)


def write_first(path: str, data: bytes) -> None:
    """Write a file unless there is one of that name; of several at once, one does.

    A folder decides, since many mounts have no hard links: it is renamed over an empty folder, and over no other. Each
    puts the name of its file into a folder, and whose folder becomes the claim has the name. Any code that meets a
    claim renames for it, so one that is killed holds nothing up.
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
    """Finish what processes that were killed in ``write_first`` had begun in a folder."""
    for name in os.listdir(folder):
        if name.startswith(".") and name.endswith(".claim"):
            _settle(os.path.join(folder, name))


def _settle(claim: str) -> None:
    folder, base = os.path.dirname(claim), os.path.basename(claim)[1 : -len(".claim")]
    with contextlib.suppress(OSError):  # another one was quicker, or is at it
        for name in os.listdir(claim):
            if name.startswith(f".{base}.tmp-") and not os.path.exists(os.path.join(folder, base)):
                with contextlib.suppress(FileNotFoundError):
                    os.rename(os.path.join(folder, name), os.path.join(folder, base))
            os.unlink(os.path.join(claim, name))
        os.rmdir(claim)


@contextlib.contextmanager
def _written(path: str, data: bytes) -> Iterator[str]:
    """A temporary file that is on the disk; it goes, unless it was renamed."""
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
