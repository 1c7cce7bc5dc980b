"""The loader: its arguments, its life cycle, and what it hands over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import PipelineError
from tests.engine.delivery.few_rows import rows, xs
from tests.toy_runs import run

# ---- what is handed over ---------------------------------------------------------------------------------------------


def test_tensors_move_to_the_device() -> None:
    batch = next(iter(rows().batch(4).loader(format="torch", device="cpu")))
    assert batch["x"].device.type == "cpu"
    assert batch["l"].values.device.type == "cpu"


# ---- length ----------------------------------------------------------------------------------------------------------


def test_an_endless_pipeline_runs_with_steps_or_a_break() -> None:
    p = rows(3).shuffle().repeat().batch(2)
    assert len(run(p.loader(steps=9))[0]) == 9
    head, state = run(p.loader(), 5)
    loader = p.loader()
    loader.load_state_dict(state)
    more, _ = run(loader, 4)
    assert head + more == run(p.loader(), 9)[0]


# ---- life cycle ------------------------------------------------------------------------------------------------------


def test_a_second_loop_supersedes_the_first() -> None:
    loader = rows().batch(5).loader()
    first = iter(loader)
    next(first)
    assert xs(list(loader)) == xs(list(rows().batch(5).loader()))
    with pytest.raises(PipelineError, match="superseded"):
        next(first)


# ---- report ----------------------------------------------------------------------------------------------------------


def test_a_rank_decodes_little_more_than_its_share(tmp_path: Any) -> None:
    table = pa.table({"x": pa.array(np.arange(100_000) % 100, pa.int8())})
    with pq.ParquetWriter(tmp_path / "a.parquet", table.schema) as writer:
        for _ in range(64):
            writer.write_table(table, row_group_size=100_000)
    p = cedar.read_parquet(str(tmp_path / "a.parquet")).shuffle().batch(4096)
    shares = []
    for rank in (0, 3, 7):
        loader = p.loader(rank=rank, world=8)
        delivered = sum(len(batch["x"]) for batch in loader)
        shares.append(loader.report().rows_read / (64 * 100_000 / 8))
        assert delivered == 64 * 100_000 // 4096 // 8 * 4096
    assert max(shares) <= 1.3
