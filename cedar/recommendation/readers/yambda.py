"""Yambda's logs of a music service: Parquet, flat (a row for each event) or sequential (a row for each user)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import cedar
from cedar import Pipeline
from cedar.core.errors import SourceError
from cedar.operators.explode import Explode


def yambda(paths: Any, *, explode: bool = True) -> Pipeline:
    """Rows of Yambda's files: an event a row.

    Columns: ``uid`` (user), ``timestamp`` (seconds, in steps of 5), ``item_id``, ``is_organic`` (0 or 1), and, of
    listens, ``played_ratio_pct`` and ``track_length_seconds``; of ``multi_event`` also ``event_type``. Types are those
    of the files. Sequential files hold the same as lists, a row for each user in order of time; these are exploded.
    ``cluster(..., session="uid", sort="timestamp", gap=30)`` makes sessions of flat ones.

    Args:
        paths: any fsspec URL, glob, directory, or a list of them; all flat, or all sequential.
        explode: False leaves the rows of sequential files as they are.

    Raises:
        SourceError: files without ``uid``.

    Example:
        >>> import pyarrow.parquet as pq
        >>> pq.write_table(pa.table({"uid": [1], "timestamp": [[5, 10]], "item_id": [[7, 8]]}), "likes.parquet")
        >>> list(yambda("likes.parquet"))
        [{'uid': 1, 'timestamp': 5, 'item_id': 7}, {'uid': 1, 'timestamp': 10, 'item_id': 8}]
    """
    rows = cedar.read_parquet(paths)
    if "uid" not in rows.schema:
        raise SourceError(f"yambda: no column 'uid' in {paths}; there are {list(rows.schema)}")
    schema = rows.schema.items()
    lists = [name for name, kind in schema if isinstance(kind, pa.DataType) and pa.types.is_large_list(kind)]
    return rows.apply(Explode(*lists)) if lists and explode else rows
