"""Pipelines: what they are made of, what is known of them without running, and whose line an error names."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import cedar
from cedar.operators.batch import Batch
from cedar.operators.take import Take


def rows() -> cedar.Pipeline:
    return cedar.from_arrow(pa.table({"x": [3, 1, 2], "s": ["a", "b", None]}))


def test_a_method_gives_another_pipeline_and_leaves_its_own() -> None:
    p = rows()
    taken = p.take(2)
    assert (p.count(), taken.count()) == (3, 2)
    assert taken.node.inputs == (p.node,)
    assert list(p) == list(pickle.loads(pickle.dumps(p)))


def test_operators_of_ones_own_are_applied_at_the_users_line() -> None:
    p = rows().apply(Take(1))
    assert list(p) == [{"x": 3, "s": "a"}]
    assert p.node.site is not None
    assert p.node.site.file == __file__
    for wrong in (lambda row: row, Take, "take"):
        with pytest.raises(cedar.PipelineError, match="apply takes an operator, not ") as caught:
            rows().apply(wrong)  # type: ignore[arg-type]
        assert caught.value.site is not None
        assert caught.value.site.file == __file__


def test_a_preprocessor_is_fitted_before_it_is_applied() -> None:
    with pytest.raises(cedar.PipelineError, match="not StandardScaler") as caught:
        rows().apply(cedar.preprocessing.StandardScaler("x"))  # type: ignore[arg-type]
    assert "p.apply(cedar.fit(train, StandardScaler(...)))" in (caught.value.fix or "")


@pytest.mark.parametrize("join", [lambda p: p, lambda p: cedar.concat(p, p)])
def test_a_batch_of_batches_is_refused_where_it_is_built(join: Any) -> None:
    batches = rows().batch(2)
    with pytest.raises(cedar.PipelineError, match="batch") as caught:
        join(batches).apply(Batch(2))
    assert caught.value.site is not None
    assert caught.value.site.file == __file__


def test_columns_are_known_without_running_as_far_as_they_can_be() -> None:
    def never(x: int) -> Any:
        raise AssertionError("nothing runs")

    assert rows().schema == {"x": pa.int64(), "s": pa.large_string()}
    assert rows().map(never, "x", into="y").select("x", "y").schema == {"x": pa.int64(), "y": "?"}
    assert rows().map(never).schema == {"?": "?"}


def test_a_pipeline_shows_its_last_operator() -> None:
    shown = "<Pipeline take(2), columns x: int64, s: large_string; print(p.explain()) shows its plan>"
    assert repr(rows().take(2)) == shown
    assert str(rows().schema) == "{'x': int64, 's': large_string}"


def test_a_pipeline_shows_its_columns_where_that_reads_nothing(tmp_path: Path) -> None:
    rows().write_parquet(str(tmp_path / "a.parquet"))
    p = cedar.read_parquet(str(tmp_path / "*.parquet")).take(1)
    assert "columns" not in repr(p)
    assert p.schema
    assert "columns x: int64" in repr(p)
    assert "columns" not in repr(cedar.read_parquet("nowhere/*.parquet"))
    assert "columns" not in repr(rows().map(dict))


def test_a_loader_says_what_it_is() -> None:
    with rows().batch(2).loader(format="arrow", rank=1, world=2) as loader:
        assert repr(loader).startswith("<Loader of batch(2): format 'arrow', rank 1 of 2, epoch 0, step 0;")


def test_a_pipeline_has_no_length_and_no_items_and_says_what_to_use() -> None:
    p = rows()
    for ask in (len, lambda pipeline: pipeline[0], lambda pipeline: pipeline["x"]):
        with pytest.raises(cedar.PipelineError, match="a pipeline .*, because it is read by iterating") as caught:
            ask(p)
        assert isinstance(caught.value, TypeError)
        assert "a DataLoader" in (caught.value.fix or "")
        assert str(caught.value.site).startswith(__file__)
    assert p
    assert p.take(0)
    assert len(list(p)) == len([*p]) == len(tuple(iter(p))) == 3
    with pytest.raises(cedar.PipelineError, match="not Pipeline") as caught:
        cedar.from_items(p)
    assert "already has rows" in (caught.value.fix or "")


def test_data_are_no_pipeline_but_an_error_at_the_users_line() -> None:
    with pytest.raises(cedar.PipelineError, match=r"Pipeline\(list\): it takes no data") as caught:
        cedar.Pipeline([1])  # type: ignore[arg-type]
    assert caught.value.site is not None
    assert caught.value.site.file == __file__
