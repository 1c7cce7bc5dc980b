"""Batches of text: what is held out is never trained on, and a state continues where it was."""

from __future__ import annotations

import pytest
import torch

from cedar.core.errors import CedarError
from cedar.trainers.moe.data import Batches
from cedar.trainers.moe.trainer import Trainer
from tests.trainers.moe.toy_text import options, write_text


def test_text_that_is_too_short_is_refused(tmp_path):
    (tmp_path / "short.txt").write_text("to be\n")
    trainer = Trainer(options(str(tmp_path / "short.txt"), slots=8))
    with pytest.raises(CedarError, match="has no batch of 6 rows of 13 tokens"):
        trainer.train_step()
    trainer.close()


def rows_of(batches):
    return [bytes(row.tolist()) for batch in batches for row in batch]


@pytest.mark.parametrize("shuffle", [False, True])
def test_rows_that_are_held_out_come_first_and_all_others_are_trained_on(tmp_path, shuffle):
    path = write_text(tmp_path / "text.txt", lines=20)
    batches = Batches(options(path, data={"batch": 4, "held_out": 6, "shuffle": shuffle}).data, seed=0)
    text = (tmp_path / "text.txt").read_bytes()
    rows = [text[at : at + 13].ljust(13, b"\0") for at in range(0, len(text), 13)]  # the last one is filled up
    assert rows_of(batches.evaluation()) == rows[:6]
    trained = rows_of(next(batches) for _ in range((len(rows) - 6) // 4))
    batches.close()
    assert set(trained) <= set(rows[6:])
    assert len(set(trained)) > 4
    assert (trained == rows[6 : 6 + len(trained)]) is not shuffle


def test_a_state_goes_on_with_the_next_batch(tmp_path):
    chosen = options(write_text(tmp_path / "text.txt", lines=20)).data
    one, other = Batches(chosen, seed=3), Batches(chosen, seed=3)
    first = next(one)
    assert (first.dtype, first.shape) == (torch.int64, (6, 13))
    other.load_state_dict(one.state_dict())
    assert torch.equal(next(one), next(other))
    for batches in (one, other):
        batches.close()
