"""KuaiRand's logs of a short-video platform: CSV."""

from __future__ import annotations

from typing import Any

import cedar
from cedar import Pipeline

_FLAGS = (
    "is_click", "is_like", "is_follow", "is_comment", "is_forward", "is_hate", "long_view", "is_profile_enter",
    "is_rand",
)  # fmt: skip
_NUMBERS = (
    "user_id", "video_id", "date", "hourmin", "time_ms", "play_time_ms", "duration_ms", "profile_stay_time",
    "comment_stay_time", "tab",
)  # fmt: skip
KUAIRAND = (
    "user_id", "video_id", "date", "hourmin", "time_ms", "is_click", "is_like", "is_follow", "is_comment",
    "is_forward", "is_hate", "long_view", "play_time_ms", "duration_ms", "profile_stay_time", "comment_stay_time",
    "is_profile_enter", "is_rand", "tab",
)  # fmt: skip


def kuairand(paths: Any) -> Pipeline:
    r"""Rows of KuaiRand's ``log_standard_*.csv`` and ``log_random_*.csv``: a row is a video that was shown.

    Columns: ``user_id``, ``video_id``, ``date`` (20220408), ``hourmin`` (1230), ``time_ms`` (milliseconds),
    ``play_time_ms``, ``duration_ms``, ``profile_stay_time``, ``comment_stay_time`` and ``tab``, int64; ``is_click``,
    ``is_like``, ``is_follow``, ``is_comment``, ``is_forward``, ``is_hate``, ``long_view``, ``is_profile_enter`` and
    ``is_rand``, int8 of 0 or 1. Which columns there are, and in which order, the header says. There are no sessions:
    ``cluster(..., session="user_id", sort="time_ms", unit="ms", gap=30)`` makes them.

    Raises:
        SourceError: no such files, or files with different headers.
        RowError: while reading, a field that is no number.

    Example:
        >>> with open("log_standard.csv", "w") as file:
        ...     _ = file.write("user_id,video_id,time_ms,is_click\n0,3784,1649400000000,1\n")
        >>> list(kuairand("log_standard.csv"))
        [{'user_id': 0, 'video_id': 3784, 'time_ms': 1649400000000, 'is_click': 1}]
    """
    kinds = dict.fromkeys(_NUMBERS, "int64") | dict.fromkeys(_FLAGS, "int8")
    known = cedar.read_csv(paths, quoting=False).schema
    return cedar.read_csv(paths, quoting=False, dtypes={name: kind for name, kind in kinds.items() if name in known})
