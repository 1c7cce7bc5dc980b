"""Which operator makes row counts unknown, and whether reading the columns of filters first would make them known."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar import col
from cedar.engine.binding import Binding
from cedar.engine.notes import counted_if_read, offer, percent, share
from cedar.operators.base import Env
from tests.engine.streams.slow_rows import SLOW, numbers, same


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
        (lambda p: p.map(abs, "x").filter(col("x") < 3), "filter", "it comes after map(abs)"),
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


def written(folder: Path, rows: int, group: int) -> str:
    path = folder / f"{rows}-{group}.parquet"
    pq.write_table(pa.table({"id": np.arange(rows)}), path, row_group_size=group)
    return str(path)


def said(loader: cedar.Loader) -> tuple[float, int] | None:
    found = re.match(r"RANKS  this rank reads ([\d.]+) times .* an epoch has (\d+) for", loader.explain())
    return None if found is None else (float(found[1]), int(found[2]))


def read_over_needed(loader: cedar.Loader) -> float:
    needed = sum(len(batch["id"]) for batch in loader)
    return loader.report().rows_read / needed if needed else 0.0


@pytest.mark.heavy
@given(
    rows=st.integers(200, 1200), group=st.integers(5, 60), window=st.integers(5, 700), size=st.integers(1, 30),
    world=st.integers(2, 8), rank=st.integers(0, 7), last=st.sampled_from(["drop", "keep", "pad"]),
)  # fmt: skip
def test_what_is_said_is_what_is_read(tmp_path, rows, group, window, size, world, rank, last):
    p = cedar.read_parquet(written(tmp_path, rows, group)).shuffle(window=window).batch(size, last=last)
    with p.loader(rank=rank % world, world=world, executor="inline", plan="off") as loader:
        told = said(loader)
        needed = sum(int(batch["valid"].sum()) if last == "pad" else len(batch["id"]) for batch in loader)
        read = loader.report().rows_read
    if needed and told is not None:
        assert read / needed == pytest.approx(told[0], abs=0.006)
    elif needed:
        assert read / needed <= 1.16


@pytest.mark.parametrize(("windows", "most"), [(1, 8.0), (2, 4.0), (7, 2.3)])
def test_few_windows_are_told(tmp_path, windows, most):
    p = cedar.read_parquet(written(tmp_path, 1600, 10)).shuffle(window=1600 // windows).batch(10)
    loaders = [p.loader(rank=rank, world=8, executor="inline", plan="off") for rank in range(8)]
    found = [each for each in map(said, loaders) if each is not None]
    assert max(found) == (most, windows)


def test_of_many_windows_little_is_read_twice_and_nothing_said(tmp_path):
    p = cedar.read_parquet(written(tmp_path, 3200, 10)).shuffle(window=50).batch(10)
    loaders = [p.loader(rank=rank, world=8, executor="inline", plan="off") for rank in range(8)]
    assert [said(loader) for loader in loaders] == [None] * 8
    assert max(map(read_over_needed, loaders)) <= 1.15


def test_nothing_is_said_of_one_rank_or_where_windows_are_a_rank_s_own(tmp_path):
    p = cedar.read_parquet(written(tmp_path, 400, 10)).shuffle(window=400)
    assert said(p.batch(10).loader(executor="inline")) is None
    assert said(p.filter(lambda i: i % 2, "id").batch(10, last="keep").loader(rank=0, world=4)) is None
    assert said(p.batch(8).loader(rank=0, world=4, split_batches=True)) is None


@pytest.mark.parametrize(
    ("pipeline", "told"),
    [
        (SLOW, "ORDER  rows come as they finish by map(held_up)"),
        (numbers().map(same, "x"), "ORDER  rows come as they finish by map(same)"),
        (numbers().filter(same, "x").map(same, "x").batch(4), "ORDER  rows come as they finish by map(same)"),
        (
            numbers().map(same, "x").filter(same, "x").batch(4),
            "ORDER  rows come in order: how many rows filter(same) leaves is known only after it has run",
        ),
        (
            numbers().batch(4).map(same, "x"),
            "ORDER  rows come in order: no per-row function is directly before batch(); map(same) works on batches",
        ),
        (
            numbers().map(lambda x: [x], "x", into="l", dtype=object).bucket_by_length("l", [2], [4, 4]),
            "ORDER  rows come in order: bucket_by_length",
        ),
        (numbers().map(same, "x").take(50).batch(5), "ORDER  rows come in order: no per-row function is directly"),
    ],
)
def test_explain_says_which_rows_come_as_they_are_done(pipeline: cedar.Pipeline, told: str) -> None:
    with pipeline.loader(order="any", plan="off") as loader:
        assert told in loader.explain()
    with pipeline.loader(plan="off") as loader:
        assert "ORDER" not in loader.explain()
