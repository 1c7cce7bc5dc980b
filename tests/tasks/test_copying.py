"""Rows that functions may change in place: what is copied for that, and what is shared."""

from __future__ import annotations

import threading
from typing import Any

import cedar
from cedar.core.columns import objects
from cedar.tasks.copying import own_copy, plain_copy
from tests.toy_blocks import block


class Reader:
    """Something large that all rows refer to."""

    copies = 0

    def __deepcopy__(self, memo: Any) -> Reader:
        Reader.copies += 1
        return self


class Lazy:
    def __init__(self, reader: Reader, number: int) -> None:
        self.reader, self.number = reader, number


def test_what_rows_refer_to_is_not_copied() -> None:
    reader = Reader()
    rows = cedar.from_items([{"sample": Lazy(reader, i)} for i in range(100)])
    pipeline = rows.map(lambda sample: sample, "sample").map(lambda sample: sample.number, "sample", into="n")
    assert [row["n"] for row in pipeline.loader(plan="off")] == list(range(100))
    assert Reader.copies == 0


def test_objects_are_copied_and_handles_shared() -> None:
    lock = threading.Lock()
    rows = block(x=[1, 2]).with_columns({"tags": objects([{"all": [1]}, lock])})
    for copied in (own_copy(rows), plain_copy(rows)):
        tags = copied.columns["tags"]
        tags[0]["all"].append(2)
        assert tags[1] is lock
        assert copied.columns["x"] is rows.columns["x"]
    assert rows.columns["tags"][0] == {"all": [1]}
