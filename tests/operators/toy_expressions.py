"""A block with columns of every kind, and expressions run on it one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from cedar.core.block import Block
from cedar.operators.base import RowOperator
from cedar.operators.failures import ErrorContext
from tests.toy_blocks import SITE, block, run

BLAME = ErrorContext(0, "with_columns", SITE, None)
ROWS = st.fixed_dictionaries(
    {
        "a": st.none() | st.integers(-3, 5),
        "s": st.sampled_from(["1", "2", "x", ""]),
        "ids": st.none() | st.lists(st.none() | st.integers(0, 5), max_size=3),
    }
)


def sample() -> Block:
    return block(
        a=pa.array([1, 2, 3, None]),
        s=["1", "x", "3", "y"],
        t=np.arange(8.0).reshape(4, 2),
        ids=pa.array([[1, 2, 3], [], None, [4]]),
        o=np.array([1, "a", None, {}], dtype=object),
    )


def one_by_one(operators: list[RowOperator], given_block: Block, **how: Any) -> Block:
    for operator in operators:
        given_block = run(operator, given_block, **how)
    return given_block
