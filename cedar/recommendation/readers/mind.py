"""MIND's news impressions: a line for each request, with the user's history and all candidates."""

from __future__ import annotations

from typing import Any

import polars as pl

import cedar
from cedar import Pipeline, col
from cedar.operators.explode import Explode

_COLUMNS = ["impression_id", "user_id", "time", "history", "impressions"]


def mind(paths: Any, *, explode: bool = True, dedup: bool = True) -> Pipeline:
    r"""Rows of MIND's ``behaviors.tsv``: a row is a news article that was shown.

    Columns: ``impression_id`` (int64, the request), ``user_id`` (string), ``time`` (timestamp in microseconds),
    ``history`` (list of int64: the numbers of the articles read, N106403 is 106403; oldest first), ``news`` (int64),
    ``label`` (int8, 1: a click; null in test files, which do not tell).

    The history is the same in all rows of a request. It is compared once a request, before the request becomes rows:
    the index of a batch's unique histories follows from how often each is repeated.

    Args:
        paths: any fsspec URL, glob, or a list of them.
        explode: False: a row for each request, whose ``news`` and ``label`` are lists.
        dedup: mark ``history`` as a group (see ``Pipeline.dedup``).

    Raises:
        RowError: while reading, a line of another form.

    Example:
        >>> with open("behaviors.tsv", "w") as file:
        ...     _ = file.write("1\tU8\t11/11/2019 9:05:58 AM\tN5 N7\tN10-0 N11-1\n")
        >>> for row in mind("behaviors.tsv"):
        ...     print(row["impression_id"], row["history"], row["news"], row["label"])
        1 [5, 7] 10 0
        1 [5, 7] 11 1
    """
    dtypes = {"impression_id": "int64"} | dict.fromkeys(_COLUMNS[1:], "string")
    requests = cedar.read_csv(
        paths, delimiter="\t", header=False, column_names=_COLUMNS, dtypes=dtypes, quoting=False
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
    # Again behind it: that compares nothing, but counts the rows of a request where it predicts a factor.
    return requests.apply(Explode("news", "label")).dedup([["history"]], session="impression_id")


def _words(text: Any) -> Any:
    """The words of a text; none of a null."""
    return text.fill_null("").str.split(" ").list.filter(pl.element() != "")


def _numbers(text: Any) -> Any:
    return _words(text).list.eval(pl.element().str.strip_prefix("N").str.to_integer(base=10))


def _labels(text: Any) -> Any:
    click = pl.element().str.ends_with("-1")
    told = pl.element().str.contains("-", literal=True)
    return _words(text).list.eval(pl.when(told).then(click.cast(pl.Int8)))
