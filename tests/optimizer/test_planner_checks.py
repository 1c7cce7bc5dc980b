"""What a planner checks on sample rows, and what it need not check again."""

import numpy as np
import pyarrow as pa
import pytest

import cedar
from cedar import col
from cedar.operators import recsys
from cedar.optimizer.planner import _known_functions


def twice(x):
    return 2 * x


LISTS = pa.table({"a": pa.array([[1, 2]] * 4, pa.large_list(pa.int64())), "x": np.arange(4)})


@pytest.mark.parametrize(
    ("make", "known"),
    [
        (lambda p: p.map(recsys.FirstX(1), "a").batch(2), True),
        (lambda p: p.map(recsys.FirstX(1), "a").map(twice, "x"), False),
        (lambda p: p.map_batches(lambda x: x, "x"), False),
        (lambda p: p.filter(col("x") > 1), False),  # an expression may call functions
        (lambda p: p.filter(twice, "x"), False),
    ],
)
def test_functions_of_users_may_do_another_thing_the_next_time(make, known):
    assert _known_functions(make(cedar.from_arrow(LISTS)).node) is known
