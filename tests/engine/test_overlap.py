"""What a rank reads beyond its batches where counts are known, and that ``explain()`` says it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar


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
