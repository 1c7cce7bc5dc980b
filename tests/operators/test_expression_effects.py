"""What an expression does on columns of given types: those on which it is not row-wise are refused."""

from __future__ import annotations

import polars as pl
import pytest

from cedar.core.errors import PipelineError
from cedar.operators.elementwise import check_elementwise
from cedar.operators.expression_steps import AddColumns, compile_steps
from tests.operators.toy_expressions import BLAME
from tests.toy_blocks import SITE, block

CATEGORY = pl.col("s").cast(pl.Categorical)


@pytest.mark.parametrize(
    "expr",
    [
        CATEGORY.to_physical(),
        pl.struct(CATEGORY).hash(),
        pl.col("t").is_in("t"),
        pl.col("t").is_in(pl.concat_list("t", "t")),
        pl.col("n").is_in("n"),
        pl.col("f").list.eval(pl.element() + 0),
        pl.col("f").list.eval(pl.element() - (pl.lit(1.0) - 1)),
        pl.arctan2(pl.struct("s"), pl.struct("s")),  # ends the process
        pl.col("n").cast(pl.Struct({"a": pl.Int64})),
    ],
    ids=str,
)
def test_types_that_are_not_row_wise_are_refused(expr: pl.Expr) -> None:
    given = block(s=["b", "a"], t=[[1], [2]], f=[[-0.0], [1.0]], n=[1, 2])
    assert check_elementwise(expr) is None
    with pytest.raises(PipelineError, match="is not row-wise") as caught:
        compile_steps((AddColumns((("r", expr),), BLAME),), tuple(given.types.items()))
    assert caught.value.site == SITE
    assert caught.value.fix
