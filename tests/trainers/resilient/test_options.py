"""Settings: sizes and words for memory, and what cannot be meant."""

from __future__ import annotations

import pytest

from cedar.trainers.resilient.options import DataOptions, ModelOptions, OptimizerOptions, PipelineOptions, RunOptions


@pytest.mark.parametrize(
    ("memory", "cap", "size"),
    [("1f1b", "1f1b", 0), ("stage 1f1b", "stage 1f1b", 0), (3, 3, 0), ("all", None, 0), ("2KiB", "2KiB", 2048)],
)
def test_memory_is_a_number_a_word_or_a_size(memory, cap, size):
    made = PipelineOptions(memory=memory)
    assert (made.cap, made.bytes) == (cap, size)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: PipelineOptions(memory="2 apples"), "memory is '2 apples': give a number, a size like"),
        (lambda: PipelineOptions(micro_batches=0), "micro_batches is 0: give 1 or more"),
        (lambda: PipelineOptions(exact=-1.0), "exact is -1.0: give a finite number of 0 or more"),
        (lambda: RunOptions(steps=0), "steps is 0: give 1 or more"),
        (lambda: RunOptions(threads=0), "threads is 0: give 1 or more"),
        (lambda: RunOptions(pace=float("inf")), "pace is inf: give a finite number of 0 or more"),
        (lambda: RunOptions(heartbeat=0), "heartbeat is 0: give seconds"),
        (lambda: RunOptions(silence=-1), "silence is -1: give seconds"),
        (lambda: RunOptions(patience=0), "patience is 0: give seconds"),
        (lambda: RunOptions(serve="127.0.0.1:0"), "it is not served"),
        (lambda: DataOptions("text.txt", batch=0), "batch is 0: give 1 or more"),
        (lambda: ModelOptions(width=10, heads=4), "width 10 is not divisible by heads 4"),
        (lambda: OptimizerOptions(clip=-1.0), "clip is -1.0: give a finite number of 0 or more"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(make, told):
    with pytest.raises(ValueError) as failed:
        make()
    assert told in str(failed.value)
