"""Blocks: run with blocks of a few rows, to see whether their size shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from cedar.core.block import Block
from cedar.engine.streams import stage
from cedar.tasks import chain


@contextmanager
def blocks_of(rows: int) -> Iterator[None]:
    """Whatever runs in this process works on blocks of at most so many rows; not for several threads at a time."""
    read = chain.Reader.blocks

    def cut(self: chain.Reader, split: Any, lap: int) -> Iterator[Block]:
        for block in read(self, split, lap):
            for start in range(0, max(block.slots, 1), rows):
                yield block.slice(start, min(start + rows, block.slots))

    with (
        mock.patch.object(chain.Reader, "blocks", cut),
        mock.patch.object(stage, "_MOST_ROWS", rows),
        mock.patch.object(stage, "_FIRST_ROWS", rows),
        mock.patch.object(stage, "_FEW_ROWS", rows),
    ):
        yield
