"""Reads published logs as pipelines: Criteo, KuaiRand, MIND, OTTO and Yambda."""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow as pa

import cedar
from cedar import Pipeline, col
from cedar.core.errors import SourceError
from cedar.operators.explode import Explode

# ---- Criteo's display advertising logs: tab-separated text, most often gzipped ---------------------------------------

COUNTS = tuple(f"I{i}" for i in range(1, 14))
CATEGORIES = tuple(f"C{i}" for i in range(1, 27))


def criteo(paths: Any, *, label: bool = True, counts: int = 13, categories: int = 26) -> Pipeline:
    r"""Read files in Criteo's format (Kaggle 2014, the Terabyte log). Rows are impressions in order of time.

    Columns: ``label`` (int8, 1 for a click); ``I1`` to ``I13`` (int64 counts, may be null or negative); ``C1`` to
    ``C26`` (int64, parsed from eight hexadecimal digits; null if empty). The log has neither users nor sessions, so no
    lists repeat and ``dedup`` has no effect. Memory use does not depend on file size.

    Args:
        paths: any fsspec URL, glob, or a list of them. Plain files are split into byte ranges. A compressed file (such
            as ``.gz``) is one split, so several files, such as one per day, are needed to keep several workers busy.
        label: whether the first field is the label, which Kaggle's test files lack.
        counts, categories: number of ``I`` and ``C`` columns, for files with fewer columns.

    Raises:
        RowError: while reading, a line has an unexpected number of fields, or a field is not a number.
        SourceError: no file matches.

    Examples:
        >>> import gzip
        >>> line = "\t".join(["1", "5", *[""] * 12, "68fd1e64", *["0000000a"] * 25])
        >>> with gzip.open("day_0.gz", "wt") as file:
        ...     _ = file.write(line + "\n")
        >>> row = next(iter(criteo("day_0.gz")))
        >>> row["label"], row["I1"], row["I2"], row["C1"], row["C26"]
        (1, 5, None, 1761418852, 10)
    """
    numbers, strings = [*COUNTS[:counts]], [*CATEGORIES[:categories]]
    names = [*(["label"] if label else []), *numbers, *strings]
    dtypes: dict[str, Any] = {"label": "int8"} if label else {}
    dtypes |= dict.fromkeys(numbers, "int64") | dict.fromkeys(strings, "string")
    rows = cedar.read_csv(paths, delimiter="\t", header=False, column_names=names, dtypes=dtypes, quoting=False)
    return rows.with_columns(**{name: col(name).str.to_integer(base=16) for name in strings})


# ---- KuaiRand's logs of a short-video platform: CSV ------------------------------------------------------------------

_FLAGS = (
    "is_click", "is_like", "is_follow", "is_comment", "is_forward", "is_hate", "long_view", "is_profile_enter",
    "is_rand",
)  # fmt: skip
_NUMBERS = (
    "user_id", "video_id", "date", "hourmin", "time_ms", "play_time_ms", "duration_ms", "profile_stay_time",
    "comment_stay_time", "tab",
)  # fmt: skip


def kuairand(paths: Any) -> Pipeline:
    r"""Read KuaiRand's ``log_standard_*.csv`` and ``log_random_*.csv``. A row is a video that was shown to a user.

    Columns: ``user_id``, ``video_id``, ``date`` (as 20220408), ``hourmin`` (as 1230), ``time_ms`` (milliseconds),
    ``play_time_ms``, ``duration_ms``, ``profile_stay_time``, ``comment_stay_time`` and ``tab``, int64; ``is_click``,
    ``is_like``, ``is_follow``, ``is_comment``, ``is_forward``, ``is_hate``, ``long_view``, ``is_profile_enter`` and
    ``is_rand``, int8 of 0 or 1. The header determines which columns exist, and their order. The log has no sessions;
    ``cluster(..., session="user_id", sort="time_ms", unit="ms", gap=30)`` creates them.

    Raises:
        SourceError: no file matches, or headers differ.
        RowError: while reading, a field is not a number.

    Examples:
        >>> with open("log_standard.csv", "w") as file:
        ...     _ = file.write("user_id,video_id,time_ms,is_click\n0,3784,1649400000000,1\n")
        >>> list(kuairand("log_standard.csv"))
        [{'user_id': 0, 'video_id': 3784, 'time_ms': 1649400000000, 'is_click': 1}]
    """
    kinds = dict.fromkeys(_NUMBERS, "int64") | dict.fromkeys(_FLAGS, "int8")
    known = cedar.read_csv(paths, quoting=False).schema
    return cedar.read_csv(paths, quoting=False, dtypes={name: kind for name, kind in kinds.items() if name in known})


# ---- MIND's news impressions: a line for each request, with the user's history and all candidates --------------------

_MIND = ["impression_id", "user_id", "time", "history", "impressions"]


