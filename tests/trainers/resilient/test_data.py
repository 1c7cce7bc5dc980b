"""Micro-batches: each its own rows of a batch, read again as often as it is asked for, until its step is committed."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import cedar
from cedar.trainers.resilient.data import LoaderSource, MicroBatches, Source, WrongRows


def test_micro_batches_are_the_rows_of_a_batch_one_after_the_other():
    read: list[int] = []

    def batch(step):
        read.append(step)
        rows = torch.arange(12) + 100 * step
        return {"x": rows, "y": [rows * 2]}, -rows

    data = MicroBatches(Source(batch), 3, 2, 12)
    keys = [(replica, number) for replica in range(2) for number in range(3)]
    assert torch.cat([data.inputs(1, key)["x"] for key in keys]).tolist() == list(range(100, 112))
    assert data.inputs(1, (1, 0))["y"][0].tolist() == [212, 214]
    assert data.targets(1, (0, 2)).tolist() == [-104, -105]
    assert read == [1]  # once for all of it
    data.inputs(2, (0, 0))
    data.commit(1)
    data.targets(2, (0, 0))
    assert read == [1, 2]


@pytest.mark.parametrize(("inputs", "targets"), [(13, 13), (12, 24), (24, 12)])
def test_a_batch_of_other_rows_is_refused(inputs, targets):
    """Rows beyond the batch were left out, and missing ones were taken for a stage that changes its shapes."""
    data = MicroBatches(Source(lambda step: ({"x": [torch.zeros(inputs)]}, torch.zeros(targets))), 3, 2, 12)
    odd = f"{inputs} rows of inputs" if inputs != 12 else f"{targets} rows of targets"
    with pytest.raises(WrongRows, match=f"data gave {odd} at step 4, and the batch is 12"):
        data.targets(4, (0, 0))


@pytest.mark.parametrize(
    ("targets", "kind"), [(torch.tensor(1.0), "tensor without dimensions"), (3, "int"), (None, "NoneType")]
)
def test_targets_without_rows_are_refused(targets, kind):
    """The error was that of len()."""
    data = MicroBatches(Source(lambda step: (torch.zeros(12), targets)), 3, 2, 12)
    with pytest.raises(WrongRows, match=f"data gave targets of type {kind}"):
        data.inputs(0, (0, 0))


@pytest.mark.parametrize("given", [4, 6, 12])
def test_a_function_of_rows_is_asked_for_those_of_a_replica(given):
    asked: list[tuple[int, range]] = []

    def batch(step, rows):
        asked.append((step, rows))
        return torch.arange(rows.start, rows.start + given), torch.arange(rows.start, rows.start + given)

    data = MicroBatches(Source(batch), 3, 2, 12)
    if given != 6:
        with pytest.raises(WrongRows, match=f"data gave {given} rows of inputs at step 1, and rows 6 to 12 were asked"):
            data.inputs(1, (1, 0))
        return
    assert data.inputs(1, (1, 2)).tolist() == data.targets(1, (1, 2)).tolist() == [10, 11]
    assert data.inputs(1, (1, 0)).tolist() == [6, 7]
    assert asked == [(1, range(6, 12))]
    assert data.inputs(1, (0, 1)).tolist() == [2, 3]  # of a worker that has died
    assert asked == [(1, range(6, 12)), (1, range(6))]


@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_a_worker_reads_the_rows_of_its_replica_and_no_others(lanes, tmp_path):
    seen: list[int] = []
    for at in range(8):
        pq.write_table(pa.table({"x": range(48 * at, 48 * at + 48)}), tmp_path / f"{at}.parquet", row_group_size=12)
    pipeline = cedar.read_parquet(str(tmp_path)).map(lambda x: seen.append(x) or x, "x")
    source = LoaderSource(pipeline, 24, lambda batch: (batch["x"], batch["x"]), seed=0, lanes=lanes)
    data, got = MicroBatches(source, 3, 24 // lanes // 3, 24), list[int]()
    data.inputs(0, (lanes - 1, 0))  # what the function gives is tried on the first rows
    seen.clear()
    for step in range(1, 5):
        got += torch.cat([data.inputs(step, (lanes - 1, number)) for number in range(3)]).tolist()
    assert got == list(range(got[0], got[0] + 4 * 24 // lanes))
    assert len(set(seen) - set(got)) < 48  # row groups are read whole; those of other replicas are not
    data.close()


def test_a_run_on_other_replicas_reads_the_rows_of_a_step_that_it_began_with():
    pipeline = cedar.from_items([{"x": at} for at in range(96)])
    source = LoaderSource(pipeline, 12, lambda batch: (batch["x"], {"y": batch["x"]}), seed=0, lanes=2)
    whole = source.read(3, range(12))[0].tolist()
    assert len(set(whole)) == 12
    data = MicroBatches(source, 1, 4, 12)  # of three replicas
    assert [row for replica in range(3) for row in data.inputs(3, (replica, 0)).tolist()] == whole
    assert data.targets(3, (1, 0))["y"].tolist() == whole[4:8]
    data.close()


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("side", [0, 1])
def test_columns_that_return_other_rows_than_a_batch_has_are_refused(lanes, side):
    """The rows beyond the batch were cut off in silence, and the others trained with wrong targets."""
    pipeline = cedar.from_items([{"x": at} for at in range(96)])
    give = lambda batch: tuple(batch["x"].repeat(1 + (at == side)) for at in range(2))
    data = MicroBatches(LoaderSource(pipeline, 12, give, seed=0, lanes=lanes), 3, 2, 12)
    rows, name = 12 // lanes, ("inputs", "targets")[side]
    with pytest.raises(WrongRows, match=f"data gave {2 * rows} rows of {name} at step 3 for a batch of {rows}"):
        data.inputs(3, (1, 0))
    data.close()


def test_lists_of_different_lengths_are_refused():
    """Their values and their offsets were both cut to the rows of a micro-batch."""
    pipeline = cedar.from_items([{"x": [at] * (1 + at % 3)} for at in range(24)])
    source = LoaderSource(pipeline, 12, lambda batch: (batch["x"], batch["x"].lengths()), seed=0)
    with pytest.raises(WrongRows, match="data gave inputs of type JaggedTensor"):
        MicroBatches(source, 3, 2, 12).inputs(0, (0, 0))
    source.close()


def rows(source, step):
    return source.read(step, range(2))[0].tolist()


def test_a_loader_goes_round_its_rows_and_reads_a_step_again():
    pipeline = cedar.from_items([{"x": at} for at in range(5)])
    source = LoaderSource(pipeline, 2, lambda batch: (batch["x"], batch["x"]), seed=0)
    first = [rows(source, step) for step in range(4)]
    assert first == [[0, 1], [2, 3], [0, 1], [2, 3]]  # what fills no batch is left out
    assert rows(source, 2) == first[2]
    source.commit(2)
    assert rows(source, 3) == first[3]
    source.close()
