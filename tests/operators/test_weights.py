"""The weight of each row, from a column or an expression."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import polars.selectors as cs
import pytest

from cedar.core.errors import PipelineError, RowError
from cedar.operators.balance import Balance
from cedar.operators.sample import Sample
from cedar.operators.weights import live_weights
from tests.toy_blocks import SITE, block
from tests.toy_stream import ListStream, check


def test_expressions_are_weights_too():
    source = ListStream({"a": [0, 1, 0, 1, 1, 0], "b": [1, 1, 1, 0, 2, 0]})
    units = check(Sample(pl.col("a") * pl.col("b"), n=50), [source])
    assert {key[3] for key, _ in units} == {1, 4}
    alike = check(Sample(pl.lit(2.0), n=50), [source])
    assert [key[3] for key, _ in alike] == [key[3] for key, _ in check(Sample(n=50), [source])]


@pytest.mark.parametrize(("bad", "shown"), [(None, "null"), (-1.0, "-1.0"), (math.nan, "nan"), (math.inf, "inf")])
@pytest.mark.parametrize("weights", ["w", pl.col("w") * 1])
def test_a_row_whose_weight_is_none_is_named(weights, bad, shown):
    with pytest.raises(RowError, match=f"the weight of a row is {shown}") as caught:
        live_weights(block(w=[1.0, 2.0, bad]), weights, SITE)
    assert caught.value.row.row == 2
    assert caught.value.site == SITE


def test_weights_are_numbers_of_a_column_that_is_there():
    given = block(w=[1, 2], s=["a", "b"], t=np.ones((2, 2)))
    assert live_weights(given, "w", SITE).tolist() == [1.0, 2.0]
    assert live_weights(given, pl.col("w") > 1, SITE).tolist() == [0.0, 1.0]
    assert live_weights(given, None, SITE).tolist() == [1.0, 1.0]
    for weights, says in (("s", "not numbers but"), ("t", "not numbers but"), ("v", "no column 'v'")):
        with pytest.raises(PipelineError, match=says):
            live_weights(given, weights, SITE, ("balance", "cost"))


@pytest.mark.parametrize("of", [Sample, Balance])
@pytest.mark.parametrize(
    "weights", [cs.by_name("w"), pl.col("^w$") * 2, pl.sum_horizontal(pl.all()), pl.col("s").struct.field("a", "b")]
)
def test_an_expression_names_the_columns_that_it_reads_and_gives_one(of, weights):
    with pytest.raises(PipelineError, match="columns that depend on the schema|gives several columns") as caught:
        of(weights)
    assert caught.value.site.file == __file__
