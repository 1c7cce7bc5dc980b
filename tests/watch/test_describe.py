"""Describe: against polars on the whole table, however the rows are cut into blocks."""

import numpy as np
import polars as pl
import pytest

import cedar
from cedar import col
from cedar.core import block
from cedar.core.block import Block
from cedar.core.cursor import Keys
from cedar.watch import describe as describing
from cedar.watch.describe import describe
from tests.watch.toy_tables import table


def cut(whole, size):
    for start in range(0, whole.num_rows, size):
        part = whole.slice(start, size).combine_chunks()
        columns = {name: part.column(name).combine_chunks() for name in part.column_names}
        yield Block(columns, Keys(np.arange(start, start + part.num_rows)))


def test_figures_are_those_of_polars_on_all_rows():
    whole = table()
    frame = pl.DataFrame(pl.from_arrow(whole))
    found = describe(cut(whole, 700))
    assert (found.rows, found.sampled) == (5000, 5000)
    n, f, s, lists = (found.columns[name] for name in "nfsl")
    assert (n.nulls, n.least, n.most) == (frame["n"].null_count(), frame["n"].min(), frame["n"].max())
    assert n.mean == pytest.approx(frame["n"].mean())
    assert n.quantiles[0.5] == frame["n"].quantile(0.5, "nearest")
    known = frame["f"].fill_nan(None)
    assert (f.nans, f.nulls) == (50, 0)
    assert f.deviation == pytest.approx(known.std(ddof=0))
    assert f.quantiles[0.25] == known.quantile(0.25, "nearest")
    assert next(iter(s.top)) == "a"
    assert s.top["a"] == pytest.approx((frame["s"] == "a").mean())
    assert s.quantiles == {}
    assert (lists.lengths, lists.least, lists.most) == (True, 0, 8)


@pytest.mark.heavy
def test_no_figure_depends_on_the_size_of_blocks(monkeypatch):
    monkeypatch.setattr(block, "_FRAME_ROWS", 512)
    monkeypatch.setattr(describing, "_MAX_SAMPLE", 300)
    whole = table()
    one, *others = [describe(cut(whole, size)) for size in (5000, 1, 511, 1024)]
    assert all(other == one for other in others)
    assert one.sampled == 300
    assert "300 rows drawn at random" in str(one)
    assert abs(one.columns["n"].quantiles[0.5] - 25) < 10


def test_values_that_have_no_figures_are_counted():
    rows = [{"o": {1, 2}, "i": np.zeros((2, 3), np.uint8), "b": b"abc"}] * 4
    found = cedar.from_items(rows).describe()
    assert found.columns["o"].least is None
    assert found.columns["b"].most == 3
    assert "uint8" in str(found) or "UInt8" in str(found)
    assert "<table" in found._repr_html_()


def test_nothing_to_describe():
    assert cedar.from_items([{"x": 1}]).filter(col("x") > 1).describe().rows == 0
    with pytest.raises(cedar.PipelineError, match="needs a pipeline that ends"):
        cedar.from_items([{"x": 1}]).repeat().describe()


def test_a_column_may_be_called_count():
    described = cedar.from_items([{"count": 1}, {"count": 1}, {"count": 2}]).describe()
    assert described.columns["count"].top == {1: 2 / 3}
