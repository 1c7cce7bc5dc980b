"""The kernels of transforms: who is blamed for a row without a result, and who may lose it."""

from __future__ import annotations

import pytest

import cedar
from tests.operators.toy_transforms import ROWS, AddNoise, Refuse


def test_a_row_that_fails_in_a_chain_is_blamed_on_its_transform():
    p = cedar.from_items(ROWS).map(AddNoise(1), "x").map(Refuse(9), "x").map(Refuse(3), "x")
    with pytest.raises(cedar.RowError, match="9 is refused") as caught:
        list(p)
    assert "map(Refuse)" in str(caught.value)
    assert "#2" not in str(caught.value)
    with p.loader(on_error=cedar.Skip()) as loader:
        assert [row["x"] for row in loader] == [i for i in range(50) if i not in (3, 9)]
        assert "map(Refuse) #2" in str(loader.report())


def test_only_the_transform_with_a_policy_may_lose_rows():
    p = cedar.from_items(ROWS).map(Refuse(9), "x", on_error=cedar.Skip()).map(Refuse(30), "x")
    with pytest.raises(cedar.RowError, match="30 is refused"):
        list(p)
