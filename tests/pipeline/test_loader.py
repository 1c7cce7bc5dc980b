"""The loader: its arguments, its life cycle, and what it hands over."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import PipelineError, PlanError
from tests.toy_runs import plain, run, saved


def rows(n: int = 20) -> cedar.Pipeline:
    return cedar.from_arrow(
        pa.table({"x": pa.array(range(n), pa.int64()), "l": [list(range(i % 3)) for i in range(n)]})
    )


def xs(batches: list[Any]) -> list[list[int]]:
    return [list(batch["x"]) for batch in batches]


# ---- what is handed over ---------------------------------------------------------------------------------------------


def test_numpy_torch_and_arrow_hold_the_same_values() -> None:
    import torch

    p = rows().shuffle().batch(6, last="keep")
    numpy = list(p.loader(format="numpy"))
    tensors = list(p.loader(format="torch"))
    tables = list(p.loader(format="arrow"))
    assert isinstance(numpy[0]["x"], np.ndarray)
    assert isinstance(tensors[0]["x"], torch.Tensor)
    assert isinstance(tensors[0]["l"], cedar.JaggedTensor)
    assert isinstance(tables[0], pa.Table)
    assert [plain(b) for b in tensors] == [plain(b) for b in numpy]
    assert [t.column("x").to_pylist() for t in tables] == xs(numpy)
    assert [t.column("l").to_pylist() for t in tables] == [b["l"].to_list() for b in numpy]


def test_tensors_move_to_the_device() -> None:
    batch = next(iter(rows().batch(4).loader(format="torch", device="cpu")))
    assert batch["x"].device.type == "cpu"
    assert batch["l"].values.device.type == "cpu"


def test_rows_are_dicts_and_batches_dicts_of_arrays() -> None:
    first = next(iter(rows()))
    assert first == {"x": 0, "l": []}
    assert type(first["x"]) is int
    assert next(iter(rows().batch(3)))["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"format": "pandas"}, "it is one of 'numpy', 'torch', 'arrow'"),
        ({"device": "cpu", "format": "numpy"}, 'device= needs format="torch"'),
        ({"workers": 0}, "workers=0"),
        ({"workers": True}, "workers=True"),
        ({"steps": 0}, "steps=0"),
        ({"steps": 2.5}, "steps=2.5"),
        ({"on_error": "skip"}, "cedar.Skip"),
        ({"rank": 0}, "give both or neither"),
        ({"rank": 3, "world": 3}, "between 0 and world - 1"),
        ({"split_batches": True, "rank": 0, "world": 3}, "cannot be cut evenly for 3 ranks"),
        ({"executor": "process"}, "'process' is unknown"),
        ({"num_workers": 4}, "here that is workers="),
        ({"batch_size": 4}, "here that is .batch(n)"),
        ({"exekutor": "threads"}, "did you mean executor=?"),
    ],
)
def test_wrong_arguments_are_refused_at_the_users_line(options: dict[str, Any], error: str) -> None:
    with pytest.raises(cedar.CedarError) as caught:
        rows().batch(4).loader(**options)
    assert error in str(caught.value)
    if caught.value.site is not None:
        assert caught.value.site.file == __file__


def test_an_unknown_executor_is_told_which_there_are() -> None:
    with pytest.raises(PlanError, match="'ray' is unknown") as caught:
        rows().loader(executor="ray")
    assert "'threads'" in str(caught.value)
    assert "scheduler address" in str(caught.value)


def test_split_batches_needs_batches() -> None:
    with pytest.raises(PipelineError, match="needs batch"):
        rows().loader(split_batches=True)


# ---- length ----------------------------------------------------------------------------------------------------------


def test_length_is_exact_where_metadata_and_operators_allow() -> None:
    assert len(rows().loader()) == 20
    assert len(rows().batch(6).loader()) == 3
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


# ---- life cycle ------------------------------------------------------------------------------------------------------


def test_epochs_differ_by_their_shuffles_and_repeat_by_their_number() -> None:
    p = rows().shuffle().batch(5)
    loader = p.loader(seed=3)
    epochs = [xs(list(loader)) for _ in range(3)]
    assert loader.epoch == 3
    assert len({str(e) for e in epochs}) == 3
    assert [sorted(x for batch in e for x in batch) for e in epochs] == [list(range(20))] * 3
    assert xs(list(p.loader(seed=3, epoch=2))) == epochs[2]
    assert xs(list(p.loader(seed=4))) != epochs[0]
    loader.set_epoch(1)
    assert xs(list(loader)) == epochs[1]
    assert xs(list(loader)) == epochs[2]


def test_a_break_restarts_the_epoch_a_loaded_state_goes_on() -> None:
    p = rows().shuffle().batch(5)
    loader = p.loader()
    whole = xs(list(p.loader()))
    for batch in loader:
        assert batch["x"].tolist() == whole[0]
        break
    state = saved(loader)
    assert (loader.epoch, state["step"]) == (0, 1)
    assert xs(list(loader)) == whole
    loader.load_state_dict(state)
    assert loader.epoch == 0
    assert xs(list(loader)) == whole[1:]
    assert loader.epoch == 1
    loader.load_state_dict(state)
    for _ in loader:
        break
    assert xs(list(loader)) == whole, "a break after a resume starts the whole epoch again"


def test_a_state_can_be_asked_for_in_the_loop_and_later() -> None:
    p = rows().batch(5)
    loader = p.loader()
    states = [saved(loader)]
    for _ in loader:
        states.append(saved(loader))
        assert saved(loader) == states[-1]
    states.append(saved(loader))
    assert [(s["epoch"], s["step"]) for s in states] == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0)]
    for number, state in enumerate(states[:-1]):
        again = p.loader()
        again.load_state_dict(state)
        assert len(list(again)) == 4 - number


def test_a_second_loop_supersedes_the_first() -> None:
    loader = rows().batch(5).loader()
    first = iter(loader)
    next(first)
    assert xs(list(loader)) == xs(list(rows().batch(5).loader()))
    with pytest.raises(PipelineError, match="superseded"):
        next(first)


def test_a_closed_loader_still_reports() -> None:
    with rows().batch(5).loader() as loader:
        for _ in loader:
            break
    assert loader.report().batches == 1
    assert saved(loader)["step"] == 1


# ---- read and commit -------------------------------------------------------------------------------------------------

PIPELINES = {
    "known": lambda: rows(31).shuffle(window=9).batch(3, last="keep"),
    "unknown": lambda: rows(31).filter(lambda x: x % 4 > 0, "x").shuffle(window=9).batch(3, last="keep"),
    "padded": lambda: rows(31).drop("l").shuffle().batch(4, last="pad"),
    "rows": lambda: rows(11).shuffle(),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_any_rank_reads_what_another_rank_got(name: str) -> None:
    p = PIPELINES[name]()
    got = [[plain(b) for b in p.loader(rank=r, world=3)] for r in range(3)]
    with p.loader(rank=1, world=3) as loader:
        for step in (2, 0, 1, 1, 3):
            for rank in range(3):
                if step < len(got[rank]):
                    assert plain(loader.read(step, rank)) == got[rank][step]
        assert plain(loader.read(0)) == got[1][0]
        assert [plain(b) for b in loader] == got[1], "reading does not disturb the loop"


def test_reading_again_after_resumes_and_changes_of_world() -> None:
    p = PIPELINES["known"]()
    states = [run(p.loader(rank=r, world=2), 2)[1] for r in range(2)]
    rest = []
    for rank in range(3):
        loader = p.loader(rank=rank, world=3)
        loader.load_state_dict(states)
        rest.append([plain(b) for b in loader])
    with p.loader(rank=0, world=3) as loader:
        loader.load_state_dict(states)
        for rank in range(3):
            assert [plain(loader.read(2 + i, rank)) for i in range(len(rest[rank]))] == rest[rank]
        with pytest.raises(PipelineError, match="dealt anew"):
            loader.read(1)


def test_reading_with_steps_crosses_epochs_of_the_data() -> None:
    p = rows(10).shuffle().batch(2)
    got = [[plain(b) for b in p.loader(rank=r, world=2, steps=7)] for r in range(2)]
    with p.loader(rank=0, world=2, steps=7) as loader:
        assert [plain(loader.read(i, r)) for r in range(2) for i in range(7)] == got[0] + got[1]


def test_what_is_committed_cannot_be_read() -> None:
    with rows().batch(2).loader() as loader:
        loader.read(4)
        loader.commit(4)
        with pytest.raises(PipelineError, match="committed"):
            loader.read(4)
        with pytest.raises(PipelineError, match="committed"):
            loader.read(0)
        assert loader.read(5)["x"].tolist() == [10, 11]
        for step, rank in ((99, 0), (5, 7)):
            with pytest.raises(PipelineError):
                loader.read(step, rank)


# ---- report ----------------------------------------------------------------------------------------------------------


def test_the_report_counts_what_was_done() -> None:
    p = rows(40).map(lambda x: x + 1, "x").filter(cedar.col("x") > 20).batch(4, last="keep")
    loader = p.loader(executor="threads", workers=2)
    list(loader)
    report = loader.report()
    assert (report.rows, report.batches, report.epoch, report.rows_read) == (20, 5, 1, 40)
    assert (report.rank, report.world, report.rank_from) == (0, 1, "default")
    assert (report.executor, report.workers, report.restarts) == ("threads", 2, 0)
    assert 0 <= report.stall <= 1
    assert report.rows_per_second > 0
    assert any("map(" in name for name in report.operators)
    assert "rows/s" in str(report)
    assert "20" in str(report)


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


def test_ranks_come_from_the_environment_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = rows().batch(5).loader()
    assert (loader.rank.rank, loader.rank.world) == (1, 2)
    assert "RANK and WORLD_SIZE" in str(loader.report())
    assert len(list(loader)) == 2
    assert rows().count() == 20, "sinks see every row, whatever the rank"
    monkeypatch.setenv("RANK", "one")
    with pytest.raises(PipelineError, match="not whole numbers"):
        rows().loader()


@pytest.mark.parametrize(("there", "missing"), [("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK")])
def test_half_a_rank_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch, there: str, missing: str) -> None:
    monkeypatch.delenv(missing, raising=False)
    monkeypatch.setenv(there, "1")
    with pytest.raises(PipelineError, match=rf"{there}='1' is set in the environment and {missing} is not"):
        rows().loader()
    assert rows().loader(rank=0, world=1).rank.origin == "arguments", "which say both"
    assert rows().count() == 20


@pytest.mark.parametrize(("rank", "world"), [("0", 1), (0, "1"), (0.0, 1), (True, 2)])
def test_a_rank_that_is_no_whole_number_is_refused(rank: Any, world: Any) -> None:
    with pytest.raises(PipelineError, match="are not whole numbers"):
        rows().loader(rank=rank, world=world)
    assert rows().loader(rank=np.int64(0), world=np.int64(1)).rank.world == 1


def test_an_epoch_that_fills_no_round_of_ranks_says_so(caplog: pytest.LogCaptureFixture) -> None:
    rows = cedar.from_items([{"x": i} for i in range(8)])
    assert list(rows.batch(4).loader(rank=0, world=3)) == []
    assert "2 unit(s) for 3 ranks" in caplog.text
    caplog.clear()
    assert len(list(rows.batch(4, last="keep").loader(rank=0, world=3))) == 1
    assert caplog.text == ""


# ---- numbers as users have them --------------------------------------------------------------------------------------


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    def batches(whole: Any) -> list[Any]:
        shuffled = rows().shuffle(seed=whole(2), window=whole(7)).batch(whole(4))
        return [b["x"].tolist() for b in shuffled.loader(seed=whole(3), epoch=whole(1), workers=whole(2))]

    assert batches(np.int64) == batches(np.uint8) == batches(int)
    with pytest.raises(PipelineError, match="whole number"):
        rows().batch(np.float64(4))  # type: ignore[arg-type]


@pytest.mark.parametrize("epoch", ["1", 1.5, None, True, -1])
def test_what_is_no_epoch_is_refused_and_leaves_the_loader_as_it_was(epoch: Any) -> None:
    loader = rows().batch(4).loader()
    before = loader.state_dict()
    with pytest.raises(PipelineError, match="set_epoch"):
        loader.set_epoch(epoch)
    assert loader.state_dict() == before


def test_an_epoch_of_numpy_can_be_saved() -> None:
    loader = rows().shuffle(seed=1).batch(4).loader()
    loader.set_epoch(np.int64(3))  # type: ignore[arg-type]
    assert json.loads(json.dumps(loader.state_dict()))["epoch"] == 3


# ---- whose memory it is ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["torch", "numpy"])
@pytest.mark.parametrize("make", [cedar.from_arrow, lambda table: cedar.from_polars(pl.from_arrow(table))])
def test_who_writes_into_a_batch_writes_into_no_table(make: Any, format: str) -> None:
    pytest.importorskip("torch")
    table = pa.table({"x": np.arange(6.0), "ids": [[1, 2], [], [3], [4], [5], [6]], "name": list("abcdef")})
    wanted = table.to_pydict()
    loader = make(table).batch(3).loader(format=format, executor="inline")
    for _ in range(2):
        for at, batch in enumerate(loader):
            assert batch["x"].tolist() == wanted["x"][3 * at : 3 * at + 3]
            for part in (batch["x"], batch["ids"].values):
                if format == "torch" or part.flags.writeable:
                    part -= 100
    assert table.to_pydict() == wanted


@pytest.mark.parametrize("away", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_loader_is_not_sent_anywhere(away: Any) -> None:
    with pytest.raises(PipelineError, match="send the pipeline"):
        away(rows().batch(4).loader())
    assert pickle.loads(pickle.dumps(rows().batch(4))).loader()
