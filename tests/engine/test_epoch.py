"""Epochs of the data: where they begin and end, on every rank."""

from __future__ import annotations

import json

import pytest

import cedar
from tests.engine.delivery.few_rows import in_batches, rows, xs


def test_a_state_of_the_last_step_ends_its_epoch():
    whole = in_batches(10).loader(steps=3)
    unbroken = [xs(whole) for _ in range(3)]
    loader = in_batches(10).loader(steps=3)
    iterator = iter(loader)
    first = [next(iterator)["x"].tolist() for _ in range(3)]
    resumed = in_batches(10).loader(steps=3)
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert [first, xs(resumed), xs(resumed)] == unbroken


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


def test_an_epoch_that_fills_no_round_of_ranks_says_so(caplog: pytest.LogCaptureFixture) -> None:
    rows = cedar.from_items([{"x": i} for i in range(8)])
    assert list(rows.batch(4, last="drop").loader(rank=0, world=3)) == []
    assert "2 unit(s) for 3 ranks" in caplog.text
    caplog.clear()
    assert len(list(rows.batch(4, last="keep").loader(rank=0, world=3))) == 1
    assert caplog.text == ""
