"""Blocks as frames: what is computed by parts depends on the rows alone."""

import numpy as np
import pyarrow as pa
import pytest

from cedar.core import frames
from cedar.core.columns import objects
from cedar.core.frames import first_rows, frame_of, parts
from tests.toy_blocks import block


def test_every_kind_of_column_becomes_one_of_a_frame():
    frame = frame_of(block(x=[1, 2], t=np.zeros((2, 3)), o=objects([{1}, {2}]), s=pa.array(["a", None])))
    assert frame["x"].to_list() == [1, 2]
    assert frame["t"].to_list() == [[0.0] * 3] * 2
    assert frame["o"].to_list() == [{1}, {2}]
    assert frame["s"].to_list() == ["a", None]


@pytest.mark.parametrize("size", [1, 3, 10])
def test_parts_are_the_same_wherever_rows_were_cut(monkeypatch, size):
    monkeypatch.setattr(frames, "_FRAME_ROWS", 4)
    cut = [frame_of(block(x=list(range(start, min(start + size, 10))))) for start in range(0, 10, size)]
    assert [part["x"].to_list() for part in parts(cut)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_no_more_blocks_are_read_than_the_first_rows_need():
    read = []

    def blocks():
        for start in (0, 2, 4):
            read.append(start)
            yield block(x=[start, start + 1])

    assert first_rows(blocks(), 3)["x"].to_list() == [0, 1, 2]
    assert read == [0, 2]
    assert first_rows(iter([]), 3).is_empty()