def mind(paths: Any, *, explode: bool = True, dedup: bool = True) -> Pipeline:
    r"""Read MIND's ``behaviors.tsv``. A row is a news article that was shown to a user.

    Columns: ``impression_id`` (int64, id of the request), ``user_id`` (string), ``time`` (timestamp in microseconds),
    ``history`` (list of int64, the articles read, oldest first; N106403 becomes 106403), ``news`` (int64), ``label``
    (int8, 1 for a click, null in test files).

    The history is the same in all rows of a request. To deduplicate histories, cedar compares them once per request,
    before requests are exploded into rows. It computes a batch's inverse index from the number of rows per request.

    Args:
        paths: any fsspec URL, glob, or a list of them.
        explode: whether to create a row per article. If False, a row is a request, with lists ``news`` and ``label``.
        dedup: whether ``history`` is a deduplicated group (see ``Pipeline.dedup``).

    Raises:
        RowError: while reading, a line has an unexpected format.

    Examples:
        >>> with open("behaviors.tsv", "w") as file:
        ...     _ = file.write("1\tU8\t11/11/2019 9:05:58 AM\tN5 N7\tN10-0 N11-1\n")
        >>> for row in mind("behaviors.tsv"):
        ...     print(row["impression_id"], row["history"], row["news"], row["label"])
        1 [5, 7] 10 0
        1 [5, 7] 11 1
    """
    dtypes = {"impression_id": "int64"} | dict.fromkeys(_MIND[1:], "string")
    requests = cedar.read_csv(
        paths, delimiter="\t", header=False, column_names=_MIND, dtypes=dtypes, quoting=False
    ).with_columns(
        time=col("time").str.to_datetime("%m/%d/%Y %I:%M:%S %p"),
        history=_numbers(col("history")),
        news=_numbers(col("impressions").str.replace_all(r"-[01]\b", "")),
        label=_labels(col("impressions")),
    )
    requests = requests.drop("impressions")
    if not dedup:
        return requests.apply(Explode("news", "label")) if explode else requests
    requests = requests.dedup([["history"]], session="impression_id")
    if not explode:
        return requests
    # Repeat dedup after Explode. It compares no values again, but predicts the factor from the rows per request.
    return requests.apply(Explode("news", "label")).dedup([["history"]], session="impression_id")


def _split_words(text: Any) -> Any:
    """Split strings into words; a null becomes an empty list."""
    return text.fill_null("").str.split(" ").list.filter(pl.element() != "")


def _numbers(text: Any) -> Any:
    return _split_words(text).list.eval(pl.element().str.strip_prefix("N").str.to_integer(base=10))


def _labels(text: Any) -> Any:
    click = pl.element().str.ends_with("-1")
    reported = pl.element().str.contains("-", literal=True)
    return _split_words(text).list.eval(pl.when(reported).then(click.cast(pl.Int8)))


# ---- OTTO's sessions of a web shop: a line of JSON for each session --------------------------------------------------

_EVENT = pa.struct([("aid", pa.int64()), ("ts", pa.int64()), ("type", pa.large_string())])


def otto(paths: Any, *, explode: bool = True) -> Pipeline:
    r"""Read OTTO's ``*.jsonl``. A row is an event; the rows of a session are adjacent and in order of time.

    Columns: ``session`` (int64), ``aid`` (int64, article id), ``ts`` (int64, milliseconds), ``type`` (string: "clicks",
    "carts" or "orders").

    Args:
        paths: any fsspec URL, glob, or a list of them.
        explode: whether to create a row per event. If False, a row is a session, with ``events``, a list of structs.

    Raises:
        RowError: while reading, a line is not a session.

    Examples:
        >>> with open("otto.jsonl", "w") as file:
        ...     _ = file.write('{"session": 3, "events": [{"aid": 7, "ts": 1661724000278, "type": "clicks"}]}\n')
        >>> list(otto("otto.jsonl"))
        [{'session': 3, 'aid': 7, 'ts': 1661724000278, 'type': 'clicks'}]
    """
    rows = cedar.read_jsonl(paths, dtypes={"session": pa.int64(), "events": pa.large_list(_EVENT)})
    return rows.apply(Explode("events", fields=True)) if explode else rows


# ---- Yambda's logs of a music service: Parquet, flat (a row for each event) or sequential (a row for each user) ------


def yambda(paths: Any, *, explode: bool = True) -> Pipeline:
    """Read Yambda's files. A row is an event.

    Columns: ``uid`` (user), ``timestamp`` (seconds, in steps of 5), ``item_id``, ``is_organic`` (0 or 1); for listens
    also ``played_ratio_pct`` and ``track_length_seconds``; for ``multi_event`` also ``event_type``. Types are those of
    the files. Sequential files have a row per user, with lists in order of time, which cedar explodes into events.
    ``cluster(..., session="uid", sort="timestamp", gap=30)`` creates sessions from flat files.

    Args:
        paths: any fsspec URL, glob, directory, or a list of them; either all flat or all sequential.
        explode: whether to create a row per event from sequential files.

    Raises:
        SourceError: the files have no column ``uid``.

    Examples:
        >>> import pyarrow.parquet as pq
        >>> pq.write_table(pa.table({"uid": [1], "timestamp": [[5, 10]], "item_id": [[7, 8]]}), "likes.parquet")
        >>> list(yambda("likes.parquet"))
        [{'uid': 1, 'timestamp': 5, 'item_id': 7}, {'uid': 1, 'timestamp': 10, 'item_id': 8}]
    """
    rows = cedar.read_parquet(paths)
    if "uid" not in rows.schema:
        raise SourceError(f"yambda: no column 'uid' in {paths}; its columns are {list(rows.schema)}")
    schema = rows.schema.items()
    lists = [name for name, kind in schema if isinstance(kind, pa.DataType) and pa.types.is_large_list(kind)]
    return rows.apply(Explode(*lists)) if lists and explode else rows
