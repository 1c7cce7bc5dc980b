"""Detect changed files of unchanged name and size by modification time, tag, and samples of the contents."""

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
_PIECE = 16 << 10  # bytes per sample, three samples per file; a file of up to four times this is read whole
BUCKETS = 16  # number of groups of consecutive files ("runs") for which a state has hashes
_SAMPLED_FILES = 4  # files per run whose contents are sampled


def stamp_of_stat(stat: os.stat_result) -> Stamp:
    """Return a local file's modification time in ns, inode and device."""
    return stat.st_mtime_ns, stat.st_ino, stat.st_dev


def stamp_of_info(info: dict[str, Any], name: str = "") -> Stamp:
    """Return the name and value of the most specific tag or time that fsspec reports for a file; None without any.

    Args:
        info: the result of fsspec's ``info``, or an entry of ``ls``.
        name: the tag or time to return, for comparison with an earlier stamp; "" chooses the most specific one.
    """
    for each in (name,) if name else _STAMP_KEYS:
        value = info.get(each)
        if value is not None:
            return each, str(value.timestamp() if isinstance(value, datetime) else value).strip('"')
    return None


def portable_stamp(stamp: Stamp) -> Any:
    """Return a stamp without the device number, which differs between machines."""
    return None if stamp is None else list(stamp[:2])


def stamps_differ(listed: Stamp, now: Stamp) -> bool:
    """Return whether a file's stamps show that the file changed after it was listed.

    Inodes are compared only on the same device, since another machine may have a copy of the file.
    """
    if listed is None or now is None:
        return False
    if len(listed) == len(now) == 3:
        return listed[0] != now[0] or (listed[2] == now[2] and listed[1] != now[1])
    return listed != now


def pieces(size: int) -> list[tuple[int, int]]:
    """Return the byte ranges to sample: all of a small file, or the beginning, middle and end of a larger file."""
    if size <= 4 * _PIECE:
        return [(0, size)] if size else []
    starts = (0, (size - _PIECE) // 2, size - _PIECE)
    return [(start, start + _PIECE) for start in starts]


def sampled_files(run: Sequence[Any]) -> Sequence[Any]:
    """Return the files of a run whose contents are sampled."""
    return run[:: -(-len(run) // _SAMPLED_FILES)]


def digest_runs(files: Sequence[Any], each: Callable[[Any], Any], some: bool = False) -> list[str]:
    """Return a hash of 8 hex digits per run of files, over ``each(file)`` of all or ``some`` (sampled) files.

    A run's hash is "" if ``each`` returns None for one of its files.
    """
    digests = []
    for number in range(min(BUCKETS, len(files))):
        run = run_of(files, number)
        reported = [each(file) for file in (sampled_files(run) if some else run)]
        text = json.dumps([len(run), *reported])
        digests.append("" if any(one is None for one in reported) else hashlib.sha256(text.encode()).hexdigest()[:8])
    return digests


def run_of(files: Sequence[Any], number: int) -> Sequence[Any]:
    """Return the files of run ``number``."""
    count = min(BUCKETS, len(files))
    return files[len(files) * number // count : len(files) * (number + 1) // count]


def changed_runs(files: int, before: tuple[list[str], list[str]], now: tuple[list[str], list[str]]) -> list[int]:
    """Return the indices of the runs whose files changed.

    Runs with equal stamps have not changed. Runs with other stamps but equal contents may be copies, and count as
    unchanged; but if some files are not sampled, only if the stamps of all runs differ, as after copying a dataset.

    Args:
        files: number of files.
        before: earlier stamps and contents, as returned by ``digest_runs``.
        now: current stamps and contents.
    """
    differing = [i for i, (a, b) in enumerate(zip(before[0], now[0], strict=True)) if a != b or not a]
    all_sampled = files <= BUCKETS * _SAMPLED_FILES or len(differing) == len(now[0])
    return [i for i in differing if not (all_sampled and before[1][i] and before[1][i] == now[1][i])]
