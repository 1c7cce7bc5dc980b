"""The small methods that treat a pipeline as a table, and balance_classes."""

from collections import Counter
from typing import Any

import polars as pl
import pytest

import cedar
from cedar import col
from cedar.testing import assert_resumable


def test_explode_limit_columns_and_frames() -> None:
    rows = cedar.from_items([{"u": 1, "l": [1, 2]}, {"u": 2, "l": []}, {"u": 3, "l": [3]}])
    assert rows.explode("l").to_polars().equals(pl.DataFrame({"u": [1, 1, 3], "l": [1, 2, 3]}))
    assert rows.limit(2).count() == 2
    assert rows.columns == ["u", "l"]
    assert rows.map(lambda row: row | {"n": 1}).columns == ["u", "l", "n"]
    assert rows.select("u").to_pandas()["u"].tolist() == [1, 2, 3]
    assert rows.filter(col("u") > 5).select("u").to_polars().schema == {"u": pl.Int64}
    with pytest.raises(cedar.PipelineError, match="needs a pipeline that ends"):
        rows.repeat().to_polars()


@pytest.mark.parametrize("options", [{}, {"descending": True}, {"maintain_order": True}])
@pytest.mark.parametrize(("name", "way"), [("group_by", "shuffle(by="), ("sort", "to_polars")])
def test_what_a_pipeline_does_not_do_is_answered(name: str, way: str, options: Any) -> None:
    with pytest.raises(cedar.PipelineError, match=f"no {name}") as caught:
        getattr(cedar.from_items([{"x": 1}]), name)("x", **options)
    assert way in (caught.value.fix or "")
    assert __file__ in str(caught.value)


@pytest.mark.parametrize("values", [(0, 1, 2), ("a", "b", "c"), (True, False, False)])
def test_classes_are_drawn_alike(values: tuple[Any, ...]) -> None:
    rows = cedar.from_items([{"x": i, "y": values[0 if i < 900 else 1 if i < 990 else 2]} for i in range(1000)])
    balanced = rows.balance_classes("y", seed=3)
    assert balanced.columns == ["x", "y"]
    with balanced.loader(executor="inline") as loader:
        first, second = list(loader), list(loader)
    counts = Counter(row["y"] for row in first)
    assert len(first) == 1000
    assert all(abs(n - 1000 / len(counts)) < 100 for n in counts.values())
    assert first != second
    starts = [row["y"] for row in first[:50]]
    assert len(set(starts)) > 1  # mixed


def test_balanced_on_ranks_and_resumed() -> None:
    rows = cedar.from_items([{"x": i, "y": int(i < 12)} for i in range(120)]).balance_classes("y")
    want = sorted(row["x"] for row in rows)
    found = [int(x) for rank in (0, 1) for b in rows.batch(4, last="keep").loader(rank=rank, world=2) for x in b["x"]]
    assert sorted(found) == want
    assert_resumable(rows.batch(8), executors=["inline"], stops=2)


def test_classes_that_cannot_be_balanced() -> None:
    rows = cedar.from_items([{"y": 1}, {"y": None}])
    with pytest.raises(cedar.PipelineError, match=r"balance_classes\('y'\): the column has 1 null") as caught:
        list(rows.balance_classes("y"))
    assert "filter(col('y').is_not_null())" in str(caught.value)
    with pytest.raises(cedar.PipelineError, match="no column 'z'"):
        rows.balance_classes("z")
    for call in (rows.balance_classes, rows.sample):
        with pytest.raises(cedar.PipelineError) as caught:
            call([0.5] * 1000)  # type: ignore[arg-type]
        assert len(str(caught.value)) < 1000
        assert "cedar.zip(p, cedar.from_numpy(" in (caught.value.fix or "")
    with pytest.raises(cedar.PipelineError, match="after sample"):
        rows.sample(n=1).balance_classes("y")
