"""Detect changed files with the same name and size: by change time, tag, and samples of their contents."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeAlias

Stamp: TypeAlias = "tuple[int, int, int] | tuple[str, str] | None"
_STAMP_KEYS = ("ETag", "etag", "version_id", "generation", "md5", "crc32c", "LastModified", "last_modified", "mtime",
            "modified", "updated", "created")  # fmt: skip
_PIECE = 16 << 10  # bytes sampled at three places; a file of at most four times this is read completely
BUCKETS = 16  # groups of consecutive files ("runs") for which a state records changes
_SAMPLED_FILES = 4  # files per run whose contents are sampled


def stamp_of_stat(stat: os.stat_result) -> Stamp:
    """Return a local file's change time in ns, inode and device."""
    return stat.st_mtime_ns, stat.st_ino, stat.st_dev


def stamp_of_info(info: dict[str, Any], name: str = "") -> Stamp:
    """Return the most specific tag or time that fsspec reports for a file, with its name; None if there is none.

    Args:
        info: an entry from ``ls`` or ``info``.
        name: the entry to read, to compare with an earlier stamp; "" chooses the most specific one.
    """
    for each in (name,) if name else _STAMP_KEYS:
        value = info.get(each)
        if value is not None:
            return each, str(value.timestamp() if isinstance(value, datetime) else value).strip('"')
    return None


def portable_stamp(stamp: Stamp) -> Any:
    """Return the part of a stamp that is the same on every machine."""
    return None if stamp is None else list(stamp[:2])


def stamps_differ(listed: Stamp, now: Stamp) -> bool:
    """Return whether a file differs from the one that was listed, as far as stamps show.

    Inodes are compared only on the same device, since another machine may hold a copy.
    """
    if listed is None or now is None:
        return False
    if len(listed) == len(now) == 3:
        return listed[0] != now[0] or (listed[2] == now[2] and listed[1] != now[1])
    return listed != now


def pieces(size: int) -> list[tuple[int, int]]:
    """Return the ranges that represent a file: all of a small file, else its beginning, middle and end."""
    if size <= 4 * _PIECE:
        return [(0, size)] if size else []
    starts = (0, (size - _PIECE) // 2, size - _PIECE)
    return [(start, start + _PIECE) for start in starts]


def sampled_files(run: Sequence[Any]) -> Sequence[Any]:
    """Return the files of a run whose contents are sampled."""
    return run[:: -(-len(run) // _SAMPLED_FILES)]


def digest_runs(files: Sequence[Any], each: Callable[[Any], Any], some: bool = False) -> list[str]:
    """Return 8 hex digits per run of files: a hash of the results of ``each`` for all or ``some`` of its files.

    The hash is "" if ``each`` returns None for a file of the run.
    """
    digests = []
    for number in range(min(BUCKETS, len(files))):
        run = run_of(files, number)
        reported = [each(file) for file in (sampled_files(run) if some else run)]
        text = json.dumps([len(run), *reported])
        digests.append("" if any(one is None for one in reported) else hashlib.sha256(text.encode()).hexdigest()[:8])
    return digests


def run_of(files: Sequence[Any], number: int) -> Sequence[Any]:
    """Return the files of a run."""
    count = min(BUCKETS, len(files))
    return files[len(files) * number // count : len(files) * (number + 1) // count]


def changed_runs(files: int, before: tuple[list[str], list[str]], now: tuple[list[str], list[str]]) -> list[int]:
    """Return the runs of files whose data changed.

    Equal stamps mean equal data. If stamps differ, the files may be copies with the same contents. If there are more
    files than are sampled, this holds only if all stamps differ: a single replaced file is not a copy.

    Args:
        files: number of files.
        before: earlier stamps and contents, as returned by ``digest_runs``.
        now: current stamps and contents.
    """
    differing = [i for i, (a, b) in enumerate(zip(before[0], now[0], strict=True)) if a != b or not a]
    all_sampled = files <= BUCKETS * _SAMPLED_FILES or len(differing) == len(now[0])
    return [i for i in differing if not (all_sampled and before[1][i] and before[1][i] == now[1][i])]
