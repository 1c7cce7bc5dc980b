"""Are the rows of two runs the same? The first place where they are not is named."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from cedar.core.block import Block
from cedar.core.cursor import Keys
from cedar.engine import compare
from cedar.engine.compare import difference
from tests.toy_blocks import block


def test_audits_take_a_nan_for_a_nan() -> None:
    both = np.array([np.nan, -np.nan, 0.0])
    columns = [both, pa.array(both), both.astype(np.float32)]
    for column in columns:
        blocks = [Block({"x": column[i : i + 1]}, Keys(np.arange(1))) for i in range(3)]
        assert difference([blocks[0]], [blocks[1]]) is None
        assert difference([blocks[0]], [blocks[2]]) is not None
    zeros = [Block({"x": np.array([zero])}, Keys(np.arange(1))) for zero in (0.0, -0.0)]
    assert difference(zeros[:1], zeros[1:]) is not None


def test_how_rows_are_cut_into_blocks_does_not_count() -> None:
    whole = block(x=[1, 2, 3], l=[[1], [], [2, 3]])
    assert difference([whole], [whole.slice(0, 1), whole.slice(1, 1), whole.slice(1, 3)]) is None


@pytest.mark.parametrize(
    ("done", "written", "says"),
    [
        (block(x=[1, 2, 3]), block(x=[1, 5, 3]), "column 'x': row 1: 2 in the plan, 5 as written"),
        (block(x=[1, 2, 3]), block(x=[1.0, 2.0, 3.0]), "column 'x': int64 in the plan, double as written"),
        (block(x=[1, 2, 3]), block(x=[1, 2]), "3 row(s) in the plan, 2 as written"),
        (block(x=[1, 2, 3]), block(x=[1, 2, 3]).slice(0, 0), "3 row(s) on one side, none on the other"),
        (block(x=[7, 7]), block(x=[7, 7]).take(np.array([1, 0])), "other rows, or in another order"),
        (block(x=[1], y=[2]), block(x=[1]), "columns ['y'] are on one side only"),
    ],
)
def test_the_first_difference_is_told(done: Block, written: Block, says: str) -> None:
    assert difference([done], [written]) == says


def test_tensors_within_tuples_are_compared_by_their_values():
    torch = pytest.importorskip("torch")
    whole = torch.arange(8.0)
    a, b, other = (whole[:4], "x"), (torch.arange(4.0), "x"), (torch.ones(4), "x")
    assert compare._same_object(a, b)
    assert not compare._same_object(a, other)
    assert not compare._same_object({"y": a}, {"y": other})
    assert compare._same_object({"y": [a]}, {"y": [b]})
