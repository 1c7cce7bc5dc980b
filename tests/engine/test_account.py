"""Accounts: the time of the loader's thread, and the budgets of rows that are skipped."""

from __future__ import annotations

import pytest

import cedar
from cedar import RowError, Skip
from cedar.engine.account import OwnTime
from cedar.engine.metrics import Metrics
from tests.engine.delivery.few_rows import xs
from tests.engine.delivery.skipped import BAD, failing, flat
from tests.engine.failing import fails_on
from tests.toy_runs import saved


@pytest.mark.parametrize("every", [1, 10])
def test_the_time_of_the_loaders_thread_is_counted_between_asking_and_having(every: int) -> None:
    metrics = Metrics()
    own = OwnTime(metrics, every)
    for _ in range(20):
        own.enter()
        sum(range(20_000))
        own.leave()
    counted = metrics.time.own
    assert counted > 0
    sum(range(20_000))
    own.leave()
    assert metrics.time.own == counted, "what the trainer does is not the loader's"


def test_a_retry_counts_its_skipped_rows_anew():
    rule = cedar.Skip(max_count=1)
    loader = cedar.from_items([{"x": i} for i in range(5)]).map(fails_on(0, 1), "x", on_error=rule).loader()
    for _ in range(3):
        with pytest.raises(cedar.RowError, match=r"skipped 2 row"):
            list(loader)


def test_batches_before_the_one_beyond_the_budget_are_delivered() -> None:
    loader = failing(Skip(max_count=2)).batch(4, last="keep").loader()
    got = []
    with pytest.raises(RowError):
        for batch in loader:
            got.append(batch["x"].tolist())
    assert got[-1] == [16, 17, 18, 19]


def test_budgets_live_in_the_state() -> None:
    p = failing(Skip(max_count=3)).batch(4, last="keep")
    loader = p.loader()
    for number, _ in enumerate(loader):
        if number == 6:  # rows 3, 13 and 23 are behind us
            break
    again = p.loader()
    again.load_state_dict(saved(loader))
    with pytest.raises(RowError, match="max_count=3") as caught:
        list(again)
    assert caught.value.row is not None
    assert caught.value.row.row == 33


def test_the_loaders_policy_is_for_every_operator_without_its_own() -> None:
    p = failing(Skip(max_count=99)).map(lambda x: 1 // (x % 7), "x", into="y", dtype=int)
    loader = p.batch(5, last="keep").loader(on_error=Skip())
    rest = [x for x in range(50) if x not in BAD and x % 7]
    assert flat(xs(loader)) == rest
    assert loader.report().skipped == {"map(picky)": 5, "map(<lambda>)": 8}
