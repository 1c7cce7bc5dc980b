"""Which operator makes row counts unknown, and whether reading the columns of filters first would make them known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import col
from cedar.engine.binding import Binding
from cedar.engine.uncounted import counted_if_read, offer, percent, share
from cedar.operators.base import Env


@pytest.fixture
def rows(tmp_path: Path) -> cedar.Pipeline:
    table = pa.table(
        {"id": range(200), "x": [i % 5 for i in range(200)], "text": [f"{i} long text" * 9 for i in range(200)]}
    )
    pq.write_table(table, tmp_path / "t.parquet", compression="none", use_dictionary=False)
    return cedar.read_parquet(str(tmp_path / "t.parquet"))


def binding_of(pipeline: cedar.Pipeline) -> Binding:
    return Binding(pipeline.node, None, Env())


def test_filters_of_columns_can_be_counted_by_reading_those(rows: cedar.Pipeline) -> None:
    filtered = binding_of(rows.filter(col("x") < 3).batch(4))
    asked, culprit = counted_if_read(filtered)
    assert culprit is None
    assert 0 < share(asked) < 0.2, "the text is not read"
    assert offer(filtered) == f'loader(counts="exact"), which reads {percent(share(asked))} of the bytes first'


@pytest.mark.parametrize(
    ("change", "label", "why"),
    [
        (lambda p: p.flat_map(range, "x"), "flat_map(range)", "known only after a run"),
        (lambda p: p.map(abs, "x").filter(col("x") < 3), "filter", "it is above map(abs)"),
        (lambda p: p.filter(col("x") < 3, on_error=cedar.Skip(refill=True)), "filter", "the next row takes the place"),
    ],
)
def test_what_leaves_counts_unknown_is_named_with_the_reason(
    rows: cedar.Pipeline, change: Any, label: str, why: str
) -> None:
    binding = binding_of(change(rows).batch(4))
    _, culprit = counted_if_read(binding)
    assert culprit is not None
    assert binding.labels[id(culprit[0])].startswith(label)
    assert why in culprit[1]
    assert offer(binding) == ""
