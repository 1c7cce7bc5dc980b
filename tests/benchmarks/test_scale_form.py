"""The scale simulator with few ranks: what must hold at any number of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import harness, scale, splits
from benchmarks.scale_clock import Barrier, Board, Clock
from benchmarks.scale_data import Numbered, Size, counted, uncounted
from benchmarks.scale_reads import Storage, assigned, lanes, took
from benchmarks.scale_service import Service
from benchmarks.scale_talk import agreed, met

SIZE = Size(ranks=12, splits=500, rows=100_000, batch=16)


@pytest.fixture(scope="module")
def job() -> scale.Job:
    return scale.Job.of(SIZE)[0]


def test_the_quick_form_meets_its_targets(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "OUT", tmp_path)
    figures = scale.main(["--quick", "--ranks", "16", "--splits", "800", "--rows", "200000", "--drawn", "2"])
    assert [f.what for f in figures if f.met is False] == []
    assert {f.how for f in figures} == {"measured", "simulated"}
    assert (tmp_path / "scale.json").exists()


def test_every_rank_takes_as_many_batches_and_none_is_dealt_twice(job):
    assert len(set(job.parts.steps.tolist())) == 1
    taken = [batch for run in job.parts.runs for batch in range(*run.batches)]
    assert sorted(taken) == list(range(len(taken)))
    assert 0 <= SIZE.rows - len(taken) * SIZE.batch < SIZE.ranks * SIZE.batch


@pytest.mark.heavy
def test_ranks_deliver_the_rows_that_the_runs_say_and_read_no_others(job):
    reads, _ = job.reads()
    seen = []
    for rank in range(SIZE.ranks):
        with counted(SIZE).loader(rank=rank, world=SIZE.ranks, executor="inline") as loader:
            rows = np.concatenate([batch["row"] for batch in loader])
        assert len(rows) == job.parts.steps[rank] * SIZE.batch
        assert loader.report().rows_read == job.source.rows[reads[rank]].sum()
        seen.append(rows)
    every = np.concatenate(seen)
    assert len(np.unique(every)) == len(every) == int(job.parts.steps.sum()) * SIZE.batch
    assert scale.amplification(job) >= 1


def test_every_split_is_in_one_lane():
    found = lanes(uncounted(SIZE).loader(rank=0, world=SIZE.ranks, executor="inline"), SIZE)
    assert sorted(np.concatenate(found).tolist()) == list(range(SIZE.splits))


def test_the_rows_of_all_splits_are_those_of_the_data_set():
    source = Numbered(SIZE)
    assert source.rows.min() >= 1
    rows = np.concatenate([next(source.read(split))["row"] for split in source.splits()])
    assert np.array_equal(rows, np.arange(SIZE.rows))


def test_a_slow_rank_is_skew(job):
    reads, window = job.reads()
    plain, slow = (took(reads, window, job.sizes, Storage(), factor) for factor in (1.0, 3.0))
    assert plain.end.max() / plain.end.mean() < 1.5
    assert slow.end.argmax() == 0
    assert slow.end[0] > 2 * plain.end[0]


def test_a_store_that_answers_few_requests_takes_so_long(job):
    reads, window = job.reads()
    model = Storage(rate=100.0)
    found = took(reads, window, job.sizes, model)
    requests = sum(int(model.requests(job.sizes[each]).sum()) for each in reads)
    assert found.per_second.max() <= 101
    assert found.per_second.sum() == requests
    assert found.end.max() >= requests / 100


@pytest.mark.parametrize("model", [Board(), Service()])
def test_ranks_that_agree_end_at_the_step_of_the_first_that_is_through(model):
    found = agreed([9, 14, 11, 12], step=0.1, slow=3.0, model=model)
    assert found.steps == [9] * 4
    assert [step + left for step, left in zip(found.steps, found.left, strict=True)] <= [9, 14, 11, 12]
    assert found.seconds > 9 * 0.1
    again = agreed([9, 14, 11, 12], step=0.1, slow=3.0, model=model)
    assert replace(found, cpu=0.0) == replace(again, cpu=0.0)


@pytest.mark.parametrize(
    "models",
    [(Board(rate=1e6), Board(rate=1e3)), (Service(message=1e-6), Service(message=2e-3))],
    ids=["store", "service"],
)
def test_a_slower_board_costs_more_of_a_step(models):
    fast, slow = (agreed([16] * 32, 0.1, model=model).beyond for model in models)
    assert fast < 0.01 < slow


def test_the_service_hears_a_word_of_each_rank_and_block_and_how_it_comes():
    found = agreed([16] * 8, 0.1, model=Service())
    assert found.requests == 8 * (1 + 16 // 4 + 1)  # and that it is through
    assert found.cpu > 0


@pytest.mark.heavy
@pytest.mark.parametrize("model", [Board(), Service()])
def test_what_ranks_ask_as_they_meet_grows_as_their_number(model):
    few, many = met(32, model), met(256, model)
    assert many[1] / few[1] < 12
    assert many[0] / few[0] < 12


def test_an_error_of_a_simulated_rank_ends_the_run():
    clock = Clock()

    def fails() -> None:
        clock.sleep(1.0)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        clock.run([fails, lambda: clock.sleep(5.0)])


def test_simulated_ranks_that_wait_for_each_other_are_told():
    clock = Clock()
    barrier = Barrier(clock, 3)
    with pytest.raises(RuntimeError, match="2 threads wait"):
        clock.run([barrier.wait, barrier.wait])


@pytest.mark.heavy
def test_splits_and_manifests_are_measured_in_a_small_form(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "OUT", tmp_path)
    monkeypatch.setattr(splits, "apart", lambda function, argument: getattr(splits, function)(argument))
    figures = splits.main(["--splits", "2000", "--files", "20", "--rounds", "1"])
    told = {figure.what: figure.measured for figure in figures}
    assert told["manifest: files whose footers a second start reads"] == 0
    assert told["manifest: footers read to make it"] == 20


def test_a_job_of_another_shape_is_dealt_whole():
    size = replace(SIZE, ranks=7, splits=50, rows=5_000, batch=3)
    found = assigned(counted(size).loader(rank=0, world=7, executor="inline"), size)
    assert int(found.steps.sum()) == 5_000 // 3 // 7 * 7
