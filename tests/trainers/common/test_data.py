"""Batches without end, and text as rows of tokens: no byte is lost, epochs follow each other, none is told."""

from __future__ import annotations

import pytest

from cedar.core.errors import CedarError
from cedar.trainers.common.data import Endless, token_rows


def loader_of(path, length, rows):
    pipeline = token_rows(str(path), length).batch(rows, last="drop")
    return pipeline.loader(plan="off", executor="inline", seed=0, rank=0, world=1)


def test_rows_of_tokens_are_the_bytes_of_the_lines_one_after_the_other(tmp_path):
    (tmp_path / "text.txt").write_text("to be\nor nöt\nto be\n", encoding="utf-8")
    batches = Endless(loader_of(tmp_path / "text.txt", 4, 2), CedarError("none"))
    found = [byte for _ in range(2) for row in next(batches)["tokens"].tolist() for byte in row]
    batches.close()
    assert bytes(found) == "to be\nor nöt\nto".encode()


def test_epochs_follow_each_other_and_a_state_goes_on_where_it_was(tmp_path):
    (tmp_path / "text.txt").write_text("abc\ndef\nghi\n")
    batches = Endless(loader_of(tmp_path / "text.txt", 4, 1), CedarError("none"))
    seen = [bytes(next(batches)["tokens"][0].tolist()) for _ in range(4)]
    state = batches.state_dict()
    seen += [bytes(next(batches)["tokens"][0].tolist()) for _ in range(3)]
    batches.load_state_dict(state)
    again = [bytes(next(batches)["tokens"][0].tolist()) for _ in range(3)]
    batches.close()
    assert seen == [b"abc\n", b"def\n", b"ghi\n"] * 2 + [b"abc\n"]
    assert again == seen[4:]


def test_data_without_a_batch_are_told_and_not_waited_for(tmp_path):
    (tmp_path / "text.txt").write_text("abc\n")
    batches = Endless(loader_of(tmp_path / "text.txt", 4, 2), CedarError("there is no batch"))
    with pytest.raises(CedarError, match="there is no batch"):
        next(batches)
    batches.close()
