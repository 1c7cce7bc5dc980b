"""The loader: its arguments, its length, and what it delivers."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import PipelineError
from tests.engine.delivery.few_rows import rows
from tests.engine.failing import fails_on
from tests.toy_runs import run

# ---- what is delivered ---------------------------------------------------------------------------------------------


def test_tensors_move_to_the_device() -> None:
    batch = next(iter(rows().batch(4).loader(format="torch", device="cpu")))
    assert batch["x"].device.type == "cpu"
    assert batch["l"].values.device.type == "cpu"


# ---- length ----------------------------------------------------------------------------------------------------------


def test_rows_that_may_be_skipped_have_no_length():
    loader = cedar.from_items([{"x": i} for i in range(5)]).map(fails_on(1), "x", on_error=cedar.Skip()).loader()
    with pytest.raises(TypeError):
        len(loader)
    with pytest.raises(cedar.PipelineError, match="use batch"):
        loader.read(0)


def test_length_is_exact_where_metadata_and_operators_allow() -> None:
    assert len(rows().loader()) == 20
    assert len(rows().batch(6).loader()) == 4
    assert len(rows().batch(6, last="keep").loader()) == 4
    assert [len(rows().batch(2, last="keep").loader(rank=r, world=3)) for r in range(3)] == [4, 3, 3]
    assert [len(rows().batch(2).loader(rank=r, world=3)) for r in range(3)] == [3, 3, 3]
    assert [len(rows().batch(2, last="pad").loader(rank=r, world=3)) for r in range(3)] == [4, 4, 4]
    assert len(rows().batch(6).loader(rank=1, world=3, split_batches=True)) == 3
    assert len(rows().map(str, "x").with_columns(y=cedar.col("x")).repeat(2).take(33).loader()) == 33
    assert len(rows().filter(cedar.col("x") > 3).batch(2).loader(steps=7)) == 7
    for p in (rows().shuffle().repeat(2).batch(3, last="keep"), rows().skip(3), cedar.concat(rows(), rows(3))):
        for world in (1, 2):
            for rank in range(world):
                loader = p.loader(rank=rank, world=world)
                assert len(loader) == len(list(loader))


def test_length_is_a_type_error_where_only_a_run_can_tell() -> None:
    for p in (rows().filter(cedar.col("x") > 3), rows().flat_map(range, "x"), rows().repeat()):
        with pytest.raises(TypeError, match="steps="):
            len(p.loader())
    with pytest.raises(TypeError):
        len(rows().map(str, "x", on_error=cedar.Skip(refill=True)).batch(2).loader())


def test_an_endless_pipeline_runs_with_steps_or_a_break() -> None:
    p = rows(3).shuffle().repeat().batch(2)
    assert len(run(p.loader(steps=9))[0]) == 9
    head, state = run(p.loader(), 5)
    loader = p.loader()
    loader.load_state_dict(state)
    more, _ = run(loader, 4)
    assert head + more == run(p.loader(), 9)[0]


# ---- report ----------------------------------------------------------------------------------------------------------


@pytest.mark.heavy
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
        assert delivered == 64 * 100_000 // 8
    assert max(shares) <= 1.3


# ---- what code written for a dataloader asks of a loader -------------------------------------------------------------


@pytest.mark.parametrize("away", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_loader_is_not_sent_anywhere(away: Any) -> None:
    with pytest.raises(PipelineError, match="send the pipeline"):
        away(rows().batch(4).loader())
    assert pickle.loads(pickle.dumps(rows().batch(4))).loader()
    local = rows().map(lambda x: x + 1, "x").batch(4)
    with pytest.raises((AttributeError, pickle.PicklingError)):
        pickle.dumps(local)
    with pytest.raises(PipelineError, match="lambdas .* use cloudpickle"):
        pickle.dumps(local.loader())
    assert len(list(pickle.loads(cloudpickle.dumps(local)).loader())) == 5


def test_each_ranks_state_has_a_name_of_its_own() -> None:
    p = cedar.from_items([{"x": i} for i in range(24)]).batch(2)
    loaders = [p.loader(rank=rank, world=2, executor="inline") for rank in range(2)]
    got = [next(iter(loader))["x"].tolist() for loader in loaders]
    kept = {name: text for loader in loaders for name, text in loader.stateful().state_dict().items()}
    assert sorted(kept) == ["rank 0 of 2", "rank 1 of 2"]
    alone = p.loader(rank=0, world=1, executor="inline")
    assert sorted(alone.stateful(world=2).state_dict()) == sorted(kept), "names to be loaded over"
    alone.stateful(world=2).load_state_dict(kept)
    rest = [x for batch in alone for x in batch["x"].tolist()]
    assert sorted([*rest, *got[0], *got[1]]) == list(range(24))
    with pytest.raises(cedar.ResumeError, match=r"no state of rank 0 of 1(?s:.*)stateful\(world=\)"):
        alone.stateful().load_state_dict(kept)


def test_an_epoch_that_a_trainer_tells_of_is_begun_once() -> None:
    loader = cedar.from_items([{"x": i} for i in range(6)]).shuffle().batch(2).loader(executor="inline")
    whole = [batch["x"].tolist() for batch in loader]
    loader.set_epoch(0)
    next(iter(loader))
    loader.load_state_dict(loader.state_dict())
    loader.sampler.set_epoch(0)  # where it stands
    assert [batch["x"].tolist() for batch in loader] == whole[1:]
    loader.sampler.set_epoch(0)
    assert [batch["x"].tolist() for batch in loader] == whole
    assert loader.batch_sampler is None


def test_a_loader_has_no_items_and_says_what_to_use() -> None:
    loader = rows().batch(4).loader()
    with pytest.raises(PipelineError, match="a loader has no items") as caught:
        loader[0]
    assert isinstance(caught.value, TypeError)
    assert "in place of a DataLoader" in (caught.value.fix or "")
    assert str(caught.value.site).startswith(__file__)
    with pytest.raises(PipelineError, match="not Loader"):
        cedar.from_items(loader)


def test_the_error_for_an_unknown_length_names_sources_too(tmp_path):
    (tmp_path / "a.txt").write_text("a\n")
    with pytest.raises(TypeError, match="the source does not count its rows"):
        len(cedar.read_text(tmp_path / "a.txt").batch(1).loader())
