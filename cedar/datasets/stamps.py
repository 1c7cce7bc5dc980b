"""What tells a file from another of its name and size: when it was changed, its tag, and a look at its contents."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeAlias

Stamp: TypeAlias = "tuple[int, int, int] | tuple[str, str] | None"
_TELLING = ("ETag", "etag", "version_id", "generation", "md5", "crc32c", "LastModified", "last_modified", "mtime",
            "modified", "updated", "created")  # fmt: skip
_PIECE = 16 << 10  # bytes that are inspected in three places; a file of up to four pieces as a whole
BUCKETS = 16  # runs of files that a state tells apart
_LOOKS = 4  # files of a run whose contents are inspected


def stamp_of_stat(stat: os.stat_result) -> Stamp:
    """Of a local file: ns of its last change, its inode and its device."""
    return stat.st_mtime_ns, stat.st_ino, stat.st_dev


def stamp_of_info(info: dict[str, Any], name: str = "") -> Stamp:
    """Of a file of other storage, what fsspec tells of it that tells most, and its name; None if it tells nothing.

    Args:
        info: as ``ls`` or ``info`` give it.
        name: of the object, to compare its stamp with an earlier one.
    """
    for each in (name,) if name else _TELLING:
        value = info.get(each)
        if value is not None:
            return each, str(value.timestamp() if isinstance(value, datetime) else value).strip('"')
    return None


def lasting(stamp: Stamp) -> Any:
    """What of a stamp is the same from every machine."""
    return None if stamp is None else list(stamp[:2])


def differ(listed: Stamp, now: Stamp) -> bool:
    """Whether the file is another than the one that was listed, as far as can be known.

    Inodes count on the device that listed them: another machine may hold a copy.
    """
    if listed is None or now is None:
        return False
    if len(listed) == len(now) == 3:
        return listed[0] != now[0] or (listed[2] == now[2] and listed[1] != now[1])
    return listed != now


def pieces(size: int) -> list[tuple[int, int]]:
    """The ranges of a file that stand for its contents: all of a small one, of others the beginning, middle and end."""
    if size <= 4 * _PIECE:
        return [(0, size)] if size else []
    starts = (0, (size - _PIECE) // 2, size - _PIECE)
    return [(start, start + _PIECE) for start in starts]


def looked_at(run: Sequence[Any]) -> Sequence[Any]:
    """The files of a run whose contents are inspected."""
    return run[:: -(-len(run) // _LOOKS)]


def told_of_runs(files: Sequence[Any], each: Callable[[Any], Any], some: bool = False) -> list[str]:
    """8 hex digits per run of files, of what ``each`` says of them, or of some of them.

    A run of which nothing can be said (None of some file) is "".
    """
    digests = []
    for number in range(min(BUCKETS, len(files))):
        run = run_of(files, number)
        reported = [each(file) for file in (looked_at(run) if some else run)]
        text = json.dumps([len(run), *reported])
        digests.append("" if any(one is None for one in reported) else hashlib.sha256(text.encode()).hexdigest()[:8])
    return digests


def run_of(files: Sequence[Any], number: int) -> Sequence[Any]:
    """The files of a run."""
    count = min(BUCKETS, len(files))
    return files[len(files) * number // count : len(files) * (number + 1) // count]


def changed_runs(files: int, before: tuple[list[str], list[str]], now: tuple[list[str], list[str]]) -> list[int]:
    """The runs of files whose data are others than before.

    Where a stamp is the same, so are the data. Where it differs the files may be copies, whose contents are the same;
    of more files than are inspected, only if all stamps differ: one that was replaced among others is not a copy.

    Args:
        files: how many there are.
        before: stamps and contents, as ``told_of_runs`` gives them.
        now: the same.
    """
    apart = [i for i, (a, b) in enumerate(zip(before[0], now[0], strict=True)) if a != b or not a]
    looked = files <= BUCKETS * _LOOKS or len(apart) == len(now[0])
    return [i for i in apart if not (looked and before[1][i] and before[1][i] == now[1][i])]
