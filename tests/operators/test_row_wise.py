"""Functions of blocks whose results depend on other rows are found on a sample."""

from __future__ import annotations

import numpy as np
import pytest

from cedar.core.errors import PipelineError
from cedar.operators.map_batches import MapBatches
from tests.toy_blocks import SITE, bind, block, run, values

XS = block(x=[1, 2, 3, 4], f=[1.5, float("nan"), None, 0.0])
NOT_ROW_WISE = {
    "mean": lambda t: {"x": t["x"] - t["x"].mean()},
    "cumsum": lambda t: {"x": np.cumsum(t["x"])},
    "sort": lambda t: {"x": np.sort(t["x"])[::-1]},
    "reverse": lambda t: {"x": t["x"][::-1].copy()},
    "count": lambda t: {"x": np.full(len(t["x"]), len(t["x"]))},
    "index": lambda t: {"x": np.arange(len(t["x"]))},
    "first": lambda t: {"x": t["x"] - t["x"][0]},
}


@pytest.mark.parametrize("name", list(NOT_ROW_WISE))
def test_functions_that_are_not_row_wise(name):
    with pytest.raises(PipelineError, match="its result depends on other rows of the block") as caught:
        bind(MapBatches(NOT_ROW_WISE[name], ("x",), format="numpy"), XS)
    assert caught.value.site == SITE
    assert "size=" in caught.value.fix
    assert len(run(MapBatches(NOT_ROW_WISE[name], ("x",), format="numpy", size=4), XS)) == 4
    assert len(run(MapBatches(NOT_ROW_WISE[name], ("x",), format="numpy"), XS, batched=True)) == 4


def test_functions_that_draw_on_their_own():
    fn = lambda t: {"x": np.random.default_rng().random(len(t["x"]))}
    with pytest.raises(PipelineError, match="called again, it gives another result") as caught:
        bind(MapBatches(fn, ("x",), format="numpy"), XS)
    assert "random=True" in caught.value.fix


def test_nan_and_null_are_equal_to_themselves():
    for format in ("arrow", "polars"):
        assert repr(values(run(MapBatches(lambda t: t, ("f",), format=format), XS), "f")) == "[1.5, nan, None, 0.0]"
    assert len(run(MapBatches(lambda t: {"f": t["f"] * np.nan}, ("f",), format="numpy"), XS)) == 4
