"""What a loader is made of, and what it refuses to be asked."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

import cedar
from cedar import RowError, Skip
from tests.engine.delivery.few_rows import in_batches, rows, xs
from tests.engine.delivery.skipped import BAD, failing, flat
from tests.engine.streams.slow_rows import SLOW
from tests.toy_runs import saved


def test_logging_is_quiet_by_default(caplog):
    with caplog.at_level(logging.WARNING):
        xs(in_batches(10).loader())
    assert caplog.text == ""


def test_a_closed_loader_still_reports() -> None:
    with rows().batch(5).loader() as loader:
        for _ in loader:
            break
    assert loader.report().batches == 1
    assert saved(loader)["step"] == 1


@pytest.mark.parametrize(
    "ask",
    [
        lambda loader: loader.read(0),
        lambda loader: loader.locate(0),
        lambda loader: loader.where("x", 0),
        lambda loader: loader.commit(0),
        lambda loader: loader.reshard(0, 2),
    ],
)
def test_what_must_know_the_order_ahead_is_refused(ask: Callable[[cedar.Loader], Any]) -> None:
    with (
        SLOW.loader(order="any", executor="inline") as loader,
        pytest.raises(cedar.PipelineError, match="the order of rows is not known in advance"),
    ):
        ask(loader)


# ---- units: rows and batches as they are delivered, those that were skipped left out ---------------------------------


def test_a_bad_row_shortens_its_batch_and_shifts_no_other() -> None:
    got = xs(failing(Skip()).batch(4, last="keep").loader())
    assert got == [[x for x in range(i, min(i + 4, 50)) if x not in BAD] for i in range(0, 50, 4)]


def test_a_batch_of_bad_rows_is_empty() -> None:
    assert xs(failing(Skip()).batch(1).loader())[3] == []


def test_refill_keeps_batches_full() -> None:
    good = [x for x in range(50) if x not in BAD]
    for executor in ("inline", "threads"):
        loader = failing(Skip(refill=True)).batch(4, last="keep").loader(executor=executor)
        assert xs(loader) == [good[i : i + 4] for i in range(0, 45, 4)]
        assert loader.report().skipped == {"map(picky)": 5}
    with pytest.raises(TypeError):
        len(failing(Skip(refill=True)).batch(4).loader())


def test_rows_one_by_one_are_counted_once() -> None:
    loader = failing(Skip()).loader()
    assert [row["x"] for row in loader] == [x for x in range(50) if x not in BAD]
    assert loader.report().skipped == {"map(picky)": 5}
    with pytest.raises(RowError):
        list(failing(Skip(max_count=4)).loader())
    assert failing(Skip()).count() == 45
    assert failing(Skip()).to_arrow().num_rows == 45


def test_all_rows_failing_is_not_passed_over_in_silence() -> None:
    def never(x: int) -> int:
        raise ValueError

    for refill in (False, True):
        p = cedar.from_items([{"x": 1}] * 9).map(never, "x", dtype=int, on_error=Skip(refill=refill))
        loader = p.batch(4, last="keep").loader()
        assert flat(xs(loader)) == []
        assert loader.report().skipped == {"map(never)": 9}
        stops = Skip(max_count=3, refill=refill)
        with pytest.raises(RowError, match="max_count=3"):
            list(cedar.from_items([{"x": 1}] * 9).map(never, "x", dtype=int, on_error=stops).batch(4, last="keep"))
