"""OTTO's sessions of a web shop: a line of JSON for each session."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import cedar
from cedar import Pipeline
from cedar.operators.explode import Explode

_EVENT = pa.struct([("aid", pa.int64()), ("ts", pa.int64()), ("type", pa.large_string())])


def otto(paths: Any, *, explode: bool = True) -> Pipeline:
    r"""Rows of OTTO's ``*.jsonl``: an event a row, sessions whole and in order of time.

    Columns: ``session`` (int64), ``aid`` (int64, the article), ``ts`` (int64, milliseconds), ``type`` (string:
    "clicks", "carts", "orders").

    Args:
        paths: any fsspec URL, glob, or a list of them.
        explode: False: a row for each session, whose column ``events`` is a list of {aid, ts, type}.

    Raises:
        RowError: while reading, a line that is no such session.

    Example:
        >>> with open("otto.jsonl", "w") as file:
        ...     _ = file.write('{"session": 3, "events": [{"aid": 7, "ts": 1661724000278, "type": "clicks"}]}\n')
        >>> list(otto("otto.jsonl"))
        [{'session': 3, 'aid': 7, 'ts': 1661724000278, 'type': 'clicks'}]
    """
    rows = cedar.read_jsonl(paths, dtypes={"session": pa.int64(), "events": pa.large_list(_EVENT)})
    return rows.apply(Explode("events", fields=True)) if explode else rows
