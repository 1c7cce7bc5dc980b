"""drop and rename: columns move, and none is copied."""

from __future__ import annotations

import pytest

from cedar.core.errors import PipelineError
from cedar.operators.columns_ops import Drop, Rename, rename
from tests.operators.toy_expressions import sample
from tests.toy_blocks import run


def test_drop_and_rename_move_columns_without_a_copy() -> None:
    given_block = sample()
    out = run(Rename((("a", "s"), ("s", "a"))), given_block)
    assert list(out.columns) == ["s", "a", "t", "ids", "o"]
    assert out.columns["a"] is given_block.columns["s"]
    assert list(run(Drop(("a", "o")), given_block).columns) == ["s", "t", "ids"]
    assert len(run(Drop(("a", "s", "t", "ids", "o")), given_block)) == 4
    with pytest.raises(PipelineError, match="two columns would be called 's'"):
        run(rename({"a": "s"}), given_block)


def test_columns_that_are_gone_need_no_drop_and_no_new_name() -> None:
    drop, named = Drop(("a", "b")), rename({"a": "x", "b": "y"})
    assert drop.fitted({"a", "b", "c"}) is drop
    assert drop.fitted({"b", "c"}) == Drop(("b",))
    assert drop.fitted({"c"}) is None
    assert named.fitted({"a", "b"}) is named
    assert named.fitted({"b", "c"}) == Rename((("b", "y"),))
    assert named.fitted({"c"}) is None
