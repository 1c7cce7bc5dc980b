"""What a function gets to see of a block."""

from __future__ import annotations

import numpy as np
import pytest

from cedar.core.errors import PipelineError
from cedar.operators.map import Map
from tests.operators.toy_maps import XS
from tests.toy_blocks import bind, block, run


def test_rows_are_plain_python_values_and_arrays():
    given = block(x=[1], f=[1.5], s=["a"], l=[[1, 2]], d=[{"k": None}], a=np.ones((1, 2), dtype=np.float32))
    seen = []
    run(Map(lambda row: seen.append(row) or {"n": 0}), given)
    row = seen[-1]
    assert {k: v for k, v in row.items() if k != "a"} == {"x": 1, "f": 1.5, "s": "a", "l": [1, 2], "d": {"k": None}}
    assert row["a"].tolist() == [1, 1]
    assert not row["a"].flags.writeable


def test_a_misspelled_column():
    with pytest.raises(PipelineError, match="no column 'xx'") as caught:
        bind(Map(abs, ("xx",)), XS)
    assert caught.value.fix == "did you mean 'x'?"
