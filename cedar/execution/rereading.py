"""A part of a source read again, to learn more of what reading takes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from cedar.datasets.base import Read, Split
from cedar.errors import CedarError
from cedar.execution.binding import Binding
from cedar.graph import Node


def read_of(binding: Binding, node: Node, rows: int) -> Callable[[], Any] | None:
    """A call that reads so many rows of a source; None where it has no part that can be read by itself.

    Rows that fail are for the run to tell.
    """
    source = node.logical.operator
    assert isinstance(source, Read)
    split = next(iter(binding.splits(node)), None)
    if not isinstance(split, Split) or split.streaming or split.stop is None or not split.rows:
        return None
    rows = min(rows, split.rows)
    part = replace(split, stop=split.start + rows, rows=rows)

    def call() -> None:
        with suppress(CedarError):
            for _ in source.source.read(part):
                pass

    return call
