"""Micro-batches: each its own rows of a batch, read again as often as it is asked for, until its step is committed."""

from __future__ import annotations

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


def rows(source, step):
    return source.read(step)[0].tolist()


def test_a_loader_goes_round_its_rows_and_reads_a_step_again():
    pipeline = cedar.from_items([{"x": at} for at in range(5)])
    source = LoaderSource(pipeline, 2, lambda batch: (batch["x"], batch["x"]), seed=0)
    first = [rows(source, step) for step in range(4)]
    assert first == [[0, 1], [2, 3], [0, 1], [2, 3]]  # what fills no batch is left out
    assert rows(source, 2) == first[2]
    source.commit(2)
    assert rows(source, 3) == first[3]
    source.close()
