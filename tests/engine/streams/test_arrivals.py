"""The order in which rows came: recorded, followed, and refused where it is another run's or damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import cedar
from cedar.engine.streams.arrivals import Orders
from tests.engine.streams.slow_rows import SLOW, held_up, numbers, same, taken, there_is
from tests.toy_runs import run


def test_an_epoch_without_a_row_is_recorded_and_followed(tmp_path: Path) -> None:
    pipeline = cedar.from_items([{"x": 1}]).map(same, "x", dtype=int).batch(4, last="drop")
    for order, record in (("any", str(tmp_path / "order")), (str(tmp_path / "order"), None)):
        with pipeline.loader(order=order, record=record, plan="off") as loader:
            assert list(loader) == []


def recorded(folder: Path, **options: Any) -> list[Any]:
    with SLOW.loader(order="any", record=folder, executor="threads", workers=2, plan="off", **options) as loader:
        return run(loader)[0]


def followed(folder: Path, pipeline: cedar.Pipeline = SLOW, **options: Any) -> list[Any]:
    with pipeline.loader(order=str(folder), executor="inline", plan="off", **options) as loader:
        return run(loader)[0]


def test_a_record_of_another_run_is_refused(tmp_path: Path) -> None:
    recorded(tmp_path)
    for options, message in (
        ({"epoch": 1}, "the order of epoch 1, rank 0 of 1, is not recorded"),
        ({"rank": 0, "world": 2}, "the order of epoch 0, rank 0 of 2, is not recorded"),
        ({"seed": 1}, "of another pipeline, of other data or of another seed"),
        ({"pipeline": numbers(100).map(held_up, "x", dtype=int).batch(10)}, "of another pipeline"),
    ):
        with pytest.raises(cedar.PipelineError, match=message):
            followed(tmp_path, **options)
    with pytest.raises(cedar.PipelineError, match="of another pipeline"):
        recorded(tmp_path, seed=1)


def test_a_record_that_a_crash_cut_short_is_followed_as_far_as_it_goes_and_goes_on(tmp_path: Path) -> None:
    recorded(tmp_path)
    (file,) = tmp_path.iterdir()
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:3]) + lines[3][:3])
    first = json.loads(lines[1])
    assert taken(followed(tmp_path))[: first[1] - first[0]] == list(range(*first))
    again = recorded(tmp_path)
    assert followed(tmp_path) == again


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    recorded(tmp_path)
    (file,) = tmp_path.iterdir()
    text = file.read_text()
    for wrong in ("[3, 1]", "[1]", "7", "{}", '["a", "b"]', "[1, 2"):
        file.write_text(text + wrong + "\n")
        with pytest.raises(cedar.PipelineError, match="damaged"):
            followed(tmp_path)
    file.write_text("")
    with pytest.raises(cedar.PipelineError, match="no order that this version records"):
        followed(tmp_path)


def test_a_record_of_more_rows_than_there_are_is_refused(tmp_path: Path) -> None:
    unknown = numbers(50).filter(there_is, "x").map(same, "x", dtype=int).batch(10)
    with unknown.loader(order="any", record=tmp_path, executor="inline") as loader:
        run(loader)
    (file,) = tmp_path.iterdir()
    file.write_text(file.read_text() + "[300, 301]\n")
    with pytest.raises(cedar.PipelineError, match="names row 300 of this rank's part"):
        followed(tmp_path, unknown)


def test_a_record_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(cedar.PipelineError, match="the order cannot be written"):
        recorded(tmp_path / "file")


def test_a_thread_of_a_loop_that_was_left_adds_nothing_to_the_next_one(tmp_path: Path) -> None:
    orders = Orders(tmp_path, None, lambda: "this", 0, 1)
    left = orders.of(0, None)
    left.add(0, 2)
    orders.close()  # the loop was left, and its thread is still in a function
    again = orders.of(0, None)
    again.add(2, 4)
    left.add(4, 6)
    again.add(0, 2)
    orders.close()
    left.add(6, 8)
    assert (tmp_path / "epoch-0.rank-0-of-1.jsonl").read_text().splitlines()[1:] == ["[0, 2]", "[2, 4]", "[0, 2]"]
