"""A split through a chain: keys of its rows, blocks that are delivered early, and sources that fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from cedar.core.block import Block
from cedar.core.errors import Site, SourceError
from cedar.datasets.base import BaseSource, Chunk, Split
from cedar.operators.base import BlockKernel, Env
from cedar.tasks.chain import KernelStep, Program
from cedar.tasks.reading import Reader, read_split
from tests.toy_blocks import values


class Numbers(BaseSource):
    """Row i of a file holds i, in chunks of 10; fails behind some of them."""

    def __init__(self, fails_behind: int = 1 << 30) -> None:
        self.fails_behind = fails_behind

    def splits(self) -> list[Split]:
        return [SPLIT]

    def url(self, file: int) -> str:
        return f"numbers-{file}"

    def read(self, split: Any) -> Iterator[Chunk]:
        for start in range(split.start, split.stop, 10):
            if start >= self.fails_behind:
                raise OSError("the disk is gone")
            stop = min(start + 10, split.stop)
            yield Chunk({"x": np.arange(start, stop)}, length=stop - start)


SPLIT = Split(file=3, start=40, stop=75)


class Twice(BlockKernel):
    def __call__(self, block: Block, env: Env) -> Block:
        return block.with_columns({"y": block.columns["x"] * 2})


PROGRAM = Program((KernelStep(Twice(), (1,)),))


def test_rows_have_the_keys_of_their_file_and_go_through_the_chain() -> None:
    result = read_split(PROGRAM, Reader(Numbers(), 2), SPLIT, 5, Env(), first=52)
    rows = [x for block in result.blocks for x in values(block, "x")]
    assert rows == list(range(52, 75))
    assert [y for block in result.blocks for y in values(block, "y")] == [2 * x for x in rows]
    refs = [block.keys.ref(i) for block in result.blocks for i in range(block.slots)]
    assert [(ref.source, ref.file, ref.row, ref.repeat) for ref in refs] == [(2, 3, x, 5) for x in rows]
    assert result.timing.rows_read == 35, "of the split"


def test_all_blocks_but_the_last_are_handed_over_as_they_are_made() -> None:
    handed: list[tuple[int, list[int]]] = []
    result = read_split(
        PROGRAM, Reader(Numbers(), 0), SPLIT, 0, Env(), hand=lambda i, block: handed.append((i, values(block, "x")))
    )
    assert handed == list(enumerate(values(block, "x") for block in result.blocks[:-1]))
    assert len(handed) == 3


def test_a_source_that_fails_names_the_file_and_the_users_line() -> None:
    reader = Reader(Numbers(fails_behind=60), 0, site=Site("user.py", 12))
    with pytest.raises(SourceError, match=r"numbers-3 cannot be read: OSError: the disk is gone") as caught:
        read_split(PROGRAM, reader, SPLIT, 0, Env())
    assert caught.value.site == Site("user.py", 12)
    assert isinstance(caught.value.__cause__, OSError)
